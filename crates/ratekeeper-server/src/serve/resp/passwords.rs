//! The passwords that open the door.

use std::sync::Arc;

use crate::tokens::Tokens;

/// The only user there is, by the name that Redis gives it.
const USER: &[u8] = b"default";

/// Any of them will do. None at all means that none is wanted.
#[derive(Default)]
pub(crate) struct Passwords(Arc<Tokens>);

impl Passwords {
    pub(crate) fn new(passwords: Arc<Tokens>) -> Self {
        Self(passwords)
    }

    pub(super) fn are_wanted(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes as long for a wrong password as for the right one.
    pub(super) fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        let is_one = self.0.contains(password);
        user == USER && (!self.are_wanted() || is_one)
    }
}
