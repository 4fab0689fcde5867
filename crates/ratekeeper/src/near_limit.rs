//! From which ratio on a limit is nearly used up.

use std::str::FromStr;

use ratekeeper_core::Decision;

const WHOLE: u32 = 1_000_000;

/// The ratio of a limit from which on it counts as nearly used up: 0.8 by default. A request is near the
/// limit if it is allowed when more than that is in use.
///
/// ```
/// use ratekeeper::NearLimit;
///
/// let near: NearLimit = "0.5".parse()?;
/// assert_ne!(near, NearLimit::default());
/// assert!("1.5".parse::<NearLimit>().is_err());
/// # Ok::<(), ratekeeper::InvalidRatio>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearLimit {
    millionths: u32,
}

/// The text is not a number from 0 to 1.
///
/// ```
/// use ratekeeper::{InvalidRatio, NearLimit};
///
/// assert_eq!("80%".parse::<NearLimit>(), Err(InvalidRatio));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ratio is a number from 0 to 1, such as 0.8")]
pub struct InvalidRatio;

impl Default for NearLimit {
    fn default() -> Self {
        Self { millionths: WHOLE / 10 * 8 }
    }
}

impl FromStr for NearLimit {
    type Err = InvalidRatio;

    fn from_str(text: &str) -> Result<Self, InvalidRatio> {
        let ratio: f64 = text.trim().parse().map_err(|_| InvalidRatio)?;
        match (0.0..=1.0).contains(&ratio) {
            true => Ok(Self { millionths: (ratio * f64::from(WHOLE)).round() as u32 }),
            false => Err(InvalidRatio),
        }
    }
}

impl NearLimit {
    /// Returns whether a request was allowed near the limit.
    #[inline]
    pub fn is_near(self, decision: &Decision) -> bool {
        let used = decision.limit().saturating_sub(decision.remaining());
        let far = u128::from(decision.limit()) * u128::from(self.millionths) / u128::from(WHOLE);
        decision.allowed() && u128::from(used) > far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_fifth_of_a_limit_is_near_it() {
        let near = NearLimit::default();
        let left = |remaining| near.is_near(&Decision::allow(10, remaining, 0));
        assert!(!left(9) && !left(2), "8 of 10 have been used with it, not before");
        assert!(left(1) && left(0));
        assert!(!near.is_near(&Decision::deny(10, 1, 1)), "a denial is not near the limit");
    }

    #[test]
    fn the_ratio_can_be_set() {
        let half: NearLimit = "0.5".parse().unwrap();
        assert!(half.is_near(&Decision::allow(10, 4, 0)));
        assert!(!half.is_near(&Decision::allow(10, 5, 0)));
        for wrong in ["", "-0.1", "1.01", "NaN", "most"] {
            assert_eq!(wrong.parse::<NearLimit>(), Err(InvalidRatio), "{wrong}");
        }
    }
}
