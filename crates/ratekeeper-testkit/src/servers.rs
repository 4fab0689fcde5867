//! What all servers have in common: a port, a process, and waiting until they are ready.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything here may take before it is a failure.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Waits until `ready`, and panics after [`LIMIT`].
pub fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < LIMIT, "waited {LIMIT:?} in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A free port whose cluster bus port, 10,000 above, is free too.
///
/// Not one that the system hands out to clients: while a server is down, such a port could be
/// taken by any connection, even by a client's that is trying to reach the server.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = 10_000 + (random() % 10_000) as u16;
        let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A running program, killed on drop.
pub(crate) struct Process {
    child: Child,
    /// Kills the program when this process ends without dropping anything: statics are never
    /// dropped, and a test run may be killed.
    guard: Child,
}

const GUARD: &str = r#"trap "" HUP INT TERM; read -r _; kill -9 "$1"; rm -rf -- "$2""#;

impl Process {
    /// Runs `program` in `dir`, with its output in [`log_tail`].
    pub(crate) fn spawn(program: &Path, args: &[String], dir: &Path) -> Process {
        let out = File::create(log(dir)).expect("a log file");
        let child = Command::new(program)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle on the log"))
            .stdout(out)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard", &child.id().to_string()])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        Process { child, guard }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.id().to_string()]).status();
        assert!(status.expect("kill starts").success(), "kill {signal} failed");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guard first: once the program is waited for, its id may be another's.
        for child in [&mut self.guard, &mut self.child] {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

fn log(dir: &Path) -> PathBuf {
    dir.join("server.log")
}

pub(crate) fn log_tail(dir: &Path) -> String {
    let text = fs::read(log(dir)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
