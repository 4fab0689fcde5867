//! A Redis server, and its cost per command.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ::redis::{Client, Connection, FromRedisValue, cmd};

/// The core of the server, and the core of its callers.
const SERVER_CORE: &str = "0";
const CALLER_CORE: &str = "1";
/// How long it may take to start.
const START_WITHIN: Duration = Duration::from_secs(5);

/// Stops when dropped.
pub struct Server {
    child: Child,
    connection: Connection,
    pub port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts one, pinned to its own core if there are several; this process then uses another one.
    pub fn start() -> Self {
        let are_pinned = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        if are_pinned {
            let pid = std::process::id().to_string();
            run("taskset", &["-cp", CALLER_CORE, &pid]);
        }
        let port = free_port();
        let mut command = match are_pinned {
            true => Command::new("taskset"),
            false => Command::new("redis-server"),
        };
        if are_pinned {
            command.args(["-c", SERVER_CORE, "redis-server"]);
        }
        let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        command.args(options).args(["--port", &port.to_string()]).stdout(Stdio::null());
        let mut child = command.spawn().expect("redis-server");
        let Some(connection) = connect(port) else {
            let _ = child.kill();
            panic!("the redis-server that was started does not respond");
        };
        Self { child, connection, port }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn command<T: FromRedisValue>(&mut self, command: &[&str]) -> T {
        let mut built = cmd(command[0]);
        built.arg(&command[1..]);
        built.query(&mut self.connection).unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }

    pub fn flush_all(&mut self) {
        self.command::<()>(&["FLUSHALL", "SYNC"]);
    }

    /// Returns one field of a section of `INFO`.
    pub fn info(&mut self, section: &str, field: &str) -> String {
        let all: String = self.command(&["INFO", section]);
        let line = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO has no {field}")).to_string()
    }

    /// Returns the requests per second of `redis-benchmark`.
    pub fn benchmark(&self, requests: usize, keys: usize, command: &[String]) -> f64 {
        let (port, requests) = (self.port.to_string(), requests.to_string());
        let keys = keys.to_string();
        let mut args = vec!["-p", &port, "-c", "50", "-P", "16", "-n", &requests, "-r", &keys];
        args.push("--csv");
        args.extend(command.iter().map(String::as_str));
        let printed = run("redis-benchmark", &args);
        // The name of the test comes first, and has our arguments in it.
        let fields: Vec<_> = printed.lines().last().unwrap_or("").split("\",\"").collect();
        let rate = fields.len().checked_sub(7).and_then(|i| fields[i].parse().ok());
        rate.unwrap_or_else(|| panic!("redis-benchmark said: {printed}"))
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

fn connect(port: u16) -> Option<Connection> {
    let client = Client::open(format!("redis://127.0.0.1:{port}")).expect("an address");
    let started = Instant::now();
    while started.elapsed() < START_WITHIN {
        if let Ok(connection) = client.get_connection() {
            return Some(connection);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Returns the output of a program.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program}: {printed}{output:?}");
    printed
}
