//! The accept loop of the HTTP/1 servers: a thread for each connection, which ends when the server stops.

use std::collections::HashMap;
use std::mem;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::http1::{Head, Wire};
use crate::port::free_address;
use crate::wait::TIMEOUT;

/// Connections at a time of the servers that have no other limit; further ones are closed.
pub(crate) const CONNECTIONS_MAX: usize = 512;

/// How long the acceptor waits after a failure, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(5);

/// A running server, stopped on drop.
pub(crate) struct HttpServer {
    address: SocketAddr,
    shared: Arc<ServerShared>,
    acceptor: Option<JoinHandle<()>>,
}

struct ServerShared {
    serve: Box<ServeFn>,
    connections_max: usize,
    running: Running,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// Responds to a request whose body it has yet to read, and returns whether to keep the connection open.
type ServeFn = dyn Fn(Head, &mut Wire, &Running) -> bool + Send + Sync;

/// Whether the server runs, and its open connections.
#[derive(Default)]
pub(crate) struct Running {
    state: Mutex<RunningState>,
    stopping: Condvar,
    closed: Condvar,
}

#[derive(Default)]
struct RunningState {
    is_stopped: bool,
    accepted: u64,
    /// Connections by number.
    open: HashMap<u64, Arc<TcpStream>>,
}

/// Removes a connection from the open ones on drop.
struct OpenConnection<'a> {
    number: u64,
    running: &'a Running,
}

impl HttpServer {
    /// Starts to accept connections. If `serve` returns false, the connection is closed.
    pub(crate) fn start(
        listener: TcpListener,
        connections_max: usize,
        serve: impl Fn(Head, &mut Wire, &Running) -> bool + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(ServerShared {
            serve: Box::new(serve),
            connections_max,
            running: Running::default(),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many requests it has received.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Returns on how many connections it has received requests.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for HttpServer {
    /// Closes the listener and all connections. Waits until they are closed, but at most [`TIMEOUT`].
    fn drop(&mut self) {
        self.shared.running.stop();
        // The acceptor checks whether to stop when it accepts a connection.
        _ = TcpStream::connect_timeout(&self.address, TIMEOUT);
        _ = self.acceptor.take().map(JoinHandle::join);
        self.shared.running.wait_until_closed();
    }
}

impl ServerShared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.running.is_stopped() {
                return;
            }
            let Ok((stream, _)) = accepted else {
                thread::sleep(ACCEPT_BACKOFF);
                continue;
            };
            let stream = Arc::new(stream);
            let Some(number) = self.running.open(&stream, self.connections_max) else { continue };
            let shared = Arc::clone(self);
            let connection =
                thread::Builder::new().spawn(move || shared.connection(number, stream));
            if connection.is_err() {
                drop(OpenConnection { number, running: &self.running });
            }
        }
    }

    fn connection(&self, number: u64, stream: Arc<TcpStream>) {
        // Dropped after the wire, so that the removed stream is the last reference and is closed with it.
        let _open = OpenConnection { number, running: &self.running };
        let mut wire = Wire::shared(stream);
        let mut is_first = true;
        while let Ok(head) = wire.try_head() {
            let connections = usize::from(mem::take(&mut is_first));
            self.connections.fetch_add(connections, Ordering::SeqCst);
            self.requests.fetch_add(1, Ordering::SeqCst);
            if !(self.serve)(head, &mut wire, &self.running) {
                return;
            }
        }
    }
}

impl Running {
    /// Waits for `time`, and returns whether the server still runs. Returns at once when it stops.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        if time.is_zero() {
            return !self.is_stopped();
        }
        let is_running = |state: &mut RunningState| !state.is_stopped;
        let waited = self.stopping.wait_timeout_while(self.state(), time, is_running);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }

    fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    fn open(&self, stream: &Arc<TcpStream>, connections_max: usize) -> Option<u64> {
        let mut state = self.state();
        if state.is_stopped || state.open.len() >= connections_max {
            return None;
        }
        let number = state.accepted;
        state.accepted += 1;
        state.open.insert(number, Arc::clone(stream));
        Some(number)
    }

    fn stop(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        self.stopping.notify_all();
        for stream in state.open.values() {
            // Ends what the connection's thread waits for.
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn wait_until_closed(&self) {
        let is_open = |state: &mut RunningState| !state.open.is_empty();
        _ = self.closed.wait_timeout_while(self.state(), TIMEOUT, is_open);
    }

    fn state(&self) -> MutexGuard<'_, RunningState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.running.state().open.remove(&self.number);
        self.running.closed.notify_all();
    }
}

/// Returns a listener on any free port of loopback.
pub(crate) fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")
}

/// Returns a listener on a port that no outgoing connection uses while the listener is closed.
pub(crate) fn listener_outside_ephemeral_ports() -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(free_address()) {
            Ok(listener) => return listener,
            // Another process has bound the port meanwhile.
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "no free port: {error}"),
        }
    }
}
