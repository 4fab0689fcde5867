//! The state of a connection that commands change.

use super::codec::RespVersion;
use super::database::Database;
use super::transaction::Transaction;

/// The longest name that a client may set.
pub(super) const NAME_MAX: usize = 256;

/// The state of a connection that commands change.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: RespVersion,
    pub(super) is_authenticated: bool,
    pub(super) name: Vec<u8>,
    pub(super) database: Database,
    /// The commands since `MULTI`.
    pub(super) transaction: Option<Box<Transaction>>,
}

impl Session {
    /// Returns the initial state. If no password is required, the client counts as authenticated.
    pub(super) fn new(id: u64, is_password_required: bool) -> Self {
        Self {
            id,
            protocol: RespVersion::default(),
            is_authenticated: !is_password_required,
            name: Vec::new(),
            database: Database::default(),
            transaction: None,
        }
    }

    /// Returns a copy without the transaction, to try a command on.
    pub(super) fn without_transaction(&self) -> Self {
        Self { name: self.name.clone(), transaction: None, ..*self }
    }
}
