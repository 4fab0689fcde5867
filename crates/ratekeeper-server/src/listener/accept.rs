//! Accepts connections: within limits, over TLS if there is a certificate, until the server drains.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::drain::{ConnectionCount, Drain, Stage};
use super::limits::{ConnectionLimit, InFlightLimit, OwnedInFlightPermit};
use super::socket::ListeningSocket;
use super::tls::Tls;

/// How long to wait after a failure to accept. Most likely there are no file descriptors left, and some
/// will be closed soon.
const BACK_OFF: Duration = Duration::from_millis(50);
/// How long a client has to read why it was rejected.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Beyond this many at a time, rejected connections are closed without a response.
const REJECTIONS_MAX: usize = 100;

/// Serves the connections of a listener. Each worker thread has one.
pub(crate) trait ConnectionHandler: Send + Sync + 'static {
    /// The protocols offered over TLS (ALPN), in order of preference.
    const ALPN: &'static [&'static [u8]];

    /// Serves one connection until the client closes it, a timeout passes or the server has drained.
    fn serve<S>(self: Arc<Self>, stream: S, accepted: Accepted) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Returns what is sent to a client beyond the connection limit; nothing by default. Over TLS the
    /// connection is closed without it, as a response would take a handshake.
    fn rejection() -> Vec<u8> {
        Vec::new()
    }
}

/// A connection that was accepted. It counts as open until this is dropped.
pub(crate) struct Accepted {
    pub(crate) peer: SocketAddr,
    pub(crate) is_tls: bool,
    /// Whether HTTP/2 was negotiated in the TLS handshake.
    pub(crate) is_http2: bool,
    pub(crate) permits: ConnectionPermits,
}

/// What an open connection uses of the limits.
pub(crate) struct ConnectionPermits {
    _connection: OwnedInFlightPermit,
    _descriptor: OwnedInFlightPermit,
    _count: ConnectionCount,
}

/// How a listener accepts. Clones share the limits.
#[derive(Clone)]
pub(crate) struct ListenerConfig {
    tls: Option<Arc<Tls>>,
    handshake_timeout: Duration,
    pub(crate) connections: Arc<ConnectionLimit>,
    /// Of which each connection uses one.
    descriptors: Arc<InFlightLimit>,
    rejections: Arc<InFlightLimit>,
    drain: Drain,
}

impl ListenerConfig {
    pub(crate) fn new(
        connections: Arc<ConnectionLimit>,
        descriptors: &Arc<InFlightLimit>,
        drain: &Drain,
    ) -> Self {
        Self {
            tls: None,
            handshake_timeout: Duration::from_secs(10),
            connections,
            descriptors: Arc::clone(descriptors),
            rejections: Arc::new(InFlightLimit::new(REJECTIONS_MAX)),
            drain: drain.clone(),
        }
    }

    pub(crate) fn with_handshake_timeout(self, handshake_timeout: Duration) -> Self {
        Self { handshake_timeout, ..self }
    }

    pub(crate) fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }
}

/// Accepts connections until the server drains. The tasks of the connections go on after that, and the
/// drain counts them. Each worker runs this on its own runtime, with its own clone of the listener.
pub(crate) async fn serve<H: ConnectionHandler, L: ListeningSocket>(
    listener: L,
    handler: Arc<H>,
    config: ListenerConfig,
) -> io::Result<()> {
    let _listening = config.drain.count_listener();
    let acceptor = listener.into_acceptor()?;
    let drained = config.drain.reached(Stage::LastResponses);
    let mut drained = std::pin::pin!(drained);
    loop {
        tokio::select! {
            accepted = L::accept(&acceptor) => match accepted {
                Ok((stream, peer)) => start::<H, L>(stream, peer, &handler, &config),
                Err(error) => back_off(&error).await,
            },
            () = &mut drained => break,
        }
    }
    // For these clients the connection is established already.
    for (stream, peer) in L::accept_rest(acceptor)? {
        start::<H, L>(stream, peer, &handler, &config);
    }
    Ok(())
}

/// Starts the task of a connection, or rejects it.
fn start<H: ConnectionHandler, L: ListeningSocket>(
    stream: L::Stream,
    peer: SocketAddr,
    handler: &Arc<H>,
    config: &ListenerConfig,
) {
    let Some(descriptor) = config.descriptors.try_acquire_owned() else {
        config.connections.count_without_descriptor();
        tracing::warn!("no file descriptors are left for connections; raise the limit (ulimit -n)");
        return;
    };
    let Some(connection) = config.connections.try_acquire() else {
        return reject::<H, L::Stream>(stream, descriptor, config);
    };
    let _count = config.drain.count_connection();
    let permits = ConnectionPermits { _connection: connection, _descriptor: descriptor, _count };
    let mut accepted = Accepted { peer, is_tls: false, is_http2: false, permits };
    L::configure(&stream);
    let handler = Arc::clone(handler);
    let Some(tls) = config.tls.clone() else {
        tokio::spawn(handler.serve(stream, accepted));
        return;
    };
    let (drain, within) = (config.drain.clone(), config.handshake_timeout);
    tokio::spawn(async move {
        let handshake = timeout(within, tls.accept(stream, H::ALPN));
        let stream = tokio::select! {
            stream = handshake => stream.unwrap_or_else(|late| Err(late.into())),
            () = drain.reached(Stage::CloseIdle) => return,
        };
        match stream {
            Ok(stream) => {
                accepted.is_tls = true;
                accepted.is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                handler.serve(stream, accepted).await;
            }
            Err(error) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        }
    });
}

/// Closes a connection beyond the limit, with a response where that is possible.
fn reject<H, S>(mut stream: S, descriptor: OwnedInFlightPermit, config: &ListenerConfig)
where
    H: ConnectionHandler,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let response = H::rejection();
    if response.is_empty() || config.tls.is_some() {
        return;
    }
    let Some(permit) = config.rejections.try_acquire_owned() else { return };
    let count = config.drain.count_connection();
    tokio::spawn(async move {
        let respond = async {
            stream.write_all(&response).await?;
            stream.shutdown().await?;
            // To close before the request is read would reset the connection, and lose the response.
            let mut scratch = [0; 4096];
            while stream.read(&mut scratch).await? > 0 {}
            io::Result::Ok(())
        };
        let _ = timeout(REJECTION_TIMEOUT, respond).await;
        drop((permit, count, descriptor));
    });
}

async fn back_off(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::error!(%error, "cannot accept a connection");
        sleep(BACK_OFF).await;
    }
}
