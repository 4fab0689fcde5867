//! `MULTI` and `EXEC`, over connections.

use std::io::{Read, Write};

use ratekeeper_testkit::{RedisServer, wait_until};

use crate::{Server, file};

const THROTTLE: &str = "CL.THROTTLE k 0 1 3600\r\n";
const FIRST: &str = "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n";

/// Replies that do not depend on what a server stores, except for the details that follow `;` here.
#[test]
fn replies_are_those_of_redis() {
    let (server, redis) = (Server::start(&[]), RedisServer::start());
    for commands in [
        "MULTI|MULTI|PING|EXEC|EXEC|DISCARD",
        "MULTI|WATCH a|ECHO x|EXEC",
        "MULTI|FOO|PING|EXEC|PING",
        "MULTI|ECHO|PING|EXEC|PING",
        "MULTI|PING|DISCARD|EXEC",
        "MULTI|EXEC",
        "MULTI|PING|RESET|EXEC|PING",
        "MULTI|DISCARD x|EXEC",
        "MULTI|MULTI x|EXEC",
        "MULTI|UNWATCH|SELECT 1|CLIENT GETNAME|CLIENT SETNAME a|CLIENT GETNAME|EXEC",
        "MULTI|CLIENT ID x|EXEC|PING",
        "MULTI|HELLO 3|CLIENT GETNAME|DISCARD|CLIENT GETNAME",
        "UNWATCH|SELECT 15|SELECT 16|SELECT -1|EXISTS a a|DEL a a|UNLINK a|TTL a|PTTL a",
        "MULTI|PING|QUIT",
    ] {
        let request = format!("{}\r\nQUIT\r\n", commands.replace('|', "\r\n"));
        let of_server = server.exchange(request.as_bytes());
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut of_redis = String::new();
        stream.read_to_string(&mut of_redis).unwrap();
        let (of_server, of_redis) = (replies(&of_server), replies(&of_redis));
        // Of a refused command, Redis may say less.
        let is_same = |(own, other): (&String, &String)| {
            own == other || own.starts_with('-') && own.starts_with(other.as_str())
        };
        let is_equal =
            of_server.len() == of_redis.len() && of_server.iter().zip(&of_redis).all(is_same);
        assert!(is_equal, "{commands}: {of_server:?} instead of {of_redis:?}");
    }
}

/// Returns the lines of replies. Of errors about arguments, only the beginning.
fn replies(text: &str) -> Vec<String> {
    let shortened = |line: &str| match line.strip_prefix("-ERR") {
        Some(error) if error.contains("subcommand") => "-ERR subcommand".to_string(),
        Some(error) if error.contains("number of arguments for 'client|") => {
            "-ERR subcommand".to_string()
        }
        _ => line.to_string(),
    };
    text.lines().map(shortened).collect()
}

#[test]
fn a_transaction_that_ends_before_exec_charges_nothing() {
    let server = Server::start(&[]);
    let reply = server.exchange(format!("MULTI\r\n{THROTTLE}QUIT\r\n").as_bytes());
    assert_eq!(reply, "+OK\r\n+QUEUED\r\n+OK\r\n");
    let mut lost = server.connect();
    lost.write_all(format!("MULTI\r\n{THROTTLE}").as_bytes()).unwrap();
    lost.read_exact(&mut [0; 14]).unwrap();
    drop(lost);
    let reply = server.exchange(format!("MULTI\r\n{THROTTLE}*x\r\n").as_bytes());
    assert!(reply.starts_with("+OK\r\n+QUEUED\r\n-ERR Protocol error"), "{reply}");
    assert_eq!(
        server.exchange(format!("{THROTTLE}QUIT\r\n").as_bytes()),
        format!("{FIRST}+OK\r\n")
    );
}

#[test]
fn a_transaction_is_not_executed_when_the_server_shuts_down_before_exec() {
    let mut server = Server::start(&[]);
    let (mut open, mut complete) = (server.connect(), server.connect());
    open.write_all(format!("MULTI\r\n{THROTTLE}").as_bytes()).unwrap();
    complete.write_all(format!("MULTI\r\n{THROTTLE}EXEC\r\n").as_bytes()).unwrap();
    server.signal("-TERM");
    let mut reply = String::new();
    open.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "+OK\r\n+QUEUED\r\n");
    reply.clear();
    complete.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, format!("+OK\r\n+QUEUED\r\n*1\r\n{FIRST}"));
    assert!(server.wait().success());
}

fn shared(redis: &RedisServer) -> (tempfile::TempDir, String) {
    let url = redis.url();
    file(&format!("version: 1\nstore: {{ url: \"{url}\", deadline: 5s }}\nlimits: []\n"))
}

