//! The address of the peer, from the extensions of a request.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The address of the peer of the connection, in the extensions of a request.
///
/// axum's `ConnectInfo<SocketAddr>` (feature `axum`) and tonic's connection info (feature `tonic`) are read
/// too.
///
/// ```
/// use http::Request;
/// use ratekeeper::tower::PeerAddr;
///
/// let mut request = Request::new(());
/// request.extensions_mut().insert(PeerAddr("192.0.2.1:4711".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Returns the address of the peer, if an extension has it.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let known = extensions.get().map(|PeerAddr(addr)| addr.ip());
    #[cfg(feature = "axum")]
    let known = known.or_else(|| {
        let info = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
        info.map(|info| info.0.ip())
    });
    #[cfg(feature = "tonic")]
    let known = known.or_else(|| {
        use tonic::transport::server::TcpConnectInfo;
        extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr).map(|a| a.ip())
    });
    known
}
