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
async fn cache_key_prefix_is_the_prefix_of_keys() {
    let redis = RedisServer::start();
    let address = redis.url().replace("redis://", "");
    let variables = [("REDIS_URL", address.as_str()), ("CACHE_KEY_PREFIX", "shop")];
    let server = Server::start_by_environment(FILE, &variables);
    let mut client = Client::connect(server.address()).await;
    wait_until("the store is used", || {
        HttpClient::connect(server.admin()).get("/readyz").body.contains("\"up\"")
    });
    assert!(!client.is_over(&[("user", "ann")]).await);
    wait_until("there is a key", || redis.command(&["KEYS", "shop:*"]).contains("user=ann"));
    assert!(!redis.command(&["KEYS", "ratekeeper:*"]).contains("user=ann"));
}

#[tokio::test]
async fn files_of_one_domain_are_merged_by_merge_domain_config() {
    let server = Server::start_by_environment(FILE, &[("MERGE_DOMAIN_CONFIG", "true")]);
    server.write("ratelimit/config/team/more.conf", &FILE.replace("key: user", "key: team"));
    server.wait_for_log("domains=1 limits=2");
    let mut client = Client::connect(server.address()).await;
    let response = client.check(&[("user", "ann"), ("team", "web")]).await;
    assert!(response.statuses.iter().all(|status| status.limit_remaining == 1));
}

#[test]
fn variables_that_are_not_supported_are_named() {
    let server = Server::start_by_environment(FILE, &[("REDIS_PERSECOND", "true")]);
    server.wait_for_log("the environment variable REDIS_PERSECOND has no effect");
    let run = |name: &str, value: &str| {
        let output = crate::process::serve().env(name, value).run();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = run("CONFIG_TYPE", "GRPC_XDS_SOTW");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("CONFIG_TYPE is \"GRPC_XDS_SOTW\", which is not supported"), "{error}");
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
        line.starts_with("ratekeeper_envoy_near_limit_total{domain=\"test\",limit=\"test.user\"}")
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
