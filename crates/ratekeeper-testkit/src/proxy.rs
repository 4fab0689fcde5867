//! A network that can be broken in every way that matters.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// How soon a connection on which nothing happens notices a change.
const TICK: Duration = Duration::from_millis(10);

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// What the server sends is held this long.
    Delay(Duration),
    /// What either side sends is swallowed. Connections stay open, and new ones are accepted.
    BlackHole,
    /// Connections are reset, and new ones are closed at once.
    Cut,
    /// What the server sends is replaced by noise of the same length.
    Garbage,
    /// Connections that exist now are silent from now on, even under later faults, and are only
    /// ended by [`Cut`](Fault::Cut). New ones work.
    HalfOpen,
}

/// A proxy between a client and a server on this machine.
pub struct FaultProxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: u16,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    fault: Fault,
    accepted: u64,
    /// Connections numbered below this are half open.
    silent: u64,
    live: u64,
    stopped: bool,
}

/// What happens to bytes on their way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    Wait(Duration),
    Vanish,
    Garble,
    Reset,
}

struct Link {
    number: u64,
    client: TcpStream,
    server: Option<TcpStream>,
    closed: AtomicBool,
    shared: Arc<Shared>,
    /// The last field, to be dropped when the streams are closed.
    _live: Live,
}

/// Counts a connection until it is dropped.
struct Live(Arc<Shared>);

impl FaultProxy {
    /// Starts a proxy to a port on this machine, without a fault.
    pub fn start(target_port: u16) -> FaultProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let state = State { fault: Fault::None, accepted: 0, silent: 0, live: 0, stopped: false };
        let changed = Condvar::new();
        let shared = Arc::new(Shared { target: target_port, state: Mutex::new(state), changed });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        FaultProxy { port, shared, acceptor: Some(acceptor) }
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.state().accepted
    }

    /// Changes what is wrong. When this returns, whatever is read on any connection meets the new
    /// fault, and after [`Fault::Cut`] no connection is left.
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
        // The acceptor sees that it is over when somebody comes.
        _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
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
                self.connect(number, client, Live(Arc::clone(self)));
            }
        }
    }

    fn connect(self: &Arc<Shared>, number: u64, client: TcpStream, live: Live) {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)).ok();
        for stream in server.iter().chain([&client]) {
            stream.set_nodelay(true).expect("a socket option");
            stream.set_read_timeout(Some(TICK)).expect("a socket option");
            stream.set_write_timeout(Some(TICK)).expect("a socket option");
        }
        let (shared, closed) = (Arc::clone(self), AtomicBool::new(false));
        let link = Arc::new(Link { number, client, server, closed, shared, _live: live });
        let other = Arc::clone(&link);
        thread::spawn(move || other.run(Link::to_server));
        thread::spawn(move || link.run(Link::to_client));
    }

    fn fate(&self, number: u64) -> Fate {
        let state = self.state();
        match state.fault {
            Fault::Cut => Fate::Reset,
            _ if number < state.silent => Fate::Vanish,
            Fault::BlackHole => Fate::Vanish,
            Fault::Garbage => Fate::Garble,
            Fault::Delay(time) => Fate::Wait(time),
            Fault::None | Fault::HalfOpen => Fate::Pass,
        }
    }
}

impl Link {
    fn run(&self, direction: fn(&Link) -> io::Result<()>) {
        // An error is a connection that ended, which is what is about to happen here too.
        _ = direction(self);
        self.closed.store(true, Ordering::Release);
        if self.shared.fate(self.number) != Fate::Reset {
            // The other direction need not wait for its next tick.
            _ = self.client.shutdown(Shutdown::Both);
            _ = self.server.as_ref().map(|server| server.shutdown(Shutdown::Both));
        }
    }

    fn to_server(&self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = self.read(&self.client, &mut buffer)?;
            match (self.shared.fate(self.number), &self.server) {
                (Fate::Reset, _) => return Ok(()),
                (Fate::Vanish, _) => {}
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
            match self.hold() {
                Fate::Reset => return Ok(()),
                Fate::Vanish => continue,
                Fate::Garble => garble(&mut buffer[..read]),
                Fate::Pass | Fate::Wait(_) => {}
            }
            self.write(&self.client, &buffer[..read])?;
        }
        self.linger();
        Ok(())
    }

    /// Waits as long as the delay wants, which may change meanwhile.
    fn hold(&self) -> Fate {
        let begun = Instant::now();
        loop {
            let fate = self.shared.fate(self.number);
            let Fate::Wait(time) = fate else { return fate };
            let Some(left) = time.checked_sub(begun.elapsed()) else { return fate };
            drop(self.shared.wait(self.shared.state(), left));
        }
    }

    /// The server is gone: keeps that from the client while nothing passes.
    fn linger(&self) {
        while self.shared.fate(self.number) == Fate::Vanish && !self.is_closed() {
            drop(self.shared.wait(self.shared.state(), TICK));
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Reads at least a byte. The end of the stream is an error.
    fn read(&self, mut from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        self.again(|| from.read(buffer))
    }

    fn write(&self, mut to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.again(|| to.write(bytes))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Tries until something is done, the connection is over or it is to be reset.
    fn again(&self, mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match attempt() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if is_timeout(&error) => {}
                done => return done,
            }
            if self.is_closed() || self.shared.fate(self.number) == Fate::Reset {
                return Err(ErrorKind::ConnectionReset.into());
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.shared.fate(self.number) == Fate::Reset {
            // Closing without lingering sends a reset.
            for stream in self.server.iter().chain([&self.client]) {
                _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.state().live -= 1;
        self.0.changed.notify_all();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Noise that is no answer in Redis's protocol, but the same in every run.
fn garble(bytes: &mut [u8]) {
    let mut noise = 0x9E37_79B9_7F4A_7C15_u64;
    for byte in bytes {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        *byte = (noise >> 32) as u8 | 0x80;
    }
}
