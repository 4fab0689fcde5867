//! Free ports on loopback.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Returns a free port whose cluster bus port, 10,000 above, is free too.
///
/// The port is outside the range of ephemeral ports: while a server is down, an ephemeral port could
/// be assigned to any outgoing connection, even to that of a client that tries to reach the server.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = 10_000 + (random() % 10_000) as u16;
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

/// Returns an address on loopback with a [`free_port`].
pub(crate) fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
