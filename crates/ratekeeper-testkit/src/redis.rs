//! One Redis or Valkey server.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use crate::resp::{Connection, Reply};
use crate::tls;
use crate::wait::{TIMEOUT, wait_until};

/// How often another port is tried when somebody was quicker to take one.
const PORTS: usize = 10;

const BASE: [&str; 10] = [
    "--save",
    "",
    "--appendonly",
    "no",
    "--bind",
    "127.0.0.1",
    "--protected-mode",
    "no",
    "--daemonize",
    "no",
];

/// A server on a loopback port of its own, that keeps nothing on disk.
pub struct RedisServer {
    program: PathBuf,
    args: Vec<String>,
    port: u16,
    tls: bool,
    password: Option<String>,
    state: Mutex<State>,
    dir: TempDir,
}

#[derive(Default)]
struct State {
    process: Option<Process>,
    paused: bool,
}

enum Failure {
    PortTaken,
    Other(String),
}

impl RedisServer {
    /// Starts `redis-server`.
    pub fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// Starts `redis-server` with more options, like `["--maxmemory", "2mb"]`. The password of
    /// `--requirepass` becomes part of the URL.
    pub fn start_with(options: &[&str]) -> RedisServer {
        RedisServer::plain(&programs::redis_server(), options)
    }

    /// Starts `valkey-server`.
    pub fn valkey() -> RedisServer {
        RedisServer::valkey_with(&[])
    }

    /// Starts `valkey-server` with more options.
    pub fn valkey_with(options: &[&str]) -> RedisServer {
        RedisServer::plain(&programs::valkey_server(), options)
    }

    /// Starts `redis-server` with TLS and nothing but TLS. Its certificate is good for 127.0.0.1
    /// and localhost, to whoever trusts [`ca_pem`](Self::ca_pem).
    pub fn start_tls() -> RedisServer {
        RedisServer::launch(&programs::redis_server(), true, |dir, port| {
            tls::write_certificates(dir);
            let port = port.to_string();
            let options = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"];
            let files = ["--tls-ca-cert-file", tls::CA, "--tls-cert-file", tls::CERTIFICATE];
            let key = ["--tls-key-file", tls::KEY];
            strings(&[&BASE[..], &options, &files, &key].concat())
        })
    }

    fn plain(program: &Path, options: &[&str]) -> RedisServer {
        RedisServer::launch(program, false, |_, port| {
            strings(&[&BASE[..], &["--port", &port.to_string()], options].concat())
        })
    }

