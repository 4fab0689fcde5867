//! The client of a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use http::HeaderValue;

use crate::listener::{Accepted, ConnState, ConnectionPermits};

/// One client's connection. Its requests carry it in their extensions.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    pub(super) is_tls: bool,
    /// Whether its forwarding headers and request id are used.
    pub(super) is_trusted: bool,
    /// Its address, as `X-Forwarded-For` has it.
    pub(super) ip: HeaderValue,
    pub(super) conn: Arc<ConnState>,
    is_tunnel: AtomicBool,
    /// Requests whose response is known.
    responses: AtomicU64,
    /// The connection counts as open for as long as anything of it is left, such as a tunnel.
    _permits: ConnectionPermits,
}

impl Client {
    pub(super) fn new(accepted: Accepted, is_trusted: bool, conn: Arc<ConnState>) -> Arc<Self> {
        let Accepted { peer, is_tls, permits, .. } = accepted;
        let address = peer.ip().to_canonical();
        let ip = HeaderValue::try_from(address.to_string()).expect("an address is ASCII");
        let (is_tunnel, responses) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self {
            peer,
            is_tls,
            is_trusted,
            ip,
            conn,
            is_tunnel,
            responses,
            _permits: permits,
        })
    }

    pub(super) fn scheme(&self) -> HeaderValue {
        HeaderValue::from_static(if self.is_tls { "https" } else { "http" })
    }

    /// The response to a request is known, and whether it switches to another protocol.
    pub(super) fn note_response(&self) {
        self.responses.fetch_add(1, Relaxed);
    }

    pub(super) fn responses(&self) -> u64 {
        self.responses.load(Relaxed)
    }

    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Relaxed);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Relaxed)
    }
}
