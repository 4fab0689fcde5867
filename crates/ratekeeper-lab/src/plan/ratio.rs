//! Exact positive fractions: a plan is computed without rounding, and rounded down once, at its end.

use std::cmp::Ordering;
use std::fmt;

use ratekeeper_core::Rate;

const SECOND_US: u128 = 1_000_000;

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio {
    numerator: u128,
    denominator: u128,
}

impl Ratio {
    pub(crate) const ZERO: Self = Self { numerator: 0, denominator: 1 };

    /// Returns `numerator / denominator`; the denominator is not 0.
    pub(crate) fn new(numerator: u128, denominator: u128) -> Self {
        let divisor = gcd(numerator, denominator);
        Self { numerator: numerator / divisor, denominator: denominator / divisor }
    }

    pub(crate) fn whole(n: u64) -> Self {
        Self { numerator: u128::from(n), denominator: 1 }
    }

    /// Returns how many requests a rate allows per second.
    pub(crate) fn per_second(rate: Rate) -> Self {
        Self::new(u128::from(rate.count()) * SECOND_US, rate.period().as_micros())
    }

    /// Returns a time in seconds.
    pub(crate) fn seconds(us: u64) -> Self {
        Self::new(u128::from(us), SECOND_US)
    }

    /// Parses a decimal such as `2` or `0.25`, with up to six digits after the point.
    pub(crate) fn decimal(text: &str) -> Option<Self> {
        let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str, len: usize| {
            (1..=len).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_number(whole, 12) || !is_number(digits, 6) {
            return None;
        }
        let scale = 10u128.pow(digits.len() as u32);
        let (whole, digits): (u128, u128) = (whole.parse().ok()?, digits.parse().ok()?);
        Some(Self::new(whole * scale + digits, scale))
    }

    pub(crate) fn is_zero(self) -> bool {
        self.numerator == 0
    }

    pub(crate) fn times(self, other: Self) -> Self {
        let (a, b) = (
            Self::new(self.numerator, other.denominator),
            Self::new(other.numerator, self.denominator),
        );
        Self { numerator: a.numerator * b.numerator, denominator: a.denominator * b.denominator }
    }

    /// Returns the quotient; `other` is not 0.
    pub(crate) fn over(self, other: Self) -> Self {
        self.times(Self { numerator: other.denominator, denominator: other.numerator })
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let numerator = self.numerator * other.denominator + other.numerator * self.denominator;
        Self::new(numerator, self.denominator * other.denominator)
    }

    /// Returns the difference, or 0 if `other` is larger.
    pub(crate) fn minus(self, other: Self) -> Self {
        let taken = other.numerator * self.denominator;
        let numerator = (self.numerator * other.denominator).saturating_sub(taken);
        Self::new(numerator, self.denominator * other.denominator)
    }

    pub(crate) fn floor(self) -> u64 {
        u64::try_from(self.numerator / self.denominator).unwrap_or(u64::MAX)
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// Returns this many requests per second as a rate, rounded down to a whole number of at least ten, if there is
    /// such a number per second, minute, hour or day.
    pub(crate) fn to_rate(self) -> Option<Rate> {
        const PERIODS_S: [u64; 4] = [1, 60, 3_600, 86_400];
        let is_exact = |s: &u64| self.times(Self::whole(*s)).denominator == 1;
        let is_close = |s: &u64| self.times(Self::whole(*s)).floor() >= 10;
        let found = PERIODS_S.iter().find(|s| !self.is_zero() && (is_exact(s) || is_close(s)));
        let period_s = *found.unwrap_or(&PERIODS_S[3]);
        let count = self.times(Self::whole(period_s)).floor();
        Rate::new(count, std::time::Duration::from_secs(period_s)).ok()
    }
}

/// At most two digits after the point, rounded down.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.numerator * 100 / self.denominator;
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.numerator * other.denominator).cmp(&(other.numerator * self.denominator))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(text: &str) -> Ratio {
        Ratio::decimal(text).unwrap()
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(ratio("0.1").plus(ratio("0.2")), ratio("0.3"));
        assert_eq!(ratio("0.7").times(Ratio::whole(500)), Ratio::whole(350));
        assert_eq!(ratio("400").over(ratio("0.8")), Ratio::whole(500));
        assert_eq!(ratio("2").minus(ratio("3")), Ratio::ZERO);
        for text in ["", "1.", ".5", "-1", "1e3", "1.0000000", "1,5"] {
            assert_eq!(Ratio::decimal(text), None, "{text}");
        }
    }

    #[test]
    fn a_rate_is_rounded_down_by_less_than_a_tenth() {
        let rate = |text| ratio(text).to_rate().unwrap().to_string();
        assert_eq!(rate("350"), "350/s");
        assert_eq!(rate("233.33"), "233/s");
        assert_eq!(rate("5"), "5/s");
        assert_eq!(rate("2.5"), "150/m");
        assert_eq!(rate("0.01"), "36/h");
        assert_eq!(Ratio::ZERO.to_rate(), None);
    }
}