/// What remains shows the position of each command among those of its key.
#[test]
fn transactions_are_executed_in_order_also_in_redis() {
    const COMMANDS: usize = 300;
    let redis = RedisServer::start();
    let (_folder, path) = shared(&redis);
    let server = Server::start(&[&path]);
    server.cli(&["CL.THROTTLE", "loads the script", "1", "1", "3600"]);
    server.cli(&["TTL", "loads the script"]);
    let throttle = format!("CL.THROTTLE k {} 1 86400\r\n", 5 * COMMANDS - 1);
    // Before the transaction, a short one, a long one, and after it.
    let commands = [
        throttle.repeat(COMMANDS),
        format!("MULTI\r\n{}ECHO x\r\nEXEC\r\n", throttle.repeat(10)),
        format!("MULTI\r\nPING\r\n{}PING\r\nEXEC\r\n", throttle.repeat(COMMANDS)),
        throttle.repeat(COMMANDS),
        format!("EXISTS k\r\nDEL k\r\nEXISTS k\r\n{throttle}QUIT\r\n"),
    ];
    let replies = server.exchange(commands.concat().as_bytes());
    let remaining = |reply: &str| reply.split("\r\n").nth(2)?[1..].parse::<usize>().ok();
    let remaining: Vec<_> = replies.split("*5\r\n").skip(1).filter_map(remaining).collect();
    let mut expected: Vec<_> = (0..5 * COMMANDS).rev().take(3 * COMMANDS + 10).collect();
    expected.push(5 * COMMANDS - 1);
    assert!(remaining == expected, "{remaining:?}");
    assert!(replies.contains("*11\r\n*5\r\n") && replies.contains("$1\r\nx\r\n"));
    assert!(replies.contains(&format!("*{}\r\n+PONG\r\n", COMMANDS + 2)));
    assert!(replies.contains("\r\n:1\r\n:1\r\n:0\r\n*5\r\n"), "of EXISTS, DEL and EXISTS");
}

#[test]
fn a_transaction_completes_in_redis_if_its_connection_is_lost() {
    const COMMANDS: usize = 2_000;
    let redis = RedisServer::start();
    let (_folder, path) = shared(&redis);
    let server = Server::start(&[&path]);
    let throttle = format!("CL.THROTTLE k {} 1 86400\r\n", COMMANDS - 1);
    let mut lost = server.connect();
    let commands = format!("MULTI\r\n{}EXEC\r\n", throttle.repeat(COMMANDS));
    lost.write_all(commands.as_bytes()).unwrap();
    let mut queued = vec![0; "+OK\r\n".len() + COMMANDS * "+QUEUED\r\n".len()];
    lost.read_exact(&mut queued).unwrap();
    drop(lost);
    wait_until("all are charged", || {
        let numbers = ["CL.THROTTLE", "k", &(COMMANDS - 1).to_string(), "1", "86400", "0"];
        server.cli(&numbers).split(' ').nth(2) == Some("0")
    });
}

#[test]
fn keys_and_databases_are_those_of_every_server_with_the_store() {
    let redis = RedisServer::start();
    let (_folder, path) = shared(&redis);
    let (one, two) = (Server::start(&[&path]), Server::start(&[&path]));
    let throttle = ["CL.THROTTLE", "k", "4", "1", "3600", "2"];
    one.cli(&[&["-n", "3"], &throttle[..]].concat());
    assert_eq!(two.cli(&["EXISTS", "k"]), "0");
    assert_eq!(two.cli(&["-n", "3", "EXISTS", "k"]), "1");
    let ttl: u64 = two.cli(&["-n", "3", "TTL", "k"]).parse().unwrap();
    assert!((7_100..=7_200).contains(&ttl), "{ttl}");
    for algorithm in ["fixed_window", "sliding_log", "sliding_counter", "leaky_bucket"] {
        one.cli(&["RK.CHECK", "k", "5/hour", "ALGORITHM", algorithm]);
        let ttl: u64 = two.cli(&["TTL", "k"]).parse().unwrap();
        assert!(ttl > 0, "{algorithm}");
        assert_eq!(two.cli(&["DEL", "k"]), "1", "{algorithm}");
        assert_eq!(one.cli(&["EXISTS", "k"]), "0", "{algorithm}");
    }
    assert_eq!(two.cli(&["-n", "3", "DEL", "k", "k"]), "1");
    assert_eq!(one.cli(&["-n", "3", "TTL", "k"]), "-2");
    redis.kill();
    let reply = one.cli(&["DEL", "k"]);
    assert!(reply.starts_with("ERR the store"), "{reply}");
}
