//! What a limit does when its store is unavailable.

/// How requests are decided while the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// Limits locally, to this node's share: the limit divided by the last known number of nodes.
    #[default]
    Local,
    /// Fails open: allows the request.
    Open,
    /// Fails closed: denies the request.
    Closed,
}
