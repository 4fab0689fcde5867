//! What a limit does without its store.

/// What to do when the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenDown {
    /// This node's fair share: the limit over the number of nodes that were last known.
    #[default]
    Local,
    /// Let it pass.
    Allow,
    /// Do not.
    Deny,
}
