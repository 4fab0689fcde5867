//! The id of a permit that is held in a shared store: `ID-KEY-NAME`, with the permit's own id and the key in
//! hexadecimal digits.
//!
//! The first part is random and cannot be guessed. The others say where the permit is held: an id in which
//! they were changed names a permit that does not exist.

use std::fmt;

use ratekeeper::shared::PermitId;

use super::error::RequestError;
use super::json_fields::checked_key;
use crate::serve::caller_limit::checked_name;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredPermit<'a> {
    pub(super) id: PermitId,
    pub(super) name: &'a str,
    pub(super) key: String,
}

impl<'a> StoredPermit<'a> {
    /// Parses an id. Returns `None` for a permit that is held in a server's own memory: its id has one part.
    pub(super) fn parse(text: &'a str) -> Result<Option<Self>, RequestError> {
        let Some((id, location)) = text.split_once('-') else { return Ok(None) };
        Self::from_parts(id, location).map(Some).ok_or(RequestError::PermitId)
    }

    fn from_parts(id: &str, location: &'a str) -> Option<Self> {
        let (key, name) = location.split_once('-')?;
        let key = String::from_utf8(from_hex(key)?).ok()?;
        let (name, key) = (checked_name(name).ok()?, checked_key(&key).ok()?);
        Some(Self { id: id.parse().ok()?, name, key })
    }
}

impl fmt::Display for StoredPermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.id)?;
        self.key.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{}", self.name)
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_formatted_id_parses_to_the_same_permit() {
        for (name, key) in [("api", "exports"), ("a-b/c:d.e_f", "käse-1"), ("n", " ")] {
            let permit = StoredPermit { id: ID.parse().unwrap(), name, key: key.into() };
            let text = permit.to_string();
            assert_eq!(StoredPermit::parse(&text).unwrap(), Some(permit));
        }
    }

    #[test]
    fn a_malformed_id_is_rejected_and_one_of_a_single_part_is_local() {
        assert_eq!(StoredPermit::parse(ID).unwrap(), None);
        let long = format!("{ID}-{}-api", "61".repeat(1_025));
        let signed = format!("+{}-61-api", &ID[1..]);
        for (id, rest) in
            [("", "-61-api"), ("12", "-61-api"), (ID, "-"), (ID, "-61"), (ID, "--api")]
        {
            assert!(StoredPermit::parse(&format!("{id}{rest}")).is_err(), "{id}{rest}");
        }
        for rest in ["-6-api", "-6x-api", "-ff-api", "-61-", "-61-a b", "-é-api"] {
            assert!(StoredPermit::parse(&format!("{ID}{rest}")).is_err(), "{rest}");
        }
        assert!(StoredPermit::parse(&long).is_err() && StoredPermit::parse(&signed).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_causes_a_panic(text in ".{0,100}") {
            let _ = StoredPermit::parse(&text);
        }
    }
}
