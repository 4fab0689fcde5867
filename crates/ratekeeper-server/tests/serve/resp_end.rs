//! SIGTERM while clients of the Redis protocol send all they can: every decision has its reply.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ratekeeper_testkit::{RedisServer, TIMEOUT, wait_until};

use crate::process::{Server, path, policy};

const QUOTA: usize = 4_000_000;
const CLIENTS: usize = 8;
const PIPELINED: usize = 200;

fn start(args: &[&str]) -> Server {
    Server::start(&[&["--resp", "127.0.0.1:0", "--http", "off", "--admin", "off"], args].concat())
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// What a client sends again and again.
fn batch(key: &str) -> String {
    format!("RK.CHECK {key} {QUOTA}/day ALGORITHM fixed_window\r\n").repeat(PIPELINED)
}

/// Sends without waiting for replies until the server is gone, and returns all replies.
fn send_all_the_while(stream: &TcpStream, key: &str, received: &AtomicUsize) -> String {
    let batch = batch(key);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = stream;
            while writer.write_all(batch.as_bytes()).is_ok() {}
        });
        let (mut reader, mut output, mut buffer) = (stream, Vec::new(), [0; 16 << 10]);
        // A reset comes after all replies.
        while let Ok(length @ 1..) = reader.read(&mut buffer) {
            output.extend_from_slice(&buffer[..length]);
            received.fetch_add(length, Ordering::Relaxed);
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
        String::from_utf8(output).unwrap()
    })
}

/// How much remained after each reply. All replies must be complete.
fn remaining(received: &str) -> Vec<usize> {
    let each = received.split("*16\r\n").skip(1).map(|reply| {
        let fields: Vec<_> = reply.lines().collect();
        let at = fields.iter().position(|field| *field == "remaining").expect("a whole reply");
        assert!(reply.ends_with("\r\n") && fields.contains(&"degraded"), "{reply:?}");
        fields[at + 1].trim_start_matches(':').parse().unwrap()
    });
    each.collect()
}

/// Clients with a key each, and SIGTERM under load. Returns what remained after each reply.
fn under_load(server: &mut Server) -> Vec<Vec<usize>> {
    let received = AtomicUsize::new(0);
    let streams: Vec<_> = (0..CLIENTS).map(|_| connect(server)).collect();
    thread::scope(|scope| {
        let clients: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(n, stream)| {
                let received = &received;
                scope.spawn(move || send_all_the_while(stream, &format!("k{n}"), received))
            })
            .collect();
        wait_until("there is load", || received.load(Ordering::Relaxed) > 2_000_000);
        server.signal("-TERM");
        assert!(server.wait().success());
        clients.into_iter().map(|client| remaining(&client.join().unwrap())).collect()
    })
}

#[test]
fn answers_are_whole_and_in_order_up_to_the_end() {
    for replied in under_load(&mut start(&["--workers", "2"])) {
        assert!(replied.len() > PIPELINED, "{}", replied.len());
        let each_once = replied.iter().enumerate().all(|(n, left)| *left == QUOTA - 1 - n);
        assert!(each_once, "one was left out, or came twice");
    }
}

/// Redis was charged exactly what has a reply.
#[test]
fn every_command_that_was_charged_was_answered() {
    let redis = RedisServer::start();
    let store = format!("store: {{ url: '{}', deadline: 20s }}\nlimits: []", redis.url());
    let policy = policy(&store);
    let clients = under_load(&mut start(&["--workers", "2", path(policy.path())]));
    let after = start(&[path(policy.path())]);
    for (n, replied) in clients.iter().enumerate() {
        let mut stream = connect(&after);
        let peek = format!("RK.PEEK k{n} {QUOTA}/day ALGORITHM fixed_window\r\nQUIT\r\n");
        stream.write_all(peek.as_bytes()).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        let replies = replies.strip_suffix("+OK\r\n").expect("the reply to QUIT");
        assert_eq!(remaining(replies), [QUOTA - replied.len()], "client {n}");
    }
}

const CONNECTIONS: usize = 200;

/// Sends a pipeline on each connection, ends the server before it has read anything of them, and gives how
/// many replies each got.
fn replies_after_the_end(server: &mut Server, connections: usize, commands: usize) -> Vec<usize> {
    let mut streams: Vec<_> = (0..connections).map(|_| connect(server)).collect();
    let pipeline = "RK.CHECK k 1000000000/day ALGORITHM fixed_window\r\n".repeat(commands);
    server.signal("-STOP");
    for stream in &mut streams {
        // What does not fit into the buffers of both ends has not been sent.
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(pipeline.as_bytes()).unwrap();
    }
    server.signal("-TERM");
    server.signal("-CONT");
    let replies = thread::scope(|scope| {
        let read = |mut stream: TcpStream| {
            let mut replies = Vec::new();
            // Also if the connection is reset in the end.
            let _ = stream.read_to_end(&mut replies);
            remaining(&String::from_utf8(replies).unwrap()).len()
        };
        let reading: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(move || read(stream))).collect();
        reading.into_iter().map(|reading| reading.join().unwrap()).collect()
    });
    assert!(server.wait().success());
    replies
}

#[test]
fn what_was_sent_before_the_end_is_answered() {
    // The last is more than the server's receive buffer holds.
    for (connections, commands) in [(CONNECTIONS, 1), (CONNECTIONS, 50), (20, 5_000)] {
        let mut server = start(&["--workers", "2"]);
        let replies = replies_after_the_end(&mut server, connections, commands);
        assert_eq!(replies, vec![commands; connections]);
    }
}

#[test]
fn what_was_sent_before_the_end_is_answered_over_redis() {
    let redis = RedisServer::start();
    let store = format!("store: {{ url: '{}', deadline: 20s }}\nlimits: []", redis.url());
    let policy = policy(&store);
    for (connections, commands) in [(CONNECTIONS, 1), (CONNECTIONS, 50), (2, 5_000)] {
        let mut server = start(&["--workers", "2", path(policy.path())]);
        let replies = replies_after_the_end(&mut server, connections, commands);
        assert_eq!(replies, vec![commands; connections]);
    }
}
