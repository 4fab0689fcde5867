//! Descriptors counted in a real Redis by several servers, and without it.

use ratekeeper_testkit::{RedisServer, wait_until};

use crate::grpc::{Client, Code, request};
use crate::process::Server;

const FILE: &str = "
domain: test
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: plan, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: one, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: two, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";

const BOTH: [(&str, &str); 2] = [("user", "ann"), ("plan", "free")];

/// Starts a server with its store in this Redis. Also returns the policy file.
fn server(redis_url: &str) -> (Server, tempfile::NamedTempFile) {
    let policy = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text = format!("version: 1\nstore: {{ url: \"{redis_url}\", deadline: 2s }}\nlimits: []\n");
    std::fs::write(policy.path(), text).unwrap();
    let path = policy.path().to_str().unwrap();
    (Server::start_with(FILE, &[path, "--grpc", "127.0.0.1:0"]), policy)
}

async fn remaining(client: &mut Client) -> [u32; 2] {
    let response = client.check(&BOTH).await;
    [0, 1].map(|index| response.statuses[index].limit_remaining)
}

#[tokio::test]
async fn servers_share_their_counts_and_charge_all_or_nothing() {
    let redis = RedisServer::start();
    let ((one, _of_one), (two, _of_two)) = (server(&redis.url()), server(&redis.url()));
    let mut one = Client::connect(one.address()).await;
    let mut two = Client::connect(two.address()).await;
    assert_eq!(remaining(&mut one).await, [2, 99]);
    assert_eq!(remaining(&mut two).await, [1, 98]);
    assert_eq!(remaining(&mut one).await, [0, 97]);
    for client in [&mut one, &mut two] {
        assert!(client.is_over(&BOTH).await);
    }
    // Denied requests were not charged to the plan.
    let plan = one.check(&[("plan", "free")]).await;
    assert_eq!(plan.statuses[0].limit_remaining, 96);
}

#[tokio::test]
async fn servers_share_quotas() {
    let redis = RedisServer::start();
    let ((one, _of_one), (two, _of_two)) = (server(&redis.url()), server(&redis.url()));
    let mut clients = [Client::connect(one.address()).await, Client::connect(two.address()).await];
    let request = [("one", "a"), ("two", "a"), ("plan", "free")];
    let mut seen = Vec::new();
    for index in [0, 1, 0, 1] {
        let response = clients[index].check(&request).await;
        let over = response.statuses.iter().map(|status| status.code() == Code::OverLimit);
        seen.push((response.overall_code() == Code::OverLimit, over.collect::<Vec<_>>()));
    }
    let expected = [
        (false, vec![false, false, false]),
        (false, vec![true, false, false]),
        (true, vec![true, true, false]),
        (true, vec![true, true, false]),
    ];
    assert_eq!(seen, expected);
    // What was refused was not charged to the plan.
    assert_eq!(clients[0].check(&[("plan", "free")]).await.statuses[0].limit_remaining, 97);
}

#[tokio::test]
async fn a_limit_that_is_only_looked_at_refuses_and_nothing_is_charged() {
    let redis = RedisServer::start();
    let (server, _policy) = server(&redis.url());
    let mut client = Client::connect(server.address()).await;
    for _ in 0..3 {
        assert!(!client.is_over(&[("user", "ann")]).await);
    }
    let mut look = request(&BOTH);
    (look.descriptors[0].hits_addend, look.descriptors[1].hits_addend) = (Some(0), Some(3));
    assert_eq!(client.send(look).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(client.check(&[("plan", "free")]).await.statuses[0].limit_remaining, 99);
}

#[tokio::test]
async fn without_redis_each_server_limits_by_itself() {
    let redis = RedisServer::start();
    let (server, _policy) = server(&redis.url());
    let mut client = Client::connect(server.address()).await;
    assert_eq!(remaining(&mut client).await, [2, 99]);
    redis.kill();
    let mut denied = 0;
    for _ in 0..8 {
        denied += usize::from(client.is_over(&[("user", "bob")]).await);
    }
    assert!((1..8).contains(&denied), "it still limits: {denied} of 8");
}

#[tokio::test]
async fn it_starts_without_redis_and_connects_later() {
    let redis = RedisServer::start();
    redis.kill();
    let (server, _policy) = server(&redis.url());
    let mut client = Client::connect(server.address()).await;
    assert!(!client.is_over(&[("user", "ann")]).await);
    redis.restart();
    wait_until("the store is used", || {
        let body = serde_json::json!({ "key": "k", "rate": "1000/hour" });
        server.post("/v1/check", &body).1["degraded"] == false
    });
    assert_eq!(remaining(&mut client).await[1], 99);
}
