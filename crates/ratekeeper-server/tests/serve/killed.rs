//! A server that is killed, and its replacement.

use ratekeeper_testkit::RedisServer;
use serde_json::json;

use crate::process::{Server, path, policy};

#[test]
fn charges_in_a_shared_store_outlive_a_killed_server() {
    let redis = RedisServer::start();
    let file = policy(&format!("store: {{ url: '{}', deadline: 10s }}\nlimits: []", redis.url()));
    let check = json!({"key": "k", "rate": "1/day burst 10"});
    let mut allowed = 0;
    for _ in 0..4 {
        let mut server = Server::start(&[path(file.path())]);
        allowed += (0..4).filter(|_| server.post("/v1/check", &check).0 == 200).count();
        // It is killed with an incomplete request on an open connection.
        let half = server.connect();
        half.send("POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n{");
        server.signal("-KILL");
        server.wait();
    }
    assert_eq!(allowed, 10);
}
