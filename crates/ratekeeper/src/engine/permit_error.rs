//! Why a permit was not released.

use ratekeeper_stores::StoreError;

use super::reservations::retry_hint;

/// Why a permit was not released.
///
/// ```
/// use ratekeeper::PermitError;
///
/// fn is_worth_a_retry(error: &PermitError) -> bool {
///     matches!(error, PermitError::Store(_))
/// }
/// # assert!(!is_worth_a_retry(&PermitError::NotHeld));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// There is no such permit.
    #[error("there is no such permit: it was released before, or it has expired")]
    NotHeld,
    /// It was granted without the store, and not by this process.
    #[error(
        "this permit was granted while the store was unavailable, so only the server that granted it can \
         release it; this is another one, or it was released, or it has expired"
    )]
    HeldElsewhere,
    /// The store is unavailable.
    #[error("the permit was not released and is still held{hint}: {0}", hint = retry_hint(.0))]
    Store(#[source] StoreError),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_failure_that_can_pass_is_worth_a_retry() {
        let late = PermitError::Store(StoreError::Deadline(Duration::from_secs(60))).to_string();
        assert!(late.contains("still held; retry: "), "{late}");
        let other = PermitError::Store(StoreError::OtherVersion).to_string();
        assert!(other.contains("still held: ") && !other.contains("retry"), "{other}");
    }
}
