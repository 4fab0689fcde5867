//! The state of a connection that commands can change.

use super::codec::Protocol;

/// The longest name that a client may set.
pub(super) const NAME_MAX: usize = 256;

pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) is_trusted: bool,
    pub(super) name: Vec<u8>,
}

impl Session {
    /// Without passwords, every client is trusted.
    pub(super) fn new(id: u64, needs_password: bool) -> Self {
        Self { id, protocol: Protocol::default(), is_trusted: !needs_password, name: Vec::new() }
    }
}
