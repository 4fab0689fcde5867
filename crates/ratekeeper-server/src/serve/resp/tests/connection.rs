//! A connection over a pipe in memory, which is neither TCP nor TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Micros};
use ratekeeper_testkit::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::{IDLE, NOW, WRITE, door, door_of};
use crate::listener::{Drain, Stage};
use crate::serve::resp::RespServer;
use crate::serve::resp::connection::RespHandler;

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

fn connect(buffer: usize) -> (DuplexStream, Drain, JoinHandle<std::io::Result<()>>) {
    connect_to(door(&[]).0, buffer)
}

fn connect_to(
    door: Arc<RespServer>,
    buffer: usize,
) -> (DuplexStream, Drain, JoinHandle<std::io::Result<()>>) {
    let (client, server) = duplex(buffer);
    let drain = Drain::default();
    let worker = Arc::new(RespHandler::new(door, drain.clone()));
    (client, drain, tokio::spawn(async move { worker.run(server, PEER).await }))
}

async fn rest(client: &mut DuplexStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn commands_that_come_together_are_answered_together() {
    let (mut client, _, served) = connect(1 << 20);
    let pings = "PING\r\n".repeat(1_000) + "QUIT\r\nPING\r\n";
    client.write_all(pings.as_bytes()).await.unwrap();
    assert_eq!(rest(&mut client).await, "+PONG\r\n".repeat(1_000) + "+OK\r\n");
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn nonsense_is_answered_and_ends_the_connection() {
    let (mut client, _, served) = connect(1 << 20);
    client.write_all(b"PING\r\n*x\r\nPING\r\n").await.unwrap();
    let answer = rest(&mut client).await;
    assert!(
        answer.starts_with("+PONG\r\n-ERR Protocol error: invalid multibulk length"),
        "{answer}"
    );
    assert_eq!(answer.lines().count(), 2);
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn answers_beyond_the_buffer_wait_for_the_client() {
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
async fn a_client_that_takes_no_answers_is_cut_off() {
    let (mut client, _, served) = connect(1 << 10);
    let commands = "PING\r\n".repeat(500);
    // It can be written only in part, for the server waits too.
    let write = client.write_all(commands.as_bytes());
    let _ = tokio::time::timeout(WRITE / 2, write).await;
    let error = served.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_client_is_let_go_and_a_busy_one_is_not() {
    let (mut client, _, served) = connect(1 << 10);
    for _ in 0..20 {
        tokio::time::sleep(IDLE / 2).await;
        client.write_all(b"PING\r\n").await.unwrap();
        let mut pong = [0; 7];
        client.read_exact(&mut pong).await.unwrap();
    }
    let begun = tokio::time::Instant::now();
    assert!(served.await.unwrap().is_err());
    let waited = begun.elapsed();
    assert!(waited >= IDLE && waited <= IDLE * 3 / 2, "{waited:?}");
}

#[tokio::test]
async fn the_end_answers_what_has_come_and_closes() {
    let (mut client, drain, served) = connect(1 << 10);
    client.write_all(b"PING\r\nPING\r\nPIN").await.unwrap();
    drain.enter(Stage::LastResponses);
    assert_eq!(rest(&mut client).await, "+PONG\r\n+PONG\r\n");
    drop(client);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_end_does_not_wait_for_a_client_that_stays() {
    let (mut client, drain, served) = connect(1 << 10);
    tokio::time::sleep(Duration::from_millis(10)).await;
    drain.enter(Stage::LastResponses);
    assert_eq!(rest(&mut client).await, "");
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_command_that_comes_in_drops_is_cut_off() {
    let (mut client, _, served) = connect(1 << 10);
    let begun = tokio::time::Instant::now();
    let drip = tokio::spawn(async move {
        while client.write_all(b"P").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    assert!(served.await.unwrap().is_err());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drip.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_busy_client_may_always_have_begun_another_command() {
    let (client, _, served) = connect(1 << 20);
    let (mut answers, mut asks) = tokio::io::split(client);
    let asking = tokio::spawn(async move {
        asks.write_all(b"PI").await.unwrap();
        for _ in 0..60 {
            asks.write_all(b"NG\r\nPING\r\nPI").await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        asks.write_all(b"NG\r\nQUIT\r\n").await.unwrap();
    });
    let mut answer = String::new();
    answers.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.matches("+PONG").count(), 121);
    asking.await.unwrap();
    drop(answers);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_say_who_it_is_is_cut_off() {
    let (client, server) = duplex(1 << 10);
    let worker = RespHandler::new(door(&["secret"]).0, Drain::default());
    let begun = tokio::time::Instant::now();
    let (mut answers, mut asks) = tokio::io::split(client);
    let asking = async {
        while asks.write_all(b"PING\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut scratch = Vec::new();
    let (served, (), _) =
        tokio::join!(worker.run(server, PEER), asking, answers.read_to_end(&mut scratch));
    assert!(served.is_err() && begun.elapsed() < Duration::from_secs(20));

    let (mut client, server) = duplex(1 << 10);
    client.write_all(b"AUTH secret\r\n").await.unwrap();
    let serving = tokio::time::timeout(Duration::from_secs(30), worker.run(server, PEER));
    assert!(serving.await.is_err(), "one that has said it may stay");
}

/// A node whose clock is years off, before or after the store's.
#[tokio::test]
async fn a_refund_goes_by_the_clock_of_the_store() {
    let redis = RedisServer::start();
    let policy =
        format!("version: 1\nstore: {{ url: '{}', deadline: 10s }}\nlimits: []\n", redis.url());
    // The first teaches the store its scripts, which may change the order of commands.
    for (clock, now) in [NOW, Micros::new(1), Micros::MAX].into_iter().enumerate() {
        let (mut client, _, served) = connect_to(door_of(&policy, now, &[]).0, 1 << 20);
        for algorithm in ALGORITHMS {
            let key = format!("{clock}-{algorithm} 10/day ALGORITHM {algorithm}");
            let commands = format!("RK.CHECK {key} COST 6\r\nRK.REFUND {key} COST 6\r\n");
            client.write_all(commands.as_bytes()).await.unwrap();
        }
        client.write_all(b"QUIT\r\n").await.unwrap();
        let told = rest(&mut client).await;
        let remaining = told.split("remaining\r\n:").skip(1);
        let remaining: Vec<_> = remaining.map(|rest| rest.lines().next().unwrap()).collect();
        assert_eq!(remaining, ["4", "10"].repeat(ALGORITHMS.len()), "at {now:?}");
        drop(client);
        served.await.unwrap().unwrap();
    }
}
