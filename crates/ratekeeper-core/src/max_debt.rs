//! How far an overdraft may go.

use core::fmt;
use core::str::FromStr;

use crate::limit::Limit;

/// The most that a key may owe: a number of units, or a multiple of the limit's quota.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Limit, MaxDebt};
///
/// let limit = Limit::token_bucket("1000/hour")?;
/// assert_eq!("2x".parse::<MaxDebt>()?.units(&limit), 2_000);
/// assert_eq!("0.5x".parse::<MaxDebt>()?.units(&limit), 500);
/// assert_eq!("300".parse::<MaxDebt>()?.units(&limit), 300);
/// assert_eq!(MaxDebt::default(), MaxDebt::NONE, "without one, a debt has no maximum");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxDebt(DebtBound);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DebtBound {
    Units(u64),
    /// A multiple of the quota, in thousandths.
    Quotas(u64),
}

impl MaxDebt {
    /// No maximum.
    pub const NONE: Self = Self(DebtBound::Units(u64::MAX));

    /// Returns a maximum of this many units.
    #[must_use]
    pub const fn of_units(units: u64) -> Self {
        Self(DebtBound::Units(units))
    }

    /// Returns the most units that a key may owe under this limit, rounded down.
    #[must_use]
    pub fn units(self, limit: &Limit) -> u64 {
        match self.0 {
            DebtBound::Units(units) => units,
            DebtBound::Quotas(thousandths) => {
                let units = u128::from(limit.quota()) * u128::from(thousandths) / 1_000;
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Default for MaxDebt {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for MaxDebt {
    type Err = MaxDebtError;

    fn from_str(text: &str) -> Result<Self, MaxDebtError> {
        let text = text.trim();
        let parsed = match text.strip_suffix(['x', 'X']) {
            Some(factor) => thousandths(factor.trim_end()).map(DebtBound::Quotas),
            None => digits(text).map(DebtBound::Units),
        };
        parsed.map(Self).ok_or(MaxDebtError)
    }
}

impl fmt::Display for MaxDebt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            _ if *self == Self::NONE => f.write_str("no maximum"),
            DebtBound::Units(units) => write!(f, "{units}"),
            DebtBound::Quotas(thousandths) => {
                write!(f, "{}", thousandths / 1_000)?;
                match thousandths % 1_000 {
                    0 => {}
                    rest if rest % 100 == 0 => write!(f, ".{}", rest / 100)?,
                    rest if rest % 10 == 0 => write!(f, ".{:02}", rest / 10)?,
                    rest => write!(f, ".{rest:03}")?,
                }
                f.write_str("x")
            }
        }
    }
}

/// Parses a decimal number with up to three digits after the point, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 3)?;
    let fraction = digits(fraction)? * 10u64.pow(3 - places);
    digits(whole)?.checked_mul(1_000)?.checked_add(fraction)
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The text is not a maximum debt.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{MaxDebt, MaxDebtError};
///
/// assert_eq!("twice".parse::<MaxDebt>(), Err(MaxDebtError));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxDebtError;

impl fmt::Display for MaxDebtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a maximum debt; use a number of units such as 500, or a multiple of the limit such as 2x or 0.5x",
        )
    }
}

impl core::error::Error for MaxDebtError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in ["0", "500", "2x", "0.5x", "1.25x", "0.001x", "10.010x"] {
            let max: MaxDebt = text.parse().unwrap();
            assert_eq!(max.to_string().parse(), Ok(max), "{text}");
        }
        for text in ["", "x", "-1", "+1", "1.2", "1.2345x", "1e3", "two", "99999999999999999999x"] {
            assert_eq!(text.parse::<MaxDebt>(), Err(MaxDebtError), "{text}");
        }
    }
}
