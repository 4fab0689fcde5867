//! Connections of the HTTP door: workers, bounds, and an orderly end.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::HttpDoor;
use super::measured;
use crate::serve::ending::Ending;

/// Bounds on what callers may do to the door.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connections_max: usize,
    pub(crate) headers_within: Duration,
}

const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Serves connections until the end begins. Their tasks go on, and count themselves in `ending`.
pub(crate) async fn serve(
    listener: StdListener,
    door: Arc<HttpDoor>,
    limits: Limits,
    ending: Ending,
) -> io::Result<()> {
    let _listening = ending.join();
    let listener = TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        let begins = ending.begins();
        if ending.has_begun() {
            break;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    // One too many is closed: there is nobody to tell it who would not take up room.
                    let Ok(permit) = room.clone().try_acquire_owned() else {
                        door.meters.http.reject();
                        continue;
                    };
                    let connected = door.meters.http.connect();
                    let _ = stream.set_nodelay(true);
                    let (door, ending, live) = (door.clone(), ending.clone(), ending.join());
                    tokio::spawn(async move {
                        connection(stream, peer, door, limits, ending).await;
                        drop((permit, live, connected));
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "the HTTP door cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            _ = sweep.tick() => door.held.sweep(door.now_us()),
            () = begins => {}
        }
    }
    Ok(())
}

async fn connection<S>(
    stream: S,
    peer: SocketAddr,
    door: Arc<HttpDoor>,
    limits: Limits,
    ending: Ending,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(measured::answer(door, request, peer.ip()).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.headers_within).max_headers(64);
    http.pipeline_flush(true);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let begins = ending.begins();
    if !ending.has_begun() {
        tokio::select! {
            // A client that goes away is no news.
            _ = connection.as_mut() => return,
            () = begins => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
