//! A worker: a thread with a runtime, a listener and connections of its own.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::{interval, sleep, timeout};
use tower_layer::Layer;
use tower_service::Service;

use super::client::Counted;
use super::connection::Server;
use super::error;
use super::proxy::Proxy;
use super::shared::{Overload, Shared, Worker};
use crate::accept::OwnedPlace;
use crate::drain::Stage;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Out of file descriptors, most likely: some will be closed soon.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// For a client that is told to come back later.
const REFUSAL: Duration = Duration::from_secs(1);
/// More connections than these beyond the bound are closed without a word.
const REFUSALS_MAX: u32 = 100;

/// Starts a worker whose requests pass through `wrap` before they are proxied.
pub(super) fn start<L, B>(
    index: usize,
    listener: &StdListener,
    shared: Arc<Shared>,
    wrap: &L,
) -> io::Result<()>
where
    L: Layer<Proxy>,
    L::Service: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    <L::Service as Service<Request<Incoming>>>::Future: Send,
    <L::Service as Service<Request<Incoming>>>::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let listener = listener.try_clone()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let worker = Arc::new(Worker::new(shared, index));
    let service = wrap.layer(Proxy::new(Arc::clone(&worker)));
    let server = Arc::new(Server::new(Arc::clone(&worker)));
    let serve = move |stream, peer, counted| {
        let (server, service) = (Arc::clone(&server), service.clone());
        tokio::spawn(async move {
            if let Err(error) = server.serve(service, stream, peer, counted).await {
                tracing::debug!(%peer, %error, "connection failed");
            }
        });
    };
    let run = move || async move {
        tokio::spawn(sweep(Arc::clone(&worker)));
        if let Err(error) = accept_all(listener, &worker.shared, serve).await {
            tracing::error!(%error, "a worker cannot listen");
        }
        // Connections go on; the process ends when they have.
        std::future::pending::<()>().await;
    };
    let thread = thread::Builder::new().name(format!("worker-{index}"));
    thread.spawn(move || runtime.block_on(run())).map(drop)
}

async fn accept_all(
    listener: StdListener,
    shared: &Arc<Shared>,
    serve: impl Fn(TcpStream, SocketAddr, Counted),
) -> io::Result<()> {
    let _listening = shared.drain.listen();
    let listener = TcpListener::from_std(listener)?;
    let accept = |(stream, peer)| {
        let Some(descriptor) = shared.descriptors.connections.enter_owned() else {
            shared.note_overload(Overload::Descriptors);
            return;
        };
        match shared.drain.connect(shared.bounds.max_connections) {
            Some(live) => serve(stream, peer, Counted { _live: live, _descriptor: descriptor }),
            None => refuse(shared, stream, descriptor),
        }
    };
    loop {
        let drain = shared.drain.changed();
        if shared.drain.stage() > Stage::Serve {
            break;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accept(accepted),
                Err(error) => back_off(&error).await,
            },
            () = drain => {}
        }
    }
    // These clients are connected already, as far as they know.
    let listener = listener.into_std()?;
    while let Ok((stream, peer)) = listener.accept() {
        stream.set_nonblocking(true)?;
        accept((TcpStream::from_std(stream)?, peer));
    }
    Ok(())
}

async fn back_off(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::error!(%error, "cannot accept a connection");
        sleep(ACCEPT_AGAIN).await;
    }
}

/// Tells a client that there are too many. Not over TLS, where that would take a handshake.
fn refuse(shared: &Arc<Shared>, stream: TcpStream, descriptor: OwnedPlace) {
    shared.note_overload(Overload::Connections);
    let max = shared.bounds.max_connections.saturating_add(REFUSALS_MAX);
    if shared.tls.is_some() {
        return;
    }
    if let Some(live) = shared.drain.connect(max) {
        tokio::spawn(async move {
            _ = timeout(REFUSAL, write_refusal(stream)).await;
            drop((live, descriptor));
        });
    }
}

async fn write_refusal(mut stream: TcpStream) -> io::Result<()> {
    let body = error::body("TOO_MANY_CONNECTIONS", "the gateway has too many connections");
    let length = body.len();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    stream.shutdown().await?;
    // To close before the request is read would reset the connection, and lose the answer.
    let mut scratch = [0; 4096];
    while stream.read(&mut scratch).await? > 0 {}
    Ok(())
}

async fn sweep(worker: Arc<Worker>) {
    let mut ticks = interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        worker.pools.iter().for_each(|pool| pool.sweep());
    }
}
