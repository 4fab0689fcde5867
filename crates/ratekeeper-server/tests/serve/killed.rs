//! A server that is killed, and the one that takes its place.

use ratekeeper_testkit::RedisServer;
use serde_json::json;

use crate::process::{Server, path, policy};

#[test]
fn what_was_charged_in_a_shared_store_outlives_a_server_that_is_killed() {
    let redis = RedisServer::start();
    let file = policy(&format!("store: {{ url: '{}', deadline: 10s }}\nlimits: []", redis.url()));
    let check = json!({"key": "k", "rate": "1/day burst 10"});
    let mut allowed = 0;
    for _ in 0..4 {
        let mut server = Server::start(&[path(file.path())]);
        allowed += (0..4).filter(|_| server.post("/v1/check", &check).0 == 200).count();
        // With connections open, and a request that is half sent.
        let half = server.connect();
        half.send("POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n{");
        server.signal("-KILL");
        server.wait();
    }
    assert_eq!(allowed, 10);
}
