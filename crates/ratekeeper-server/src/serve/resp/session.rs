//! What a connection has said of itself.

use super::codec::Protocol;

/// The longest name that a client may give itself.
pub(super) const NAME_MAX: usize = 256;

pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) is_trusted: bool,
    pub(super) name: Vec<u8>,
}

impl Session {
    /// Where no password is wanted, everybody is trusted.
    pub(super) fn new(id: u64, wants_password: bool) -> Self {
        Self { id, protocol: Protocol::default(), is_trusted: !wants_password, name: Vec::new() }
    }
}