    /// Starts `program` in a folder and on a port, with the arguments that `args` makes of both.
    pub(crate) fn launch(
        program: &Path,
        tls: bool,
        args: impl Fn(&Path, u16) -> Vec<String>,
    ) -> RedisServer {
        for _ in 0..PORTS {
            let dir = temp_dir();
            let port = free_port();
            let args = args(dir.path(), port);
            let password = value_of("--requirepass", &args);
            let program = program.to_path_buf();
            let server =
                RedisServer { program, args, port, tls, password, state: Mutex::default(), dir };
            match server.try_start() {
                Ok(()) => return server,
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(failure)) => panic!("{failure}"),
            }
        }
        panic!("no free port in {PORTS} tries");
    }

    fn try_start(&self) -> Result<(), Failure> {
        let mut process = Process::spawn_in(self.dir.path(), &self.program, &self.args);
        let begun = Instant::now();
        while !self.is_answered_by(process.id()) {
            if process.has_exited() {
                return Err(self.failure(&process, "exited"));
            }
            if begun.elapsed() > TIMEOUT {
                return Err(self.failure(&process, "does not reply"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        *self.state() = State { process: Some(process), paused: false };
        Ok(())
    }

    fn failure(&self, process: &Process, what: &str) -> Failure {
        let tail = process.log_tail();
        if tail.contains("already in use") || tail.contains("Failed listening") {
            return Failure::PortTaken;
        }
        let program = self.program.display();
        Failure::Other(format!("{program} on port {} {what}; its log ends:\n{tail}", self.port))
    }

    /// Whether it is our process that answers, and not another that was quicker to take the port.
    fn is_answered_by(&self, id: u32) -> bool {
        let info = if self.tls {
            self.cli(&["INFO", "server"]).unwrap_or_default()
        } else {
            self.call(&["INFO", "server"]).map(|info| info.text()).unwrap_or_default()
        };
        info.lines().any(|line| line.trim() == format!("process_id:{id}"))
    }

    /// Where it is: `redis://127.0.0.1:PORT`, or `rediss://` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let login = self.password.as_ref().map(|word| format!(":{word}@")).unwrap_or_default();
        format!("{scheme}://{login}127.0.0.1:{}", self.port)
    }

    /// Its port, which it keeps when it is restarted.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The authority that signed its certificate, if it has TLS.
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.dir.path().join(tls::CA)).expect("only start_tls has a certificate")
    }

    /// Whether it runs and is not paused.
    pub fn is_up(&self) -> bool {
        let state = self.state();
        state.process.is_some() && !state.paused
    }

    /// Ends it without warning.
    pub fn kill(&self) {
        *self.state() = State::default();
    }

    /// Starts it again on the same port, empty. Kills it first if it runs.
    pub fn restart(&self) {
        self.kill();
        let begun = Instant::now();
        loop {
            match self.try_start() {
                Ok(()) => return,
                Err(Failure::PortTaken) if begun.elapsed() < TIMEOUT => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(Failure::PortTaken) => panic!("port {} was taken by another", self.port),
                Err(Failure::Other(failure)) => panic!("{failure}"),
            }
        }
    }

    /// Stops it as if it hung: its connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP", true);
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal("-CONT", false);
    }

    fn signal(&self, signal: &str, paused: bool) {
        let mut state = self.state();
        state.process.as_ref().expect("the server runs").signal(signal);
        state.paused = paused;
    }

    /// What `redis-cli` prints for this command.
    pub fn command(&self, args: &[&str]) -> String {
        self.cli(args).unwrap_or_else(|error| panic!("redis-cli {}: {error}", args.join(" ")))
    }

    fn cli(&self, args: &[&str]) -> Result<String, String> {
        let mut cli = Command::new(programs::redis_cli());
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if self.tls {
            cli.arg("--tls").arg("--cacert").arg(self.dir.path().join(tls::CA));
        }
        if let Some(password) = &self.password {
            cli.env("REDISCLI_AUTH", password);
        }
        output(cli.args(args))
    }

    /// One command over a connection of its own, without TLS.
    pub(crate) fn call(&self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut connection = Connection::open(self.port)?;
        if let Some(password) = &self.password {
            connection.call(&["AUTH", password])?;
        }
        connection.call(args)
    }

    /// The answer as text, empty if there is none: for asking again and again.
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        self.call(args).map(|reply| reply.text()).unwrap_or_default()
    }

    /// A field of `INFO replication`.
    pub(crate) fn replication(&self, field: &str) -> Option<String> {
        let info = self.ask(&["INFO", "replication"]);
        let (_, value) = info
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)?;
        Some(value.trim().to_string())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until what the masters among these have now is on their replicas too.
pub(crate) fn wait_until_replicated(servers: &[RedisServer]) {
    let up = || servers.iter().filter(|server| server.is_up());
    let number = |server: &RedisServer, field| server.replication(field)?.parse::<u64>().ok();
    let goals: HashMap<_, _> = up()
        .filter_map(|server| Some((server.port, number(server, "master_repl_offset")?)))
        .collect();
    wait_until("the replicas are in step with their masters", || {
        up().all(|server| {
            let Some(master) = server.replication("master_port") else { return true };
            let goal = master.parse().ok().and_then(|port: u16| goals.get(&port)).copied();
            number(server, "slave_repl_offset") >= goal
        })
    });
}

/// What a program prints, if it succeeds; and what it complains of, if it does not.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{text}\n{}", String::from_utf8_lossy(&output.stderr).trim()))
}

pub(crate) fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(ToString::to_string).collect()
}

fn value_of(option: &str, args: &[String]) -> Option<String> {
    let at = args.iter().position(|arg| arg == option)?;
    args.get(at + 1).cloned()
}
