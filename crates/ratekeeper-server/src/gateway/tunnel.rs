//! A tunnel: bytes both ways after a switch of protocols, as for a WebSocket.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ratekeeper::DependencyPermit;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::sleep_until;

use super::client::Client;
use super::state::WorkerState;
use super::upstream_connection::UpstreamConnection;
use crate::listener::Ticks;

const BUFFER: usize = 16 * 1024;

/// Runs until both sides have closed, one fails, or no byte has come for `--tunnel-timeout`. The client
/// counts as an open connection until then, and the permits of dependencies are kept.
pub(super) async fn run(
    worker: Arc<WorkerState>,
    client: Arc<Client>,
    connection: UpstreamConnection,
    _calls: Vec<DependencyPermit>,
    upgrade: OnUpgrade,
) {
    let gateway = &worker.gateway;
    if let Err(error) = join(connection, upgrade, gateway.ticks, gateway.timeouts.tunnel).await {
        tracing::debug!(peer = %client.peer, %error, "tunnel ended");
    }
}

async fn join(
    connection: UpstreamConnection,
    upgrade: OnUpgrade,
    ticks: Ticks,
    idle_timeout: Duration,
) -> io::Result<()> {
    let (upstream, early, _permits) = connection.into_stream().await.map_err(io::Error::other)?;
    let client = TokioIo::new(upgrade.await.map_err(io::Error::other)?);
    let (client_reads, mut client_writes) = split(client);
    let (upstream_reads, upstream_writes) = split(upstream);
    client_writes.write_all(&early).await?;
    client_writes.flush().await?;
    let last_us = AtomicU64::new(ticks.now_us());
    let note = || last_us.store(ticks.now_us(), Ordering::Relaxed);
    let both = async {
        tokio::try_join!(
            pump(client_reads, upstream_writes, note),
            pump(upstream_reads, client_writes, note)
        )
    };
    tokio::select! {
        done = both => done.map(|_| ()),
        () = silence(ticks, &last_us, idle_timeout) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    note: impl Fn(),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        note();
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
        note();
    }
}

async fn silence(ticks: Ticks, last_us: &AtomicU64, idle_timeout: Duration) {
    loop {
        let last = last_us.load(Ordering::Relaxed);
        sleep_until(ticks.instant(last) + idle_timeout).await;
        if last_us.load(Ordering::Relaxed) == last {
            return;
        }
    }
}
