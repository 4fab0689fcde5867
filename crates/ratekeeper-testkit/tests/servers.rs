//! The servers and the fault proxy behave as tests rely on.
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use ratekeeper_testkit::{
    Fault, FaultProxy, RedisCluster, RedisSentinel, RedisServer, TIMEOUT, wait_until,
};

/// How long to wait before it counts as no reply.
const SILENCE: Duration = Duration::from_millis(200);

#[test]
fn a_server_is_killed_restarted_empty_and_killed_on_drop() {
    let server = RedisServer::start();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["SET", "key", "value"]), "OK");
    server.kill();
    assert!(connect(server.port()).is_err());
    server.restart();
    assert_eq!(server.command(&["PING"]), "PONG");
    assert_eq!(server.command(&["GET", "key"]), "");
    let port = server.port();
    drop(server);
    assert!(connect(port).is_err());
}

#[test]
fn a_paused_server_replies_when_it_is_resumed() {
    let server = RedisServer::start();
    let mut client = connect(server.port()).unwrap();
    server.pause();
    assert!(ping_gets_no_reply(&mut client));
    server.resume();
    assert_eq!(reply(&mut client).unwrap(), "+PONG\r\n");
}

#[test]
fn options_and_a_password_reach_the_server() {
    let server = RedisServer::start_with(&["--maxmemory", "2mb", "--requirepass", "secret"]);
    assert_eq!(server.url(), format!("redis://:secret@127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n2097152");
}

#[test]
fn valkey_is_valkey() {
    let server = RedisServer::valkey();
    assert!(server.command(&["INFO", "server"]).contains("valkey_version"));
}

#[test]
fn a_server_with_tls_accepts_only_tls() {
    let server = RedisServer::start_tls();
    assert_eq!(server.url(), format!("rediss://127.0.0.1:{}", server.port()));
    assert!(server.ca_pem().starts_with("-----BEGIN CERTIFICATE-----"));
    assert_eq!(server.command(&["PING"]), "PONG");
    assert!(ping(&mut connect(server.port()).unwrap()).is_err());
}

#[test]
fn a_cluster_moves_slots_and_survives_a_master() {
    const SLOT: u16 = 12182; // of the key "foo"
    let cluster = RedisCluster::start();
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 6);
    let from = cluster.master_of_slot(SLOT);
    assert_eq!(cluster.nodes()[from].command(&["SET", "foo", "bar"]), "OK");
    let odd = r"for i = 1, 250 do redis.call('SET', KEYS[1] .. i .. '\n\255', i) end";
    cluster.nodes()[from].command(&["EVAL", odd, "1", "{foo}"]);

    let to = cluster.master_of_slot(0);
    cluster.begin_move_slot(SLOT, to);
    assert_eq!(cluster.master_of_slot(SLOT), from);
    assert!(cluster.nodes()[from].command(&["GET", "{foo}2"]).starts_with("ASK 12182 "));
    cluster.finish_move_slot(SLOT, to);
    assert_eq!(cluster.master_of_slot(SLOT), to);
    assert_eq!(cluster.nodes()[to].command(&["GET", "foo"]), "bar");
    assert_eq!(cluster.nodes()[to].command(&["CLUSTER", "COUNTKEYSINSLOT", "12182"]), "251");
    assert!(cluster.nodes()[from].command(&["GET", "foo"]).starts_with("MOVED 12182 "));

    cluster.wait_until_replicated();
    cluster.kill_node(to);
    let promoted = cluster.master_of_slot(SLOT);
    assert_ne!(promoted, to);
    cluster.wait_until_whole();
    assert_eq!(cluster.nodes()[promoted].command(&["GET", "foo"]), "bar");
}

#[test]
fn sentinels_replace_a_master() {
    let sentinel = RedisSentinel::start();
    let master = sentinel.master_port();
    assert_eq!(master, sentinel.servers()[0].port());
    assert!(sentinel.url().ends_with("/ratekeeper"));
    assert_eq!(sentinel.servers()[0].command(&["SET", "key", "value"]), "OK");
    sentinel.wait_until_replicated();
    sentinel.kill_master();
    wait_until("the replica is promoted", || sentinel.master_port() != master);
    assert!(sentinel.servers()[1].command(&["ROLE"]).starts_with("master"));
    assert_eq!(sentinel.servers()[1].command(&["GET", "key"]), "value");
}

#[test]
fn a_proxy_delays_discards_and_garbles() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut client = connect(proxy.port()).unwrap();
    assert_eq!(ping(&mut client).unwrap(), "+PONG\r\n");

    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let begun = Instant::now();
    assert_eq!(ping(&mut client).unwrap(), "+PONG\r\n");
    assert!(begun.elapsed() >= Duration::from_millis(100));

    proxy.set(Fault::Garbage);
    let garbage = ping(&mut client).unwrap();
    assert!(!garbage.contains("PONG") && !garbage.is_empty());

    proxy.set(Fault::BlackHole);
    assert!(ping_gets_no_reply(&mut client));
    let mut late = connect(proxy.port()).unwrap();
    assert!(ping_gets_no_reply(&mut late));
    server.kill();
    assert!(ping_gets_no_reply(&mut client));

    proxy.set(Fault::None);
    assert_eq!(reply(&mut client).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    server.restart();
    assert_eq!(ping(&mut connect(proxy.port()).unwrap()).unwrap(), "+PONG\r\n");
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn a_proxy_cuts_connections() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut client = connect(proxy.port()).unwrap();
    assert_eq!(ping(&mut client).unwrap(), "+PONG\r\n");
    proxy.set(Fault::Cut);
    assert_eq!(reply(&mut client).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(connect(proxy.port()).and_then(|mut client| reply(&mut client)).is_err());
    proxy.set(Fault::None);
    assert_eq!(ping(&mut connect(proxy.port()).unwrap()).unwrap(), "+PONG\r\n");
}

#[test]
fn half_open_connections_stay_silent_while_new_ones_work() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut old = connect(proxy.port()).unwrap();
    assert_eq!(ping(&mut old).unwrap(), "+PONG\r\n");
    proxy.set(Fault::HalfOpen);
    let mut new = connect(proxy.port()).unwrap();
    assert_eq!(ping(&mut new).unwrap(), "+PONG\r\n");
    assert!(ping_gets_no_reply(&mut old));
    server.kill();
    assert!(ping_gets_no_reply(&mut old));
    assert_eq!(reply(&mut new).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn ping_gets_no_reply(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let silence = ping(stream).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    silence
}

fn ping(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(b"PING\r\n")?;
    reply(stream)
}

fn reply(stream: &mut TcpStream) -> io::Result<String> {
    let mut buffer = [0; 64];
    match stream.read(&mut buffer)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        read => Ok(String::from_utf8_lossy(&buffer[..read]).into_owned()),
    }
}
