//! `ratekeeper serve --resp` as a process, with real Redis clients.

mod clients;
mod transactions;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use ratekeeper_testkit::{Listener, RedisServer, ServerBuilder, wait_until};

/// A running server with the Redis protocol only, killed on drop.
struct Server {
    program: ratekeeper_testkit::Server,
    address: SocketAddr,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let builder = ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"));
        let program = builder.listen(&[Listener::Resp]).args(args).start();
        Self { address: program.resp(), program }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes, and returns everything received until the server closes the connection.
    fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let port = self.address.port().to_string();
        let output = Command::new(program).args(["-p", &port]).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    }

    fn cli(&self, args: &[&str]) -> String {
        self.run("redis-cli", args).replace('\n', " ").trim().to_string()
    }
}

impl Deref for Server {
    type Target = ratekeeper_testkit::Server;

    fn deref(&self) -> &ratekeeper_testkit::Server {
        &self.program
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut ratekeeper_testkit::Server {
        &mut self.program
    }
}

fn file(content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.yaml");
    fs::write(&path, content).unwrap();
    (folder, path.to_str().unwrap().to_string())
}

#[test]
fn redis_cli_works() {
    let server = Server::start(&[]);
    assert_eq!(server.cli(&["PING"]), "PONG");
    assert_eq!(server.cli(&["CL.THROTTLE", "user123", "15", "30", "60"]), "0 16 15 -1 2");
    assert_eq!(server.cli(&["CL.THROTTLE", "user123", "15", "30", "60", "17"]), "1 16 15 -1 2");
    let check = ["RK.CHECK", "k", "5/s burst 10", "ALGORITHM", "token_bucket", "COST", "3"];
    let reply = server.cli(&check);
    assert!(reply.starts_with("allowed 1 limit 10 remaining 7 retry_after_ms -1"), "{reply}");
    let reply = server.cli(&["-3", "RK.PEEK", "k2", "5/s"]);
    assert!(reply.starts_with("allowed (true) limit 5 remaining 5"), "{reply}");
    assert!(server.cli(&["INFO", "server"]).contains("server_name:ratekeeper"));
    assert!(server.cli(&["COMMAND", "DOCS"]).contains("cl.throttle"));
    assert!(server.cli(&["GET", "k"]).starts_with("ERR unknown command 'GET'"));
}

#[test]
fn redis_benchmark_works() {
    let server = Server::start(&["--workers", "2"]);
    let args = ["-n", "20000", "-c", "20", "-P", "16", "-r", "1000", "-q"];
    let throttle = ["CL.THROTTLE", "key:__rand_int__", "10", "100", "60", "1"];
    let output = server.run("redis-benchmark", &[&args[..], &throttle].concat());
    assert!(output.contains("requests per second"), "{output}");
    let stats = server.cli(&["INFO", "stats"]);
    let commands = stats.split("total_commands_processed:").nth(1).unwrap();
    let commands: u64 = commands.split_whitespace().next().unwrap().parse().unwrap();
    assert!(commands >= 20_000, "{stats}");
}

#[test]
fn ten_thousand_commands_in_one_write_are_decided_in_order() {
    const COMMANDS: usize = 10_000;
    let server = Server::start(&[]);
    let command = "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$4\r\n4999\r\n$1\r\n1\r\n$5\r\n86400\r\n";
    let replies = server.exchange((command.repeat(COMMANDS) + "QUIT\r\n").as_bytes());
    let mut limited = replies.split("*5\r\n").skip(1).map(|reply| &reply[..4]);
    assert_eq!(limited.by_ref().take(5_000).filter(|one| *one == ":0\r\n").count(), 5_000);
    assert_eq!(limited.filter(|one| *one == ":1\r\n").count(), 5_000);
    assert!(replies.ends_with("+OK\r\n"));
}

#[test]
fn a_command_may_arrive_in_pieces() {
    let server = Server::start(&[]);
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    for piece in ["*2\r", "\n$4\r\nEC", "HO\r\n$5\r\nhel", "lo\r\nPI", "NG\r\nQUIT\n"] {
        stream.write_all(piece.as_bytes()).unwrap();
        // So that pieces arrive separately.
        stream.flush().unwrap();
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "$5\r\nhello\r\n+PONG\r\n+OK\r\n");
}

#[test]
fn resp3_replies_are_maps() {
    let server = Server::start(&[]);
    let reply = server.exchange(b"HELLO 3\r\nRK.CHECK k 5/s\r\nQUIT\r\n");
    assert!(reply.starts_with("%7\r\n$6\r\nserver\r\n$10\r\nratekeeper\r\n"), "{reply}");
    assert!(reply.contains("%8\r\n$7\r\nallowed\r\n#t\r\n$5\r\nlimit\r\n:5\r\n"), "{reply}");
}

#[test]
fn a_protocol_error_is_replied_and_closes_the_connection() {
    let server = Server::start(&[]);
    let reply =
        server.exchange(&[b"PING\r\n*1\r\n$99999999\r\n".to_vec(), vec![b'x'; 100_000]].concat());
    assert!(reply.starts_with("+PONG\r\n-ERR Protocol error: invalid bulk length"), "{reply}");
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[test]
fn passwords_come_from_a_file() {
    let (_folder, path) = file("first\n\nsecond\n");
    let server = Server::start(&["--resp-passwords", &path]);
    assert_eq!(server.cli(&["PING"]), "NOAUTH Authentication required.");
    for password in ["first", "second"] {
        assert_eq!(server.cli(&["--no-auth-warning", "-a", password, "PING"]), "PONG");
    }
    let new = ["--no-auth-warning", "-3", "--user", "default", "--pass", "second", "PING"];
    assert_eq!(server.cli(&new), "PONG");
    let reply = server.exchange(b"AUTH wrong\r\nPING\r\nQUIT\r\n");
    assert!(reply.starts_with("-WRONGPASS") && reply.contains("-NOAUTH"), "{reply}");
}

#[test]
fn connections_over_the_limit_are_rejected_with_an_error() {
    let server = Server::start(&["--max-connections", "2"]);
    let (mut one, _two) = (server.connect(), server.connect());
    one.write_all(b"PING\r\n").unwrap();
    one.read_exact(&mut [0; 7]).unwrap();
    wait_until("the third is rejected", || {
        let mut third = server.connect();
        let mut reply = String::new();
        let _ = third.read_to_string(&mut reply);
        reply == "-ERR max number of clients reached\r\n"
    });
    drop(one);
    wait_until("another connection is accepted", || {
        let mut third = server.connect();
        let mut pong = [0; 7];
        let result = third.write_all(b"PING\r\n").and_then(|()| third.read_exact(&mut pong));
        result.is_ok() && pong == *b"+PONG\r\n"
    });
}

/// More than the kernel buffers on a connection in both directions and at both ends.
const SOCKET_BUFFERS_MAX: usize = 48 << 20;

#[test]
fn the_server_stops_reading_from_a_client_that_reads_no_replies() {
    let server = Server::start(&["--resp-write-timeout", "1s", "--workers", "1"]);
    let mut stream = server.connect();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let command = format!("ECHO {}\r\n", "x".repeat(10_000));
    let mut sent = 0;
    while stream.write_all(command.as_bytes()).is_ok() {
        sent += command.len();
        // Socket buffers take a few megabytes each way. A server that reads on without writing would
        // take everything until the write timeout.
        assert!(sent < SOCKET_BUFFERS_MAX, "it does not stop reading: {sent} bytes");
    }
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[test]
fn a_shutdown_loses_no_reply() {
    const BATCH: usize = 20;
    let mut server = Server::start(&["--workers", "2"]);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = server.connect();
            thread::spawn(move || {
                // A batch is one segment: the server has received all of it or nothing.
                let numbers = (1_000..10_000).step_by(BATCH);
                let mut replies = Vec::new();
                for first in numbers.cycle() {
                    let batch: String =
                        (first..first + BATCH).map(|number| format!("ECHO {number}\r\n")).collect();
                    let expected: String = (first..first + BATCH)
                        .map(|number| format!("$4\r\n{number}\r\n"))
                        .collect();
                    if stream.write_all(batch.as_bytes()).is_err() {
                        break;
                    }
                    let mut received = Vec::new();
                    // A partial reply is kept, so that it is seen.
                    let _ =
                        Read::take(&mut stream, expected.len() as u64).read_to_end(&mut received);
                    let is_last = received.is_empty();
                    replies.push((expected, String::from_utf8(received).unwrap()));
                    if is_last {
                        break;
                    }
                }
                replies
            })
        })
        .collect();
    let idle = server.connect();
    // Received by the kernel, but not yet read.
    let mut last = server.connect();
    last.write_all("PING\r\n".repeat(1_000).as_bytes()).unwrap();
    server.signal("-TERM");
    let mut replies = String::new();
    last.read_to_string(&mut replies).unwrap();
    assert_eq!(replies, "+PONG\r\n".repeat(1_000));
    for client in clients {
        let replies = client.join().unwrap();
        for (number, (expected, received)) in replies.iter().enumerate() {
            // Only the last batch may have come too late.
            let is_late = received.is_empty() && number + 1 == replies.len();
            assert!(received == expected || is_late, "{received:?} instead of {expected:?}");
        }
    }
    idle.shutdown(Shutdown::Both).unwrap();
    assert!(server.wait().success());
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn counts_may_be_kept_in_redis() {
    let redis = RedisServer::start();
    let policy =
        format!("version: 1\nstore: {{ url: \"{}\", deadline: 5s }}\nlimits: []\n", redis.url());
    let (_folder, path) = file(&policy);
    let (one, two) = (Server::start(&[&path]), Server::start(&[&path]));
    assert_eq!(one.cli(&["CL.THROTTLE", "k", "4", "1", "3600", "3"]), "0 5 2 -1 10800");
    assert_eq!(two.cli(&["CL.THROTTLE", "k", "4", "1", "3600", "3"]).split(' ').next(), Some("1"));
    assert!(two.cli(&["RK.RESET", "x", "5/hour"]) == "OK");
    let command = "CL.THROTTLE busy 999 1 86400\r\n";
    let replies = one.exchange((command.repeat(2_000) + "PING\r\nQUIT\r\n").as_bytes());
    let limited: Vec<_> = replies.split("*5\r\n").skip(1).map(|reply| &reply[..4]).collect();
    assert_eq!(limited.len(), 2_000);
    assert!(limited[..1_000].iter().all(|one| *one == ":0\r\n"), "in the order of the commands");
    assert!(limited[1_000..].iter().all(|one| *one == ":1\r\n"));
    assert!(replies.ends_with("+PONG\r\n+OK\r\n"));
    redis.kill();
    let reply = one.cli(&["RK.CHECK", "k", "5/hour"]);
    assert!(reply.contains("allowed 1") && reply.ends_with("degraded 1"), "{reply}");
    let mut one = one;
    one.signal("-TERM");
    assert!(one.wait().success());
}

/// What remains shows the position of each command among those of its key.
#[test]
fn commands_are_decided_in_order_also_in_redis() {
    const COMMANDS: usize = 2_000;
    let redis = RedisServer::start();
    let policy = format!("version: 1\nstore: {{ url: \"{}\", deadline: 5s }}\n", redis.url());
    let (_folder, path) = file(&(policy + "limits: []\n"));
    let server = Server::start(&[&path]);
    server.cli(&["CL.THROTTLE", "loads the script", "1", "1", "3600"]);
    let send = |key: String| {
        let command = format!("CL.THROTTLE {key} {} 1 86400\r\n", COMMANDS - 1);
        let replies = server.exchange((command.repeat(COMMANDS) + "QUIT\r\n").as_bytes());
        let remaining = replies.split("*5\r\n").skip(1).map(|reply| {
            reply.split("\r\n").nth(2).and_then(|remaining| remaining[1..].parse().ok())
        });
        assert!(remaining.eq((0..COMMANDS).rev().map(Some)), "{key}");
    };
    std::thread::scope(|scope| {
        for client in 0..4 {
            let send = &send;
            scope.spawn(move || (0..8).for_each(|round| send(format!("{client}:{round}"))));
        }
    });
}
