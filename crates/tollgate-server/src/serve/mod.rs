//! `tollgate serve`: decisions for other programs, each protocol through a door of its own.

mod ending;
mod options;
mod resp;
mod supervisor;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Builder;

use crate::failure::Failure;
use crate::policy_file::PolicyFile;
use ending::Ending;
pub(crate) use options::Serve;
use resp::{Bounds, Passwords, RespDoor};
use supervisor::Supervisor;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
        log.with_target(false).with_max_level(tracing::Level::INFO).init();
        let policy = PolicyFile::open(self.policy.as_deref(), &[])?;
        let ending = Ending::default();
        let workers = self.workers();
        let mut listening = Vec::new();
        if let Some(address) = self.resp {
            let door =
                Arc::new(RespDoor::new(policy.gate().clone(), self.passwords()?, self.bounds()));
            let listener = listen(address)?;
            listening.push(("redis", listener.local_addr().map_err(Failure::io)?));
            for index in 0..workers {
                start_resp(index, &listener, &door, &ending).map_err(Failure::io)?;
            }
        }
        let supervisor = Supervisor::new(policy, ending, self.drain).map_err(Failure::io)?;
        announce(&listening, workers, self.policy.as_deref());
        supervisor.run();
        Ok(())
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            connections_max: self.max_connections as usize,
            idle: self.idle_timeout,
            stuck: self.write_timeout,
        }
    }

    fn passwords(&self) -> Result<Passwords, Failure> {
        let Some(path) = &self.resp_passwords else { return Ok(Passwords::default()) };
        let name = path.display();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::input(format!("cannot read {name}: {error}")))?;
        let lines: Vec<String> = text.lines().map(str::trim).map(String::from).collect();
        let passwords: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
        match passwords.is_empty() {
            true => Err(Failure::input(format!("{name} has no password in it; one a line"))),
            false => Ok(Passwords::new(passwords)),
        }
    }

    fn workers(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from);
        self.workers.map_or_else(cores, usize::from)
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bind = || -> io::Result<TcpListener> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    bind().map_err(|error| Failure::io(format!("cannot listen on {address}: {error}")))
}

/// Starts a worker: a thread with a runtime and connections of its own.
fn start_resp(
    index: usize,
    listener: &TcpListener,
    door: &Arc<RespDoor>,
    ending: &Ending,
) -> io::Result<()> {
    let (listener, door, ending) = (listener.try_clone()?, Arc::clone(door), ending.clone());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let run = async move {
        if let Err(error) = resp::serve(listener, door, ending).await {
            tracing::error!(%error, "a worker cannot listen");
        }
        // Connections go on; the process ends when they have.
        std::future::pending::<()>().await;
    };
    let thread = thread::Builder::new().name(format!("resp-{index}"));
    thread.spawn(move || runtime.block_on(run)).map(drop)
}

fn announce(listening: &[(&str, SocketAddr)], workers: usize, policy: Option<&Path>) {
    let workers = if workers == 1 { "1 worker".to_string() } else { format!("{workers} workers") };
    let policy = policy.map_or("none".to_string(), |path| path.display().to_string());
    let mut text = String::new();
    for (scheme, address) in listening {
        text += &format!("listening on {scheme}://{address} ({workers})\n");
    }
    // It serves also if nobody listens to what it says.
    let _ = writeln!(io::stderr(), "{text}policy: {policy}");
}
