//! The `ratekeeper` binary under test.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Output, Stdio};

use crate::http1::Client;
use crate::process::Process;

/// The address of a listener on loopback whose port the system picks.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// A listener of `ratekeeper serve` or `ratekeeper gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The HTTP API of `serve`.
    Http,
    /// The gRPC service of `serve`.
    Grpc,
    /// The Redis protocol of `serve`.
    Resp,
    /// The admin listener of both.
    Admin,
    /// The reverse proxy of `gateway`.
    Gateway,
}

impl Listener {
    /// The option that sets its address.
    fn option(self) -> &'static str {
        match self {
            Listener::Http => "--http",
            Listener::Grpc => "--grpc",
            Listener::Resp => "--resp",
            Listener::Admin => "--admin",
            Listener::Gateway => "--listen",
        }
    }

    /// What precedes `SCHEME://ADDRESS` in the line that announces it at startup.
    fn announcement(self) -> &'static str {
        match self {
            Listener::Http => "http: ",
            Listener::Grpc => "envoy: ",
            Listener::Resp => "redis: ",
            Listener::Admin => "admin: ",
            Listener::Gateway => "listening on ",
        }
    }

    fn announced(self, log: &str) -> Option<SocketAddr> {
        let line = log.lines().find_map(|line| line.strip_prefix(self.announcement()))?;
        let (_, url) = line.split_once("://")?;
        let end = url.find([' ', '/']).unwrap_or(url.len());
        url[..end].parse().ok()
    }
}

/// The start of the line that `serve` announces last but for a hint, and `gateway` before its admin
/// listener.
const READY: &str = "policy: ";

/// How to start the binary: its subcommand, listeners, options and environment.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerBuilder {
    program: OsString,
    subcommand: &'static str,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    shell: Option<String>,
    /// Listeners on any free port, unless the arguments say otherwise; all others are off.
    listeners: Option<Vec<Listener>>,
}

impl ServerBuilder {
    /// Prepares `ratekeeper serve`. `program` is `env!("CARGO_BIN_EXE_ratekeeper")`.
    pub fn serve(program: &str) -> Self {
        Self::new(program, "serve")
    }

    /// Prepares `ratekeeper gateway`.
    pub fn gateway(program: &str) -> Self {
        Self::new(program, "gateway").listen(&[Listener::Gateway])
    }

    fn new(program: &str, subcommand: &'static str) -> Self {
        Self {
            program: program.into(),
            subcommand,
            args: Vec::new(),
            env: Vec::new(),
            shell: None,
            listeners: None,
        }
    }

    /// Opens these listeners, on any free port unless an argument sets the address, and disables the
    /// others that are on by default. Without this, nothing is said about listeners.
    pub fn listen(mut self, listeners: &[Listener]) -> Self {
        self.listeners = Some(listeners.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the binary from bash, after this script.
    pub fn after_script(mut self, script: &str) -> Self {
        self.shell = Some(script.into());
        self
    }

    /// Returns the command that [`start`](Self::start) and [`run`](Self::run) execute.
    pub fn command(&self) -> Command {
        let mut command = match &self.shell {
            None => Command::new(&self.program),
            Some(script) => {
                let mut bash = Command::new("bash");
                bash.args(["-c", &format!("{script}\nexec \"$@\""), "bash"]).arg(&self.program);
                bash
            }
        };
        command.arg(self.subcommand);
        for (listener, address) in self.listener_args() {
            command.args([listener.option(), address]);
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn listener_args(&self) -> Vec<(Listener, &'static str)> {
        let Some(open) = &self.listeners else { return Vec::new() };
        let by_default: &[Listener] = match self.subcommand {
            "serve" => &[Listener::Http, Listener::Resp, Listener::Admin],
            _ => &[Listener::Admin],
        };
        let closed = by_default.iter().filter(|listener| !open.contains(listener));
        let all = open.iter().map(|listener| (*listener, ANY_PORT));
        all.chain(closed.map(|listener| (*listener, "off")))
            .filter(|(listener, _)| !self.is_given(*listener))
            .collect()
    }

    fn is_given(&self, listener: Listener) -> bool {
        self.args.iter().any(|arg| arg == listener.option())
    }

    /// Starts the server, and waits until it has announced its listeners.
    ///
    /// # Panics
    ///
    /// If it exits, or is not ready after [`TIMEOUT`](crate::TIMEOUT).
    pub fn start(&self) -> Server {
        let mut process = Process::spawn(&mut self.command());
        let is_expected = |listener: &Listener| !self.is_off(*listener);
        let expected: Vec<_> = self
            .listeners
            .iter()
            .flatten()
            .copied()
            .chain(self.given())
            .filter(is_expected)
            .collect();
        process.wait_until_ready("ratekeeper", |process| {
            let log = process.log();
            log.lines().any(|line| line.starts_with(READY))
                && expected.iter().all(|listener| listener.announced(&log).is_some())
        });
        Server { process }
    }

    /// The listeners whose address an argument sets.
    fn given(&self) -> impl Iterator<Item = Listener> {
        let all = [Listener::Http, Listener::Grpc, Listener::Resp, Listener::Admin];
        all.into_iter().filter(|listener| self.is_given(*listener))
    }

    fn is_off(&self, listener: Listener) -> bool {
        self.args.windows(2).any(|pair| pair[0] == listener.option() && pair[1] == "off")
    }

    /// Runs the binary until it exits, such as with a configuration that is rejected.
    pub fn run(&self) -> Output {
        self.command().stdin(Stdio::null()).output().expect("the binary starts")
    }
}

/// A running server, killed on drop. If the test fails, its log is printed.
pub struct Server {
    process: Process,
}

impl Server {
    /// Returns the address of a listener, as announced.
    ///
    /// # Panics
    ///
    /// If the server has no such listener.
    pub fn address(&self, listener: Listener) -> SocketAddr {
        let address = listener.announced(&self.log());
        address.unwrap_or_else(|| panic!("no {listener:?} listener was announced"))
    }

    /// Returns the address of the HTTP API.
    pub fn http(&self) -> SocketAddr {
        self.address(Listener::Http)
    }

    /// Returns the address of the gRPC service.
    pub fn grpc(&self) -> SocketAddr {
        self.address(Listener::Grpc)
    }

    /// Returns the address of the Redis protocol.
    pub fn resp(&self) -> SocketAddr {
        self.address(Listener::Resp)
    }

    /// Returns the address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.address(Listener::Admin)
    }

    /// Returns the address of the reverse proxy.
    pub fn gateway(&self) -> SocketAddr {
        self.address(Listener::Gateway)
    }

    /// Returns the metrics page of the admin listener.
    pub fn metrics(&self) -> String {
        Client::connect(self.admin()).get("/metrics").body
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
