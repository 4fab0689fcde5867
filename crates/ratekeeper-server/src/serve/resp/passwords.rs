//! The passwords of the Redis protocol.

use std::sync::Arc;

use crate::tokens::Tokens;

/// The only user, which Redis has without any configuration.
pub(super) const DEFAULT_USER: &[u8] = b"default";

/// The passwords that are accepted. If there are none, none is required.
#[derive(Default)]
pub(crate) struct Passwords(Arc<Tokens>);

impl Passwords {
    pub(crate) fn new(passwords: Arc<Tokens>) -> Self {
        Self(passwords)
    }

    pub(super) fn is_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns whether a user may authenticate. Takes as long for a wrong password as for the right one.
    pub(super) fn accepts(&self, user: &[u8], password: &[u8]) -> bool {
        let is_known = self.0.contains(password);
        user == DEFAULT_USER && (!self.is_required() || is_known)
    }
}
