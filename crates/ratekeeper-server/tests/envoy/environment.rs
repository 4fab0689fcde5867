//! Configured by the environment variables of envoyproxy/ratelimit alone.

use ratekeeper_testkit::{RedisServer, wait_until};

use crate::client::Client as HttpClient;
use crate::grpc::Client;
use crate::process::Server;

const FILE: &str = "
domain: test
descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }]
";

#[tokio::test]
async fn listeners_are_on_the_ports_of_the_variables_and_on_loopback() {
    let server = Server::start_by_environment(FILE, &[]);
    for address in [server.address(), server.http(), server.admin()] {
        assert!(address.ip().is_loopback(), "{address}");
    }
    let mut client = Client::connect(server.address()).await;
    assert!(!client.is_over(&[("user", "ann")]).await);
    assert_eq!(HttpClient::connect(server.http()).get("/healthz").status(), 200);
    assert_eq!(HttpClient::connect(server.admin()).get("/readyz").status(), 200);
}

#[tokio::test]
async fn in_shadow_mode_nothing_is_denied_and_near_limit_is_counted() {
    let server =
        Server::start_by_environment(FILE, &[("SHADOW_MODE", "true"), ("NEAR_LIMIT_RATIO", "0.5")]);
    let mut client = Client::connect(server.address()).await;
    for _ in 0..4 {
        assert!(!client.is_over(&[("user", "ann")]).await);
    }
    let metrics = HttpClient::connect(server.admin()).get("/metrics").body;
    assert!(metrics.contains("ratekeeper_envoy_shadow_over_limit_total 2\n"), "{metrics}");
    let near = |line: &str| {
        line.starts_with("ratekeeper_envoy_near_limit_total{limit=\"test.user\"}")
            && line.ends_with(" 1")
    };
    assert!(metrics.lines().any(near), "{metrics}");
}

#[tokio::test]
async fn counts_are_kept_in_the_store_of_redis_url() {
    let redis = RedisServer::start();
    let address = redis.url().replace("redis://", "");
    let variables = [("REDIS_URL", address.as_str()), ("REDIS_TYPE", "SINGLE")];
    let one = Server::start_by_environment(FILE, &variables);
    let two = Server::start_by_environment(FILE, &variables);
    for server in [&one, &two] {
        wait_until("the store is up", || {
            HttpClient::connect(server.admin()).get("/readyz").body.contains("\"up\"")
        });
    }
    let mut client = Client::connect(one.address()).await;
    assert!(!client.is_over(&[("user", "ann")]).await);
    let mut client = Client::connect(two.address()).await;
    assert!(!client.is_over(&[("user", "ann")]).await);
    assert!(client.is_over(&[("user", "ann")]).await, "both servers count in one store");
}

#[tokio::test]
async fn redis_auth_is_the_password_of_redis() {
    let redis = RedisServer::start_with(&["--requirepass", "s3cret/+"]);
    let address = format!("127.0.0.1:{}", redis.port());
    let variables = [("REDIS_URL", address.as_str()), ("REDIS_AUTH", "s3cret/+")];
    let server = Server::start_by_environment(FILE, &variables);
    wait_until("the store is up", || {
        HttpClient::connect(server.admin()).get("/readyz").body.contains("\"up\"")
    });
}
