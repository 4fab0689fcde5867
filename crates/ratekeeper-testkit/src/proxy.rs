//! A TCP proxy that injects faults.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// How soon an idle connection notices a change.
const TICK: Duration = Duration::from_millis(10);

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Data of the server is delayed this long.
    Delay(Duration),
    /// Data of both sides is discarded. Connections stay open, and new ones are accepted.
    BlackHole,
    /// Connections are reset, and new ones are closed.
    Cut,
    /// Data of the server is replaced by noise of the same length.
    Garbage,
    /// Data of the current connections is discarded, also under later faults, until [`Cut`](Fault::Cut)
    /// resets them. New connections work.
    HalfOpen,
}

/// A proxy between a client and a server on loopback.
pub struct FaultProxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: u16,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

struct ProxyState {
    fault: Fault,
    accepted: u64,
    /// Connections numbered below this are half open.
    silent: u64,
    live: u64,
    stopped: bool,
}

/// What the proxy does with data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Forward,
    Delay(Duration),
    Discard,
    Garble,
    Reset,
}

struct Connection {
    number: u64,
    client: TcpStream,
    server: Option<TcpStream>,
    closed: AtomicBool,
    shared: Arc<Shared>,
    /// The last field: dropped after the streams are closed.
    _counted: CountedConnection,
}

/// Counts a connection until it is dropped.
struct CountedConnection(Arc<Shared>);

impl FaultProxy {
    /// Starts a proxy to a port on loopback, without a fault.
    pub fn start(target_port: u16) -> FaultProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let state =
            ProxyState { fault: Fault::None, accepted: 0, silent: 0, live: 0, stopped: false };
        let changed = Condvar::new();
        let shared = Arc::new(Shared { target: target_port, state: Mutex::new(state), changed });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        FaultProxy { port, shared, acceptor: Some(acceptor) }
    }

    /// Returns `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns how many connections were accepted.
    pub fn connections(&self) -> u64 {
        self.shared.state().accepted
    }

    /// Sets the fault. When this returns, it applies to all data that is read, and after [`Fault::Cut`] no
    /// connection is left.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        state.fault = fault;
        if fault == Fault::HalfOpen {
            state.silent = state.accepted;
        }
        self.shared.changed.notify_all();
        while fault == Fault::Cut && state.live > 0 {
            state = self.shared.wait(state, TICK);
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.set(Fault::Cut);
        // The acceptor checks whether to stop when it accepts a connection.
        _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, ProxyState>,
        time: Duration,
    ) -> MutexGuard<'a, ProxyState> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            let mut state = self.state();
            if state.stopped {
                return;
            }
            let number = state.accepted;
            state.accepted += 1;
            if state.fault != Fault::Cut {
                state.live += 1;
                drop(state);
                self.connect(number, client, CountedConnection(Arc::clone(self)));
            }
        }
    }

    fn connect(self: &Arc<Shared>, number: u64, client: TcpStream, counted: CountedConnection) {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)).ok();
        for stream in server.iter().chain([&client]) {
            stream.set_nodelay(true).expect("a socket option");
            stream.set_read_timeout(Some(TICK)).expect("a socket option");
            stream.set_write_timeout(Some(TICK)).expect("a socket option");
        }
        let (shared, closed) = (Arc::clone(self), AtomicBool::new(false));
        let connection =
            Arc::new(Connection { number, client, server, closed, shared, _counted: counted });
        let other = Arc::clone(&connection);
        thread::spawn(move || other.run(Connection::to_server));
        thread::spawn(move || connection.run(Connection::to_client));
    }

    fn action(&self, number: u64) -> Action {
        let state = self.state();
        match state.fault {
            Fault::Cut => Action::Reset,
            _ if number < state.silent => Action::Discard,
            Fault::BlackHole => Action::Discard,
            Fault::Garbage => Action::Garble,
            Fault::Delay(time) => Action::Delay(time),
            Fault::None | Fault::HalfOpen => Action::Forward,
        }
    }
}

impl Connection {
    fn run(&self, direction: fn(&Connection) -> io::Result<()>) {
        // An error means that the connection is closed, and this closes the other side too.
        _ = direction(self);
        self.closed.store(true, Ordering::Release);
        if self.shared.action(self.number) != Action::Reset {
            // Wakes the other direction before its next tick.
            _ = self.client.shutdown(Shutdown::Both);
            _ = self.server.as_ref().map(|server| server.shutdown(Shutdown::Both));
        }
    }

    fn to_server(&self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = self.read(&self.client, &mut buffer)?;
            match (self.shared.action(self.number), &self.server) {
                (Action::Reset, _) => return Ok(()),
                (Action::Discard, _) => {}
                (_, Some(server)) => self.write(server, &buffer[..read])?,
                (_, None) => return Ok(()),
            }
        }
    }

    fn to_client(&self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        while let Some(server) = &self.server
            && let Ok(read) = self.read(server, &mut buffer)
        {
            match self.wait_for_delay() {
                Action::Reset => return Ok(()),
                Action::Discard => continue,
                Action::Garble => garble(&mut buffer[..read]),
                Action::Forward | Action::Delay(_) => {}
            }
            self.write(&self.client, &buffer[..read])?;
        }
        self.linger();
        Ok(())
    }

    /// Waits for the delay, which may change meanwhile, and returns what to do then.
    fn wait_for_delay(&self) -> Action {
        let begun = Instant::now();
        loop {
            let action = self.shared.action(self.number);
            let Action::Delay(time) = action else { return action };
            let Some(left) = time.checked_sub(begun.elapsed()) else { return action };
            drop(self.shared.wait(self.shared.state(), left));
        }
    }

    /// Hides from the client that the server has closed the connection, while data is discarded.
    fn linger(&self) {
        while self.shared.action(self.number) == Action::Discard && !self.is_closed() {
            drop(self.shared.wait(self.shared.state(), TICK));
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Reads at least one byte. The end of the stream is an error.
    fn read(&self, mut from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(|| from.read(buffer))
    }

    fn write(&self, mut to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.retry(|| to.write(bytes))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Retries after timeouts, until the connection is closed or has to be reset.
    fn retry(&self, mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match attempt() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if is_timeout(&error) => {}
                done => return done,
            }
            if self.is_closed() || self.shared.action(self.number) == Action::Reset {
                return Err(ErrorKind::ConnectionReset.into());
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.shared.action(self.number) == Action::Reset {
            // Closing without lingering sends a reset.
            for stream in self.server.iter().chain([&self.client]) {
                _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            }
        }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.state().live -= 1;
        self.0.changed.notify_all();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Replaces bytes by noise that is not valid in the Redis protocol, the same in every run.
fn garble(bytes: &mut [u8]) {
    let mut noise = 0x9E37_79B9_7F4A_7C15_u64;
    for byte in bytes {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        *byte = (noise >> 32) as u8 | 0x80;
    }
}
