//! A program under test: started, listened to, asked to end, and gone when it is dropped.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::wait_until;

/// A running program, gone when this is dropped. If the test fails, its log is shown.
pub struct Program {
    child: Child,
    log: Arc<Mutex<String>>,
    output: Arc<Mutex<String>>,
}

impl Program {
    /// Starts it, and waits until it has written this to standard error.
    pub fn start(command: &mut Command, ready: &str) -> Program {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let log = collect(child.stderr.take().expect("a pipe"));
        let output = collect(child.stdout.take().expect("a pipe"));
        let mut program = Program { child, log, output };
        wait_until("the program is ready", || {
            let ended = program.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the program ended");
            program.log().contains(ready)
        });
        program
    }

    /// The address that follows this in its log.
    pub fn address_after(&self, before: &str) -> Option<SocketAddr> {
        let log = self.log();
        let (_, rest) = log.split_once(before)?;
        let (address, _) = rest.split_once([' ', '/', '\n'])?;
        Some(address.parse().expect("an address"))
    }

    /// Everything that it has written to standard error.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Everything that it has written to standard output.
    pub fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Waits until it has written this to standard error.
    pub fn wait_for_log(&self, text: &str) {
        wait_until(&format!("the log says {text:?}"), || self.log().contains(text));
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill starts");
        assert!(status.success(), "kill {signal} failed");
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the program ends", || {
            status = self.child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        status.unwrap()
    }

    /// The most memory that it has had, in kilobytes.
    pub fn peak_memory_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the program's log:\n{}", self.log());
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&text);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut into = into.lock().unwrap();
            into.push_str(&line);
            into.push('\n');
        }
    });
    text
}
