//! Who is at the other end of the connection, as whoever accepted it tells.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The other end of the connection, in the extensions of a request.
///
/// axum's `ConnectInfo<SocketAddr>` (feature `axum`) and tonic's connection info (feature `tonic`) are
/// understood too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// The peer's address, if anybody has told it.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let told = extensions.get().map(|PeerAddr(addr)| addr.ip());
    #[cfg(feature = "axum")]
    let told = told.or_else(|| {
        let info = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
        info.map(|info| info.0.ip())
    });
    #[cfg(feature = "tonic")]
    let told = told.or_else(|| {
        use tonic::transport::server::TcpConnectInfo;
        extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr).map(|a| a.ip())
    });
    told
}
