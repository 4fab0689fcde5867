//! A PostgreSQL server, and a connection to it.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::port::free_port;
use crate::process::{Process, output, temp_dir};
use crate::programs;
use crate::wait::TIMEOUT;

/// The user of the database. As root, the server runs as the system's user of this name, because it refuses to run as
/// root.
const USER: &str = "postgres";

/// A server on a free loopback port, without durability or passwords. Killed on drop.
pub struct PostgresServer {
    port: u16,
    _process: Process,
    _dir: TempDir,
}

impl PostgresServer {
    /// Starts one that accepts this many connections.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(connections_max: usize) -> Self {
        let dir = temp_dir();
        let data = dir.path().join("data");
        if is_root() {
            let owner = format!("{USER}:{USER}");
            output(Command::new("chown").arg(owner).arg(dir.path())).expect("chown");
        }
        let data_text = data.to_str().expect("a path in UTF-8");
        let init = ["-D", data_text, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N"];
        output(command("initdb", dir.path()).args(init)).expect("initdb");
        let port = free_port();
        let settings = [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".to_string(),
            format!("unix_socket_directories={}", dir.path().display()),
            format!("max_connections={connections_max}"),
            "superuser_reserved_connections=0".to_string(),
            "fsync=off".to_string(),
            "synchronous_commit=off".to_string(),
        ];
        let mut server = command("postgres", dir.path());
        server.args(["-D", data_text]);
        settings.iter().for_each(|setting| _ = server.args(["-c", setting]));
        let mut process = Process::spawn(&mut server);
        process.wait_until_ready("PostgreSQL", |_| PostgresConnection::open(address(port)).is_ok());
        Self { port, _process: process, _dir: dir }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        address(self.port)
    }
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Returns the command that runs one of PostgreSQL's programs, not as root.
fn command(program: &str, dir: &Path) -> Command {
    let path = programs::postgres(program);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
        command.args([user, group, "--clear-groups".to_string()]).arg(path);
        command
    } else {
        Command::new(path)
    };
    command.current_dir(dir);
    command
}

fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id == "0")
}

/// A connection that sends statements as text, one after the other.
pub struct PostgresConnection {
    stream: BufReader<TcpStream>,
}

impl PostgresConnection {
    /// Connects to a server, to the database of its user.
    ///
    /// # Errors
    ///
    /// If it does not accept the connection.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        let startup = format!("user\0{USER}\0database\0{USER}\0\0");
        // The version of the protocol, 3.0.
        connection.send(None, &[&196_608_u32.to_be_bytes(), startup.as_bytes()].concat())?;
        connection.until_ready()?;
        Ok(connection)
    }

    /// Runs statements in one transaction, and returns the columns of all rows as text.
    ///
    /// # Errors
    ///
    /// If a statement fails, with the message of the server, or the connection is closed.
    pub fn query(&mut self, statements: &str) -> io::Result<Vec<String>> {
        self.send(Some(b'Q'), format!("{statements}\0").as_bytes())?;
        self.until_ready()
    }

    fn send(&mut self, kind: Option<u8>, content: &[u8]) -> io::Result<()> {
        let length = u32::try_from(content.len() + 4).map_err(io::Error::other)?;
        let kind = kind.map_or(Vec::new(), |kind| vec![kind]);
        self.stream.get_mut().write_all(&[&kind, &length.to_be_bytes()[..], content].concat())
    }

    /// Reads messages until the server is ready for the next query.
    fn until_ready(&mut self) -> io::Result<Vec<String>> {
        let (mut columns, mut failed) = (Vec::new(), None);
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut content = vec![0; (length as usize).saturating_sub(4)];
            self.stream.read_exact(&mut content)?;
            match head[0] {
                b'Z' => return failed.map_or(Ok(columns), Err),
                b'D' => columns.extend(row(&content)),
                b'E' => {
                    failed = Some(io::Error::other(
                        String::from_utf8_lossy(&content).replace('\0', " "),
                    ));
                }
                _ => {}
            }
        }
    }
}

/// Returns the columns of a row; those that are null are empty.
fn row(mut content: &[u8]) -> Vec<String> {
    let mut take = |length: usize| {
        let (taken, rest) = content.split_at(length.min(content.len()));
        content = rest;
        taken
    };
    let count = take(2).try_into().map_or(0, u16::from_be_bytes);
    let mut columns = Vec::new();
    for _ in 0..count {
        let length = take(4).try_into().map_or(-1, i32::from_be_bytes);
        let column = take(usize::try_from(length).unwrap_or(0));
        columns.push(String::from_utf8_lossy(column).into_owned());
    }
    columns
}
