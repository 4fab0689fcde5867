//! What a limit does while its store is unavailable.

/// What to do with a request when the store is unavailable.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::FailureMode;
///
/// assert_eq!(FailureMode::default(), FailureMode::Local);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// Limit locally, to this node's fair share: the limit divided by the last known node count.
    #[default]
    Local,
    /// Fail open: admit the request.
    Open,
    /// Fail closed: deny the request.
    Closed,
}
