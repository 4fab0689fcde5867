//! The gateway's process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use tollgate_testkit::wait_until;

use crate::backend::Backend;
use crate::client::Client;

/// A running gateway, gone when this is dropped.
pub(crate) struct Gateway {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    out: Arc<Mutex<String>>,
}

impl Gateway {
    /// In front of one backend.
    pub(crate) fn before(backend: &Backend, args: &[&str]) -> Self {
        Self::start(&[&["--upstream", &backend.url()], args].concat())
    }

    /// In front of several.
    pub(crate) fn before_all(backends: &[&Backend], args: &[&str]) -> Self {
        let urls: Vec<String> = backends.iter().map(|backend| backend.url()).collect();
        let upstreams: Vec<&str> = urls.iter().flat_map(|url| ["--upstream", url]).collect();
        Self::start(&[&upstreams, args].concat())
    }

    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["gateway", "--listen", "127.0.0.1:0"])
            .args(if args.contains(&"--admin") { &[][..] } else { &["--admin", "off"] })
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the gateway starts");
        let log = collect(child.stderr.take().expect("a pipe"));
        let out = collect(child.stdout.take().expect("a pipe"));
        let mut address = None;
        wait_until("the gateway listens", || {
            let text = log.lock().unwrap().clone();
            let found = text.split_once("://").and_then(|(_, rest)| rest.split_once(' '));
            address = found.map(|(address, _)| address.parse().expect("an address"));
            let ended = child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the gateway ended: {text}");
            address.is_some()
        });
        Self { child, address: address.unwrap(), log, out }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Everything that was written to standard error.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Everything that was written to standard output.
    pub(crate) fn output(&self) -> String {
        self.out.lock().unwrap().clone()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(&format!("the log says {text:?}"), || self.log().contains(text));
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill starts");
        assert!(status.success(), "kill {signal} failed");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the gateway ends", || {
            status = self.child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        status.unwrap()
    }

    /// The most memory that the process has had, in kilobytes.
    pub(crate) fn peak_memory_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the gateway's log:\n{}", self.log());
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn collect(from: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
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
