//! A child process: started with its output captured, signalled, and killed when it is dropped.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::wait::wait_until;

const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

/// Lines of the log that an error message shows.
const TAIL_LINES: usize = 20;

/// A running process, killed on drop. If the test fails, the log is printed.
pub struct Process {
    child: Child,
    /// Kills the process if the test's process ends without dropping this: statics are never
    /// dropped, and a test run may be killed.
    guard: Child,
    /// The files that standard output and standard error are written to.
    captured: TempDir,
}

const GUARD: &str = r#"trap "" HUP INT TERM; read -r _; kill -9 "$1"; shift; rm -rf -- "$@""#;

impl Process {
    /// Starts a process, without standard input.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> Process {
        let captured = temp_dir();
        let capture = |name| File::create(captured.path().join(name)).expect("create a log file");
        let program = command.get_program().display().to_string();
        let child = command
            .stdin(Stdio::null())
            .stdout(capture(STDOUT))
            .stderr(capture(STDERR))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let guard = guard(child.id(), command.get_current_dir(), captured.path());
        Process { child, guard, captured }
    }

    /// Starts `program` with `dir` as its working directory. `dir` is removed if the test is killed.
    pub(crate) fn spawn_in(dir: &Path, program: &Path, args: &[String]) -> Process {
        Process::spawn(Command::new(program).args(args).current_dir(dir))
    }

    /// Waits until `is_ready`.
    ///
    /// # Panics
    ///
    /// If the process exits before, or after [`TIMEOUT`](crate::TIMEOUT).
    pub fn wait_until_ready(&mut self, name: &str, mut is_ready: impl FnMut(&Process) -> bool) {
        wait_until(&format!("{name} is ready"), || {
            assert!(!self.has_exited(), "{name} exited:\n{}", self.log_tail());
            is_ready(self)
        });
    }

    /// Returns what it has written to standard error.
    pub fn log(&self) -> String {
        self.captured(STDERR)
    }

    /// Returns what it has written to standard output.
    pub fn output(&self) -> String {
        self.captured(STDOUT)
    }

    fn captured(&self, name: &str) -> String {
        let bytes = fs::read(self.captured.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the last lines of standard output and of standard error.
    pub fn log_tail(&self) -> String {
        let texts = [self.output(), self.log()];
        let tail = |text: &String| {
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
        };
        texts.each_ref().map(tail).join("\n").trim().to_string()
    }

    /// Waits until it has written `text` to standard error.
    pub fn wait_for_log(&self, text: &str) {
        wait_until(&format!("the log contains {text:?}"), || self.log().contains(text));
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.id().to_string()]).status();
        assert!(status.expect("kill starts").success(), "kill {signal} failed");
    }

    /// Returns whether it has exited.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("wait for a child").is_some()
    }

    /// Waits until it has exited.
    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the process exits", || self.has_exited());
        self.child.wait().expect("wait for a child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("log of process {}:\n{}", self.id(), self.log());
        }
        // The guard first: once the process is reaped, its id may be another's.
        for child in [&mut self.guard, &mut self.child] {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Starts a shell that kills the process and removes the directories once its standard input, a pipe
/// from this process, is closed.
fn guard(id: u32, dir: Option<&Path>, captured: &Path) -> Child {
    Command::new("sh")
        .args(["-c", GUARD, "guard", &id.to_string()])
        .args(dir.into_iter().chain([captured]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh starts")
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// It cannot be started.
    #[error("cannot be started")]
    Start(#[from] io::Error),
    /// It exited with an error.
    #[error("{output}")]
    Failed {
        /// What it printed.
        output: String,
    },
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, CommandError> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(CommandError::Failed { output: format!("{text}\n{}", errors.trim()) })
}

/// Creates a temporary directory.
pub(crate) fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("ratekeeper-").tempdir().expect("create a directory")
}
