//! A master and a replica, monitored by three sentinels.

use std::fs;
use std::path::Path;
use std::thread;

use crate::programs;
use crate::redis::{RedisServer, strings, wait_until_replicated};
use crate::wait::wait_until;

const SERVICE: &str = "ratekeeper";
const SENTINELS: usize = 3;

/// A master with a replica, and sentinels that promote the replica when the master fails.
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts two servers and three sentinels, and waits until the sentinels have discovered all.
    pub fn start() -> RedisSentinel {
        let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port();
        let replica = replica_of(port);
        let sentinels = thread::scope(|scope| {
            let starting: Vec<_> = (0..SENTINELS).map(|_| scope.spawn(|| sentinel(port))).collect();
            starting.into_iter().map(|one| one.join().expect("a sentinel starts")).collect()
        });
        let all = RedisSentinel { servers: [master, replica], sentinels };
        wait_until("the sentinels have discovered each other and the replica", || {
            all.sentinels.iter().all(knows_all)
        });
        all
    }

    /// Returns `redis+sentinel://`, the addresses of the sentinels and the name of the service.
    pub fn url(&self) -> String {
        let host = |sentinel: &RedisServer| format!("127.0.0.1:{}", sentinel.port());
        let hosts: Vec<_> = self.sentinels.iter().map(host).collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// Returns the two servers. Initially, the first one is the master.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the three sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns the port of the master, from the first sentinel that runs.
    pub fn master_port(&self) -> u16 {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.is_up()).expect("a sentinel");
        let address = sentinel.poll(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let port = address.lines().last().and_then(|port| port.parse().ok());
        port.expect("a sentinel knows the master's port")
    }

    /// Waits until the replica has the data that the master has now. The last writes of a master that is
    /// killed before are lost.
    pub fn wait_until_replicated(&self) {
        wait_until_replicated(&self.servers);
    }

    /// Kills the master. The sentinels need a few seconds to promote the replica.
    pub fn kill_master(&self) {
        let port = self.master_port();
        let master = self.servers.iter().find(|server| server.port() == port);
        master.expect("the master is one of the two").kill();
    }
}

fn replica_of(port: u16) -> RedisServer {
    let master = ["--replicaof", "127.0.0.1", &port.to_string()];
    let replica =
        RedisServer::start_with(&[&master[..], &["--repl-diskless-sync-delay", "0"]].concat());
    wait_until("the replica is connected to its master", || {
        replica.replication("master_link_status").is_some_and(|status| status == "up")
    });
    replica
}

fn sentinel(master: u16) -> RedisServer {
    RedisServer::launch(&programs::redis_server(), false, |dir, port| {
        fs::write(dir.join("sentinel.conf"), config(dir, port, master)).expect("a config file");
        strings(&["sentinel.conf", "--sentinel"])
    })
}

fn config(dir: &Path, port: u16, master: u16) -> String {
    format!(
        "port {port}\n\
         bind 127.0.0.1\n\
         protected-mode no\n\
         daemonize no\n\
         dir {}\n\
         sentinel monitor {SERVICE} 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds {SERVICE} 1000\n\
         sentinel failover-timeout {SERVICE} 5000\n",
        dir.display()
    )
}

/// Returns whether a sentinel has discovered the replica and all other sentinels.
fn knows_all(sentinel: &RedisServer) -> bool {
    let master = sentinel.poll(&["SENTINEL", "MASTER", SERVICE]);
    let lines: Vec<_> = master.lines().collect();
    let is = |name, value| lines.chunks(2).any(|pair| pair == [name, value]);
    is("num-slaves", "1") && is("num-other-sentinels", "2") && is("flags", "master")
}
