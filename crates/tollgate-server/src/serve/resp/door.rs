//! Accepts connections.

use std::io::{self, Write};
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::RespDoor;
use super::connection::Worker;
use crate::serve::ending::Ending;

/// Out of file descriptors, most likely: some will be closed soon.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Serves connections until the end begins. Their tasks go on, and count themselves in `ending`. Each
/// worker runs this on a runtime of its own, with a clone of one listener.
pub(crate) async fn serve(
    listener: StdListener,
    door: Arc<RespDoor>,
    ending: Ending,
) -> io::Result<()> {
    let _listening = ending.join();
    let listener = TcpListener::from_std(listener)?;
    let worker = Arc::new(Worker::new(door, ending.clone()));
    loop {
        let begins = ending.begins();
        if ending.has_begun() {
            break;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => begin(stream, &worker, &ending),
                Err(error) => back_off(&error).await,
            },
            () = begins => {}
        }
    }
    // These clients are connected already, as far as they know.
    let listener = listener.into_std()?;
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        begin(TcpStream::from_std(stream)?, &worker, &ending);
    }
    Ok(())
}

fn begin(stream: TcpStream, worker: &Arc<Worker>, ending: &Ending) {
    let Some(connection) = Admitted::new(&worker.door) else { return refuse(stream) };
    let live = ending.join();
    // Without it answers only come later.
    let _ = stream.set_nodelay(true);
    let worker = Arc::clone(worker);
    tokio::spawn(async move {
        if let Err(error) = worker.serve(stream).await {
            tracing::debug!(%error, "connection failed");
        }
        drop((connection, live));
    });
}

/// Counts a connection until it is dropped.
struct Admitted(Arc<RespDoor>);

impl Admitted {
    fn new(door: &Arc<RespDoor>) -> Option<Self> {
        let before = door.counters.connections.fetch_add(1, Ordering::AcqRel);
        let admitted = Self(Arc::clone(door));
        let is_room = before < door.bounds.connections_max;
        let counter = if is_room { &door.counters.accepted } else { &door.counters.rejected };
        counter.fetch_add(1, Ordering::Relaxed);
        is_room.then_some(admitted)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// At once, or not at all: nobody waits for one who is not admitted.
fn refuse(stream: TcpStream) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(b"-ERR max number of clients reached\r\n");
    }
}

async fn back_off(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::error!(%error, "cannot accept a connection");
        sleep(ACCEPT_AGAIN).await;
    }
}
