//! The id of a permit that is held in a shared store: `ID-KEY-NAME`, with the permit's own id and the key in
//! hexadecimal digits.
//!
//! The first part is random and cannot be guessed; the others only say where it is held, so whoever
//! changes them names a permit that does not exist.

use std::fmt;

use ratekeeper::shared::PermitId;

use super::ask::{self, Wrong};
use crate::serve::caller_limit::checked_name;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredPermit<'a> {
    pub(super) id: PermitId,
    pub(super) name: &'a str,
    pub(super) key: String,
}

impl<'a> StoredPermit<'a> {
    /// `None` for the id of a permit that is held in a server's own memory, which has no parts.
    pub(super) fn read(text: &'a str) -> Result<Option<Self>, Wrong> {
        let Some((id, place)) = text.split_once('-') else { return Ok(None) };
        let parts = || {
            let (key, name) = place.split_once('-')?;
            let key = String::from_utf8(from_hex(key)?).ok()?;
            let (name, key) = (checked_name(name).ok()?, ask::checked_key(&key).ok()?);
            Some(Self { id: id.parse().ok()?, name, key })
        };
        parts().map(Some).ok_or_else(|| {
            "this is not the id of a permit; send back what /v1/acquire answered, unchanged".into()
        })
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
    fn an_id_is_read_as_it_was_written() {
        for (name, key) in [("api", "exports"), ("a-b/c:d.e_f", "käse-1"), ("n", " ")] {
            let permit = StoredPermit { id: ID.parse().unwrap(), name, key: key.into() };
            let text = permit.to_string();
            assert_eq!(StoredPermit::read(&text), Ok(Some(permit)));
        }
    }

    #[test]
    fn a_malformed_id_is_refused_and_one_without_parts_is_anothers() {
        assert_eq!(StoredPermit::read(ID), Ok(None));
        let long = format!("{ID}-{}-api", "61".repeat(1_025));
        let signed = format!("+{}-61-api", &ID[1..]);
        for (id, rest) in
            [("", "-61-api"), ("12", "-61-api"), (ID, "-"), (ID, "-61"), (ID, "--api")]
        {
            assert!(StoredPermit::read(&format!("{id}{rest}")).is_err(), "{id}{rest}");
        }
        for rest in ["-6-api", "-6x-api", "-ff-api", "-61-", "-61-a b", "-é-api"] {
            assert!(StoredPermit::read(&format!("{ID}{rest}")).is_err(), "{rest}");
        }
        assert!(StoredPermit::read(&long).is_err() && StoredPermit::read(&signed).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,100}") {
            let _ = StoredPermit::read(&text);
        }
    }
}
