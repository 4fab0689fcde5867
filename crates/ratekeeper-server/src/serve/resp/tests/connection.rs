//! Connections over an in-memory pipe instead of TCP or TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Micros};
use ratekeeper_testkit::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::{IDLE, NOW, WRITE, server, server_of};
use crate::listener::{Drain, Stage};
use crate::serve::resp::RespServer;
use crate::serve::resp::connection::RespHandler;

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

fn connect(buffer: usize) -> (DuplexStream, Drain, JoinHandle<std::io::Result<()>>) {
    connect_to(server(&[]).0, buffer)
}

fn connect_to(
    server: Arc<RespServer>,
    buffer: usize,
) -> (DuplexStream, Drain, JoinHandle<std::io::Result<()>>) {
    let (client, remote) = duplex(buffer);
    let drain = Drain::default();
    let handler = Arc::new(RespHandler::new(server, drain.clone()));
    (client, drain, tokio::spawn(async move { handler.run(remote, PEER).await }))
}

async fn rest(client: &mut DuplexStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn pipelined_commands_get_their_replies_in_order() {
    let (mut client, _, served) = connect(1 << 20);
    let pings = "PING\r\n".repeat(1_000) + "QUIT\r\nPING\r\n";
    client.write_all(pings.as_bytes()).await.unwrap();
    assert_eq!(rest(&mut client).await, "+PONG\r\n".repeat(1_000) + "+OK\r\n");
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_protocol_error_is_replied_and_closes_the_connection() {
    let (mut client, _, served) = connect(1 << 20);
    client.write_all(b"PING\r\n*x\r\nPING\r\n").await.unwrap();
    let reply = rest(&mut client).await;
    assert!(reply.starts_with("+PONG\r\n-ERR Protocol error: invalid multibulk length"), "{reply}");
    assert_eq!(reply.lines().count(), 2);
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn replies_beyond_the_buffer_wait_for_the_client() {
    let (mut client, _, served) = connect(1 << 10);
    let word = "x".repeat(10_000);
    let (mut reader, mut writer) = tokio::io::split(&mut client);
    let write = async {
        for _ in 0..100 {
            writer.write_all(format!("ECHO {word}\r\n").as_bytes()).await.unwrap();
        }
        writer.write_all(b"QUIT\r\n").await.unwrap();
    };
    let mut text = String::new();
    let (read, ()) = tokio::join!(reader.read_to_string(&mut text), write);
    read.unwrap();
    assert_eq!(text, format!("$10000\r\n{word}\r\n").repeat(100) + "+OK\r\n");
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_no_replies_is_disconnected() {
    let (mut client, _, served) = connect(1 << 10);
    let commands = "PING\r\n".repeat(500);
    // Only part of it can be written, because the server waits too.
    let write = client.write_all(commands.as_bytes());
    let _ = tokio::time::timeout(WRITE / 2, write).await;
    let error = served.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_disconnected_and_an_active_one_is_not() {
    let (mut client, _, served) = connect(1 << 10);
    for _ in 0..20 {
        tokio::time::sleep(IDLE / 2).await;
        client.write_all(b"PING\r\n").await.unwrap();
        let mut pong = [0; 7];
        client.read_exact(&mut pong).await.unwrap();
    }
    let started = tokio::time::Instant::now();
    assert!(served.await.unwrap().is_err());
    let waited = started.elapsed();
    assert!(waited >= IDLE && waited <= IDLE * 3 / 2, "{waited:?}");
}

#[tokio::test]
async fn a_drain_executes_received_commands_and_closes() {
    let (mut client, drain, served) = connect(1 << 10);
    client.write_all(b"PING\r\nPING\r\nPIN").await.unwrap();
    drain.enter(Stage::LastResponses);
    assert_eq!(rest(&mut client).await, "+PONG\r\n+PONG\r\n");
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_an_idle_client() {
    let (mut client, drain, served) = connect(1 << 10);
    tokio::time::sleep(Duration::from_millis(10)).await;
    drain.enter(Stage::LastResponses);
    assert_eq!(rest(&mut client).await, "");
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_command_times_out() {
    let (mut client, _, served) = connect(1 << 10);
    let started = tokio::time::Instant::now();
    let sender = tokio::spawn(async move {
        while client.write_all(b"P").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    assert!(served.await.unwrap().is_err());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    sender.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_partial_command_after_each_batch_stays_connected() {
    let (client, _, served) = connect(1 << 20);
    let (mut reader, mut writer) = tokio::io::split(client);
    let sender = tokio::spawn(async move {
        writer.write_all(b"PI").await.unwrap();
        for _ in 0..60 {
            writer.write_all(b"NG\r\nPING\r\nPI").await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        writer.write_all(b"NG\r\nQUIT\r\n").await.unwrap();
    });
    let mut replies = String::new();
    reader.read_to_string(&mut replies).await.unwrap();
    assert_eq!(replies.matches("+PONG").count(), 121);
    sender.await.unwrap();
    drop(reader);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unauthenticated_client_is_disconnected() {
    let (client, remote) = duplex(1 << 10);
    let handler = RespHandler::new(server(&["secret"]).0, Drain::default());
    let started = tokio::time::Instant::now();
    let (mut reader, mut writer) = tokio::io::split(client);
    let sender = async {
        while writer.write_all(b"PING\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut scratch = Vec::new();
    let (served, (), _) =
        tokio::join!(handler.run(remote, PEER), sender, reader.read_to_end(&mut scratch));
    assert!(served.is_err() && started.elapsed() < Duration::from_secs(20));

    let (mut client, remote) = duplex(1 << 10);
    client.write_all(b"AUTH secret\r\n").await.unwrap();
    let serving = tokio::time::timeout(Duration::from_secs(30), handler.run(remote, PEER));
    assert!(serving.await.is_err(), "an authenticated client stays connected");
}

/// The clock of the node is years before or after that of the store.
#[tokio::test]
async fn a_refund_uses_the_clock_of_the_store() {
    let redis = RedisServer::start();
    let policy =
        format!("version: 1\nstore: {{ url: '{}', deadline: 10s }}\nlimits: []\n", redis.url());
    // The first connection loads the scripts into the store, which may change the order of commands.
    for (clock, now) in [NOW, Micros::new(1), Micros::MAX].into_iter().enumerate() {
        let (mut client, _, served) = connect_to(server_of(&policy, now, &[]).0, 1 << 20);
        for algorithm in ALGORITHMS {
            let key = format!("{clock}-{algorithm} 10/day ALGORITHM {algorithm}");
            let commands = format!("RK.CHECK {key} COST 6\r\nRK.REFUND {key} COST 6\r\n");
            client.write_all(commands.as_bytes()).await.unwrap();
        }
        client.write_all(b"QUIT\r\n").await.unwrap();
        let replies = rest(&mut client).await;
        let remaining = replies.split("remaining\r\n:").skip(1);
        let remaining: Vec<_> = remaining.map(|rest| rest.lines().next().unwrap()).collect();
        assert_eq!(remaining, ["4", "10"].repeat(ALGORITHMS.len()), "at {now:?}");
        drop(client);
        served.await.unwrap().unwrap();
    }
}
