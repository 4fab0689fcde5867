//! Ids of what callers hold.

use std::fmt;
use std::str::FromStr;

use crate::random::unguessable_id;

/// The id of a reservation or a permit: 128 random bits, which cannot be guessed and say nothing about the
/// key.
///
/// Its text has 32 hexadecimal digits. If it is held in one process, because the store was unavailable when
/// it was made, the text begins with `degraded-`.
///
/// ```
/// use ratekeeper::HoldId;
///
/// let id: HoldId = "degraded-0123456789abcdef0123456789abcdef".parse()?;
/// assert!(id.is_degraded());
/// # Ok::<(), ratekeeper::InvalidHoldId>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId {
    number: u128,
    is_degraded: bool,
}

const DEGRADED: &str = "degraded-";

impl HoldId {
    pub(crate) fn random() -> Self {
        Self { number: unguessable_id(), is_degraded: false }
    }

    /// Returns whether the store was unavailable when it was made. Then only the process that made it can
    /// settle or release it.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    #[cfg(feature = "redis")]
    pub(crate) fn degraded(self) -> Self {
        Self { is_degraded: true, ..self }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn number(self) -> u128 {
        self.number
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.is_degraded { DEGRADED } else { "" };
        write!(f, "{prefix}{:032x}", self.number)
    }
}

impl FromStr for HoldId {
    type Err = InvalidHoldId;

    fn from_str(text: &str) -> Result<Self, InvalidHoldId> {
        let digits = text.strip_prefix(DEGRADED);
        let is_degraded = digits.is_some();
        let digits = digits.unwrap_or(text);
        // No sign, and no capitals: an id has one text.
        let is_plain = digits.len() == 32
            && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_plain);
        Ok(Self { number: number.ok_or(InvalidHoldId)?, is_degraded })
    }
}

/// The text is not a [`HoldId`].
///
/// ```
/// use ratekeeper::{HoldId, InvalidHoldId};
///
/// assert_eq!("17".parse::<HoldId>(), Err(InvalidHoldId));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an id has 32 hexadecimal digits, with \"degraded-\" before them if the store was unavailable"
)]
pub struct InvalidHoldId;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let id = HoldId::random();
        assert_ne!(id, HoldId::random());
        for id in [id, HoldId { is_degraded: true, ..id }] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let digits = "0123456789abcdef0123456789abcde";
        for text in ["", "17", digits, &format!("+{digits}"), &format!("A{digits}")] {
            assert_eq!(text.parse::<HoldId>(), Err(InvalidHoldId), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in ".{0,60}") {
            let _ = text.parse::<HoldId>();
        }
    }
}
