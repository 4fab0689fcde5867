//! What others get to see of decisions.

use ratekeeper_core::Micros;

/// What a limit of the policy has said about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// What it was counted under.
    pub key: &'a [u8],
    /// What it said.
    pub outcome: Outcome,
    /// When.
    pub at: Micros,
}

/// What a limit has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It let the request pass.
    Allowed,
    /// It refused the request.
    Denied,
    /// It would have, were it enforced.
    ShadowDenied,
}

pub(crate) type Listener = Box<dyn Fn(&Seen<'_>) + Send + Sync>;
