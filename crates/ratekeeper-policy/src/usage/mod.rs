//! Usage that a response states: the tokens of a language model, or any other number.
//!
//! A [`UsageMeter`] is given a response body piece by piece, as it streams by, and keeps nothing of it but
//! the numbers.

mod cost;
mod format;
mod meter;
mod sse;
mod weights;

pub(crate) use cost::{Estimate, UsageCost};
pub use format::UsageFormat;
pub use meter::{Metered, UsageMeter};
pub(crate) use weights::{Weight, Weights};

/// The tokens that a request has used.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::usage::TokenUsage;
///
/// let usage = TokenUsage { input: 100, cached: 900, output: 50, ..TokenUsage::default() };
/// assert_eq!(usage.total(), 1050);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Input tokens that were neither read from a cache nor written to one.
    pub input: u64,
    /// Input tokens that were read from a cache.
    pub cached: u64,
    /// Input tokens that were written to a cache.
    pub cache_write: u64,
    /// Output tokens, those of reasoning included.
    pub output: u64,
    /// The total, if the response states one.
    pub total: Option<u64>,
}

impl TokenUsage {
    /// Returns the total that was stated, or else the sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        let kinds = [self.input, self.cached, self.cache_write, self.output];
        self.total.unwrap_or_else(|| kinds.into_iter().fold(0, u64::saturating_add))
    }
}
