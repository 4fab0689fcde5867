//! A Redis or Valkey server.

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
use crate::process::{CommandError, Process, output, temp_dir};
use crate::programs;
use crate::resp::{RedisConnection, Reply};
use crate::tls;
use crate::wait::{TIMEOUT, wait_until};

/// How many ports are tried if another process binds a free port first.
const PORT_ATTEMPTS: usize = 10;

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

/// A server on a free loopback port, without persistence. Killed on drop.
pub struct RedisServer {
    program: PathBuf,
    args: Vec<String>,
    port: u16,
    tls: bool,
    password: Option<String>,
    state: Mutex<RunState>,
    dir: TempDir,
}

#[derive(Default)]
struct RunState {
    process: Option<Process>,
    paused: bool,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("port {0} is in use")]
    PortInUse(u16),
    #[error("{program} on port {port} {what}; its log ends with:\n{log}")]
    Failed { program: String, port: u16, what: &'static str, log: String },
}

impl RedisServer {
    /// Starts `redis-server`.
    pub fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// Starts `redis-server` with options such as `["--maxmemory", "2mb"]`. The password of `--requirepass`
    /// becomes part of the URL.
    pub fn start_with(options: &[&str]) -> RedisServer {
        RedisServer::plain(&programs::redis_server(), options)
    }

    /// Starts `valkey-server`.
    pub fn valkey() -> RedisServer {
        RedisServer::valkey_with(&[])
    }

    /// Starts `valkey-server` with options.
    pub fn valkey_with(options: &[&str]) -> RedisServer {
        RedisServer::plain(&programs::valkey_server(), options)
    }

    /// Starts `redis-server` with TLS only. Its certificate is for 127.0.0.1 and localhost, signed by
    /// [`ca_pem`](Self::ca_pem).
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

    /// Starts `program` with the arguments that `args` returns for its directory and port.
    pub(crate) fn launch(
        program: &Path,
        tls: bool,
        args: impl Fn(&Path, u16) -> Vec<String>,
    ) -> RedisServer {
        for _ in 0..PORT_ATTEMPTS {
            let dir = temp_dir();
            let port = free_port();
            let args = args(dir.path(), port);
            let password = value_of("--requirepass", &args);
            let program = program.to_path_buf();
            let server =
                RedisServer { program, args, port, tls, password, state: Mutex::default(), dir };
            match server.try_start() {
                Ok(()) => return server,
                Err(StartError::PortInUse(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no free port in {PORT_ATTEMPTS} attempts");
    }

    fn try_start(&self) -> Result<(), StartError> {
        let mut process = Process::spawn_in(self.dir.path(), &self.program, &self.args);
        let begun = Instant::now();
        while !self.is_served_by(process.id()) {
            if process.has_exited() {
                return Err(self.start_error(&process, "exited"));
            }
            if begun.elapsed() > TIMEOUT {
                return Err(self.start_error(&process, "does not reply"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        *self.state() = RunState { process: Some(process), paused: false };
        Ok(())
    }

    fn start_error(&self, process: &Process, what: &'static str) -> StartError {
        let (log, port) = (process.log_tail(), self.port);
        if log.contains("already in use") || log.contains("Failed listening") {
            return StartError::PortInUse(port);
        }
        StartError::Failed { program: self.program.display().to_string(), port, what, log }
    }

    /// Returns whether the process with this id serves the port, and not another that was bound first.
    fn is_served_by(&self, id: u32) -> bool {
        let info = if self.tls {
            self.cli(&["INFO", "server"]).unwrap_or_default()
        } else {
            self.call(&["INFO", "server"]).map(|info| info.text()).unwrap_or_default()
        };
        info.lines().any(|line| line.trim() == format!("process_id:{id}"))
    }

    /// Returns `redis://127.0.0.1:PORT`, or `rediss://` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let login = self.password.as_ref().map(|word| format!(":{word}@")).unwrap_or_default();
        format!("{scheme}://{login}127.0.0.1:{}", self.port)
    }

    /// Returns its port, which stays the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the certificate of the authority that signed its certificate.
    ///
    /// # Panics
    ///
    /// Without TLS.
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.dir.path().join(tls::CA)).expect("only start_tls has a certificate")
    }

    /// Returns whether it runs and is not paused.
    pub fn is_up(&self) -> bool {
        let state = self.state();
        state.process.is_some() && !state.paused
    }

    /// Kills it.
    pub fn kill(&self) {
        *self.state() = RunState::default();
    }

    /// Restarts it on the same port, without data. Kills it first if it runs.
    pub fn restart(&self) {
        self.kill();
        let begun = Instant::now();
        loop {
            match self.try_start() {
                Ok(()) => return,
                Err(StartError::PortInUse(_)) if begun.elapsed() < TIMEOUT => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Suspends it: its connections stay open, and it does not respond.
    pub fn pause(&self) {
        self.signal("-STOP", true);
    }

    /// Continues it after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal("-CONT", false);
    }

    fn signal(&self, signal: &str, paused: bool) {
        let mut state = self.state();
        state.process.as_ref().expect("the server runs").signal(signal);
        state.paused = paused;
    }

    /// Returns what `redis-cli` prints for this command.
    pub fn command(&self, args: &[&str]) -> String {
        self.cli(args).unwrap_or_else(|error| panic!("redis-cli {}: {error}", args.join(" ")))
    }

    fn cli(&self, args: &[&str]) -> Result<String, CommandError> {
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

    /// Sends one command over a new connection, without TLS.
    pub(crate) fn call(&self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut connection = RedisConnection::open(self.port)?;
        if let Some(password) = &self.password {
            connection.call(&["AUTH", password])?;
        }
        connection.call(args)
    }

    /// Sends one command and returns the reply as text, empty if there is none: for polling.
    pub(crate) fn poll(&self, args: &[&str]) -> String {
        self.call(args).map(|reply| reply.text()).unwrap_or_default()
    }

    /// Returns a field of `INFO replication`.
    pub(crate) fn replication(&self, field: &str) -> Option<String> {
        let info = self.poll(&["INFO", "replication"]);
        let (_, value) = info
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)?;
        Some(value.trim().to_string())
    }

    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the replicas have the data that their masters have now.
pub(crate) fn wait_until_replicated(servers: &[RedisServer]) {
    let up = || servers.iter().filter(|server| server.is_up());
    let number = |server: &RedisServer, field| server.replication(field)?.parse::<u64>().ok();
    let goals: HashMap<_, _> = up()
        .filter_map(|server| Some((server.port, number(server, "master_repl_offset")?)))
        .collect();
    wait_until("the replicas have the data of their masters", || {
        up().all(|server| {
            let Some(master) = server.replication("master_port") else { return true };
            let goal = master.parse().ok().and_then(|port: u16| goals.get(&port)).copied();
            number(server, "slave_repl_offset") >= goal
        })
    });
}

pub(crate) fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(ToString::to_string).collect()
}

fn value_of(option: &str, args: &[String]) -> Option<String> {
    let at = args.iter().position(|arg| arg == option)?;
    args.get(at + 1).cloned()
}
