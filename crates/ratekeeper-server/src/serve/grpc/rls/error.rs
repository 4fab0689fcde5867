//! Why a request is invalid.

use prost::DecodeError;
use ratekeeper::ChargesError;
use ratekeeper::policy::json::JsonError;

use super::descriptors::CHECKS_MAX;

/// Why a rate limit request is invalid. Envoy then applies its failure mode.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RateLimitRequestError {
    #[error("the domain is empty; set it in Envoy's rate limit filter")]
    EmptyDomain,
    #[error("the request has no descriptors; send at least one")]
    NoDescriptors,
    #[error("the request has {0} descriptors; at most {CHECKS_MAX} are allowed")]
    TooManyDescriptors(usize),
    #[error("the request has {0} limits; at most {CHECKS_MAX} are allowed")]
    TooManyLimits(usize),
    /// The number of the descriptor begins with 1.
    #[error("descriptor {descriptor}: its limit has no valid unit ({unit}); use SECOND to YEAR")]
    InvalidUnit { descriptor: usize, unit: i32 },
    #[error("hitsAddend is too large; at most {}", u64::MAX - 1)]
    HitsTooLarge,
    #[error(transparent)]
    Charges(#[from] ChargesError),
    #[error("this is not a rate limit request: {0}")]
    InvalidJson(#[from] JsonError),
    /// JSON that does not fit the message.
    #[error("this is not a rate limit request: {0}")]
    InvalidMessage(#[from] serde_json::Error),
    #[error("this is not a rate limit request: {0}")]
    Decode(#[from] DecodeError),
}
