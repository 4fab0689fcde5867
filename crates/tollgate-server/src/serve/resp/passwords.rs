//! The passwords that open the door.

use subtle::ConstantTimeEq;

/// The only user there is, by the name that Redis gives it.
const USER: &[u8] = b"default";

/// Any of them will do. None at all means that none is wanted.
#[derive(Default)]
pub(crate) struct Passwords(Vec<Vec<u8>>);

impl Passwords {
    pub(crate) fn new(passwords: impl IntoIterator<Item = String>) -> Self {
        Self(passwords.into_iter().map(String::into_bytes).collect())
    }

    pub(super) fn are_wanted(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes as long for a wrong password as for the right one.
    pub(super) fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        let is_one =
            self.0.iter().fold(subtle::Choice::from(0), |found, one| found | one.ct_eq(password));
        user == USER && (!self.are_wanted() || bool::from(is_one))
    }
}

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passwords", self.0.len())
    }
}
