//! The passwords of the Redis protocol.

use std::sync::Arc;

use crate::tokens::Tokens;

/// The only user, by the name that Redis gives it.
const USER: &[u8] = b"default";

/// The passwords that are accepted. Without any, no password is needed.
#[derive(Default)]
pub(crate) struct Passwords(Arc<Tokens>);

impl Passwords {
    pub(crate) fn new(passwords: Arc<Tokens>) -> Self {
        Self(passwords)
    }

    pub(super) fn are_needed(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a user may log in. Takes as long for a wrong password as for the right one.
    pub(super) fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        let is_one = self.0.contains(password);
        user == USER && (!self.are_needed() || is_one)
    }
}
