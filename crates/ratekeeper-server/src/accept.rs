//! Accepts the connections of a door: bounded, over TLS if there is a certificate, and with an orderly
//! end.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::drain::{Drain, Stage};
use crate::tls::Tls;

/// Out of file descriptors, most likely: some will be closed soon.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// How long TLS may take to begin.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A client that has gone without a word is noticed after a few of these.
const PROBE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Listens at once, so that an address in use is told before anything else begins.
pub(crate) fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What answers connections. Each worker has one.
pub(crate) trait Door: Send + Sync + 'static {
    /// What a client may ask TLS to carry.
    const PROTOCOLS: &'static [&'static [u8]];

    /// Serves a connection until the client goes or the end comes.
    fn serve<S>(self: Arc<Self>, stream: S, peer: SocketAddr) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Tells a client that there are too many: at once or not at all, as nobody waits for it.
    fn refuse(_: TcpStream) {}
}

/// Where a door is; clones are one.
#[derive(Clone)]
pub(crate) struct Port {
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) seats: Arc<Seats>,
    /// Of which each connection takes one.
    pub(crate) descriptors: Arc<Room>,
    pub(crate) drain: Drain,
}

/// Serves connections until the end begins. Their tasks go on, and the drain counts them. Each worker
/// runs this on a runtime of its own, with a clone of one listener.
pub(crate) async fn serve<D: Door>(
    listener: StdListener,
    door: Arc<D>,
    port: Port,
) -> io::Result<()> {
    let _listening = port.drain.listen();
    let listener = TcpListener::from_std(listener)?;
    let ends = port.drain.reached(Stage::LastAnswers);
    let mut ends = std::pin::pin!(ends);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => begin(stream, peer, &door, &port),
                Err(error) => back_off(&error).await,
            },
            () = &mut ends => break,
        }
    }
    // These clients are connected already, as far as they know.
    let listener = listener.into_std()?;
    while let Ok((stream, peer)) = listener.accept() {
        stream.set_nonblocking(true)?;
        begin(TcpStream::from_std(stream)?, peer, &door, &port);
    }
    Ok(())
}

fn begin<D: Door>(stream: TcpStream, peer: SocketAddr, door: &Arc<D>, port: &Port) {
    let Some(descriptor) = port.descriptors.enter_owned() else {
        port.seats.refuse();
        tracing::warn!("no file descriptors are left for connections; raise the limit (ulimit -n)");
        return;
    };
    let Some(seat) = port.seats.take() else {
        // Over TLS that would take a handshake.
        if port.tls.is_none() {
            D::refuse(stream);
        }
        return;
    };
    let live = port.drain.join();
    // Without these answers come later, and some who are gone are noticed later.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&PROBE);
    let door = Arc::clone(door);
    match port.tls.clone() {
        None => tokio::spawn(async move {
            door.serve(stream, peer).await;
            drop((seat, descriptor, live));
        }),
        Some(tls) => {
            let drain = port.drain.clone();
            tokio::spawn(async move {
                match greet(&drain, tls.accept(stream, D::PROTOCOLS)).await {
                    Ok(stream) => door.serve(stream, peer).await,
                    Err(error) => tracing::debug!(%peer, %error, "no TLS"),
                }
                drop((seat, descriptor, live));
            })
        }
    };
}

/// Waits for TLS to begin: not for long, and not when the server ends.
async fn greet<T>(drain: &Drain, greeting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        greeted = timeout(HANDSHAKE, greeting) => greeted?,
        () = drain.reached(Stage::CloseIdle) => Err(io::ErrorKind::Interrupted.into()),
    }
}

async fn back_off(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::error!(%error, "cannot accept a connection");
        sleep(ACCEPT_AGAIN).await;
    }
}

/// How many of something there may be at a time, and are: questions under way, file descriptors.
pub(crate) struct Room {
    max: usize,
    taken: AtomicUsize,
}

/// One's place, free again when this is dropped.
pub(crate) struct Place<'r>(&'r Room);

/// The same, for those who outlive the room's owner.
pub(crate) struct OwnedPlace(Arc<Room>);

impl Room {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, taken: AtomicUsize::new(0) }
    }

    pub(crate) fn enter(&self) -> Option<Place<'_>> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = Place(self);
        (taken < self.max).then_some(place)
    }

    pub(crate) fn enter_owned(self: &Arc<Self>) -> Option<OwnedPlace> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = OwnedPlace(Arc::clone(self));
        (taken < self.max).then_some(place)
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for OwnedPlace {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many connections a door may have, and has had.
pub(crate) struct Seats {
    max: usize,
    open: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// A connection's place, free again when this is dropped.
pub(crate) struct Seat(Arc<Seats>);

impl Seats {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let (open, accepted, refused) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { max, open, accepted, refused })
    }

    fn take(self: &Arc<Self>) -> Option<Seat> {
        let open = self.open.fetch_add(1, Ordering::AcqRel);
        let seat = Seat(Arc::clone(self));
        let is_free = open < self.max;
        let counter = if is_free { &self.accepted } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        is_free.then_some(seat)
    }

    /// Counts a connection that has no seat for another reason.
    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Turned away because there were too many.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}
