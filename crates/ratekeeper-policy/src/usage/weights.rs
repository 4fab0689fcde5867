//! Weights of tokens: exact decimals.

use super::TokenUsage;

/// Maximum number of decimals of a weight.
const DECIMALS_MAX: usize = 6;

/// Weights are stored in millionths.
const ONE: u64 = 1_000_000;

/// The largest weight.
const WHOLE_MAX: u64 = 1_000_000;

/// A decimal number such as 0.1, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    millionths: u64,
}

/// Why a text is not a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a weight is a number from 0 to {WHOLE_MAX} with at most {DECIMALS_MAX} decimals, such as 4 or 0.1"
)]
pub(crate) struct WeightError;

impl Weight {
    pub(crate) const ONE: Self = Self { millionths: ONE };
}

impl std::str::FromStr for Weight {
    type Err = WeightError;

    fn from_str(text: &str) -> Result<Self, WeightError> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let are_digits = |text: &str| {
            (1..=19).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !are_digits(whole) || !are_digits(decimals) || decimals.len() > DECIMALS_MAX {
            return Err(WeightError);
        }
        let whole: u64 = whole.parse().map_err(|_| WeightError)?;
        let decimals: u64 =
            format!("{decimals:0<DECIMALS_MAX$}").parse().map_err(|_| WeightError)?;
        let millionths = whole.checked_mul(ONE).and_then(|whole| whole.checked_add(decimals));
        millionths
            .filter(|millionths| *millionths <= WHOLE_MAX * ONE)
            .map(|millionths| Self { millionths })
            .ok_or(WeightError)
    }
}

/// What a token of each kind costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) input: Weight,
    pub(crate) cached: Weight,
    pub(crate) cache_write: Weight,
    pub(crate) output: Weight,
}

impl Weights {
    /// Returns the weighted sum of the tokens, rounded up once at the end.
    pub(crate) fn cost(&self, usage: &TokenUsage) -> u64 {
        let terms = [
            (self.input, usage.input),
            (self.cached, usage.cached),
            (self.cache_write, usage.cache_write),
            (self.output, usage.output),
        ];
        // Below 4 · 2^40 · 2^64, so it cannot overflow.
        let of_term =
            |(weight, tokens): (Weight, u64)| u128::from(weight.millionths) * u128::from(tokens);
        let sum: u128 = terms.into_iter().map(of_term).sum();
        u64::try_from(sum.div_ceil(u128::from(ONE))).unwrap_or(u64::MAX)
    }

    /// Returns what this many tokens of output cost.
    pub(crate) fn output_cost(&self, tokens: u64) -> u64 {
        self.cost(&TokenUsage { output: tokens, ..TokenUsage::default() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weight(text: &str) -> Weight {
        text.parse().unwrap()
    }

    #[test]
    fn weights_are_exact_decimals() {
        for (text, millionths) in [
            ("1", Some(1_000_000)),
            ("0.1", Some(100_000)),
            ("0.000001", Some(1)),
            ("1000000", Some(1_000_000_000_000)),
            ("1000000.000001", None),
            ("0.0000001", None),
            ("1e3", None),
            ("-1", None),
            (".5", None),
            ("1.", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            let parsed = text.parse::<Weight>().ok().map(|weight| weight.millionths);
            assert_eq!(parsed, millionths, "{text}");
        }
    }

    #[test]
    fn a_cost_is_rounded_up_once() {
        let tenth = weight("0.1");
        let weights = Weights { input: tenth, cached: tenth, cache_write: tenth, output: tenth };
        let usage = |n| TokenUsage { input: n, cached: n, cache_write: 0, output: n, total: None };
        assert_eq!(weights.cost(&usage(1)), 1, "0.3");
        assert_eq!(weights.cost(&usage(10)), 3, "3.0, which floats would make 4");
        assert_eq!(weights.cost(&usage(11)), 4, "3.3");
        assert_eq!(weights.cost(&TokenUsage::default()), 0);
    }

    #[test]
    fn a_cost_that_does_not_fit_is_the_largest() {
        let most = weight("1000000");
        let weights = Weights { input: most, cached: most, cache_write: most, output: most };
        let n = u64::MAX;
        let usage = TokenUsage { input: n, cached: n, cache_write: n, output: n, total: None };
        assert_eq!(weights.cost(&usage), u64::MAX);
    }

    proptest! {
        #[test]
        fn whole_weights_are_a_plain_sum(tokens in prop::array::uniform4(0u64..1 << 40), by in prop::array::uniform4(0u64..100)) {
            let [input, cached, cache_write, output] = by.map(|n| weight(&n.to_string()));
            let weights = Weights { input, cached, cache_write, output };
            let usage = TokenUsage { input: tokens[0], cached: tokens[1], cache_write: tokens[2], output: tokens[3], total: None };
            let sum: u64 = tokens.iter().zip(by).map(|(tokens, weight)| tokens * weight).sum();
            prop_assert_eq!(weights.cost(&usage), sum);
        }
    }
}
