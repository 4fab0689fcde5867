//! Kuadrant's rate limit service: an estimate is reserved, and corrected to what was used.

use ratekeeper_testkit::RedisServer;
use tonic::transport::Channel;
use tonic::{Code as StatusCode, Status};

use crate::grpc::kuadrant::rate_limit_service_client::RateLimitServiceClient;
use crate::grpc::kuadrant::{CommitRequest, ReserveRequest};
use crate::grpc::{Code, RateLimitRequest, channel, request};
use crate::process::Server;

const FILE: &str = "
domain: test
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000 } }
  - { key: model, rate_limit: { unit: year, requests_per_unit: 10000 } }
  - { key: blocked, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: trial, rate_limit: { unit: year, requests_per_unit: 50 }, shadow_mode: true }
";

const BOTH: [(&str, &str); 2] = [("user", "ann"), ("model", "large")];

struct Client(RateLimitServiceClient<Channel>);

impl Client {
    async fn connect(server: &Server) -> Self {
        Self(RateLimitServiceClient::new(channel(server.address()).await))
    }

    async fn reserve(&mut self, entries: &[(&str, &str)], amount: u64) -> (Code, String) {
        let RateLimitRequest { domain, descriptors, .. } = request(entries);
        let ttl = Some(prost_types::Duration { seconds: 30, nanos: 0 });
        let reserve = ReserveRequest { domain, descriptors, amount, ttl };
        let response = self.0.reserve(reserve).await.unwrap().into_inner();
        (response.code(), response.reservation_id)
    }

    async fn commit(
        &mut self,
        entries: &[(&str, &str)],
        id: &str,
        actual_amount: u64,
    ) -> Result<bool, Status> {
        let RateLimitRequest { domain, descriptors, .. } = request(entries);
        let reservation_id = id.to_string();
        let commit = CommitRequest { domain, descriptors, reservation_id, actual_amount };
        Ok(self.0.commit(commit).await?.into_inner().reservation_released)
    }

    async fn report(&mut self, entries: &[(&str, &str)], hits: u32) {
        let report = RateLimitRequest { hits_addend: hits, ..request(entries) };
        let response = self.0.report(report).await.unwrap().into_inner();
        assert_eq!(response.overall_code(), Code::Ok);
    }

    /// Returns what is left of each limit, without charging anything.
    async fn left(&mut self, entries: &[(&str, &str)]) -> Vec<u32> {
        let response = self.0.check_rate_limit(request(entries)).await.unwrap().into_inner();
        response.statuses.iter().map(|status| status.limit_remaining).collect()
    }
}

#[tokio::test]
async fn an_estimate_is_reserved_all_or_none_and_committed_at_another_server() {
    let redis = RedisServer::start();
    let policy = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text =
        format!("version: 1\nstore: {{ url: '{}', deadline: 5s }}\nlimits: []\n", redis.url());
    std::fs::write(policy.path(), text).unwrap();
    let path = policy.path().to_str().unwrap();
    let start = || Server::start_with(FILE, &[path, "--grpc", "127.0.0.1:0"]);
    let (one, other) = (start(), start());
    let (mut one, mut other) = (Client::connect(&one).await, Client::connect(&other).await);

    let (code, id) = one.reserve(&BOTH, 400).await;
    assert_eq!((code, id.len()), (Code::Ok, 32));
    assert_eq!(other.left(&BOTH).await, [600, 9_600]);
    assert!(other.commit(&BOTH, &id, 550).await.unwrap());
    assert_eq!(one.left(&BOTH).await, [450, 9_450]);
    for client in [&mut one, &mut other] {
        let gone = client.commit(&BOTH, &id, 550).await.unwrap_err();
        assert_eq!(gone.code(), StatusCode::NotFound);
        assert!(gone.message().contains("it was settled"), "{gone}");
    }
    assert_eq!(one.reserve(&BOTH, 500).await, (Code::OverLimit, String::new()));
    assert_eq!(one.left(&BOTH).await, [450, 9_450], "a denial charges nothing");
}

#[tokio::test]
async fn what_is_not_reserved_is_reported() {
    let server = Server::start(FILE);
    let mut client = Client::connect(&server).await;
    // As Kuadrant sends it if there is no reservation.
    assert!(!client.commit(&BOTH, "", 300).await.unwrap());
    assert_eq!(client.left(&BOTH).await, [700, 9_700]);
    client.report(&BOTH, 900).await;
    assert_eq!(client.left(&BOTH).await, [0, 8_800], "more than was left");
    assert_eq!(client.reserve(&BOTH, 1).await.0, Code::OverLimit);
    // An amount of 0 only looks.
    assert_eq!(client.reserve(&BOTH, 0).await, (Code::OverLimit, String::new()));
    assert_eq!(client.reserve(&[("user", "bob")], 0).await, (Code::Ok, String::new()));
    assert_eq!(client.left(&[("user", "bob")]).await, [1_000]);
}

#[tokio::test]
async fn looks_of_kuadrant_do_not_make_hits_of_envoy_reports() {
    let server = Server::start(FILE);
    let mut client = Client::connect(&server).await;
    let mut envoy = crate::grpc::Client::connect(server.address()).await;
    let (user, trial) = ([("user", "ann")], [("trial", "ann")]);
    assert_eq!(client.left(&user).await, [1_000]);
    assert_eq!(client.left(&trial).await, [50], "also in shadow mode");
    assert_eq!(client.reserve(&user, 0).await.0, Code::Ok);
    let hits = |hits| {
        let mut request = request(&user);
        request.descriptors[0].hits_addend = Some(hits);
        request
    };
    assert_eq!(envoy.send(hits(600)).await.unwrap().overall_code(), Code::Ok);
    assert_eq!(envoy.send(hits(600)).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(client.left(&user).await, [400], "a denial charges nothing");
    assert_eq!(client.left(&[("blocked", "x"), ("unknown", "x")]).await, [0, 0]);
}

#[tokio::test]
async fn one_estimate_takes_at_most_half_of_a_limit() {
    let server = Server::start(FILE);
    let mut client = Client::connect(&server).await;
    let (code, id) = client.reserve(&BOTH, 5_000).await;
    assert_eq!(code, Code::Ok);
    assert_eq!(client.left(&BOTH).await, [500, 9_500]);
    assert!(client.commit(&BOTH, &id, 900).await.unwrap());
    assert_eq!(client.left(&BOTH).await, [100, 9_100], "all that was used is charged");
}

#[tokio::test]
async fn limits_that_count_nothing_or_deny_all_need_no_reservation() {
    let server = Server::start(FILE);
    let mut client = Client::connect(&server).await;
    assert_eq!(client.reserve(&[("unknown", "x")], 5).await, (Code::Ok, String::new()));
    let blocked = [("user", "ann"), ("blocked", "x")];
    assert_eq!(client.reserve(&blocked, 5).await, (Code::OverLimit, String::new()));
    assert_eq!(client.left(&[("user", "ann")]).await, [1_000]);
    // A limit in shadow mode reserves nothing and denies nothing. It counts what was used.
    let trial = [("user", "ann"), ("trial", "x")];
    let (code, id) = client.reserve(&trial, 100).await;
    assert_eq!(code, Code::Ok);
    assert_eq!(client.left(&trial).await, [900, 50]);
    assert!(client.commit(&trial, &id, 30).await.unwrap());
    assert_eq!(client.left(&trial).await, [970, 20]);
}

#[tokio::test]
async fn an_invalid_request_gets_a_status_that_says_why() {
    let server = Server::start(FILE);
    let mut client = Client::connect(&server).await;
    let status = client.commit(&BOTH, "x", 5).await.unwrap_err();
    assert_eq!(status.code(), StatusCode::InvalidArgument, "{status}");
    let status = client.commit(&BOTH, &"0".repeat(32), 5).await.unwrap_err();
    assert_eq!(status.code(), StatusCode::NotFound, "{status}");
    assert_eq!(client.left(&BOTH).await, [1_000, 10_000], "nothing was charged");
    let status = client.0.reserve(ReserveRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), StatusCode::InvalidArgument, "{status}");
    assert!(status.message().contains("the domain is empty"), "{status}");
}

#[tokio::test]
async fn a_quota_that_is_over_leaves_the_others_to_be_reserved() {
    let quota = |key: &str, count: u32| {
        let limit = format!("{{ unit: year, requests_per_unit: {count} }}");
        format!("  - {{ key: {key}, quota_mode: true, rate_limit: {limit} }}\n")
    };
    let server = Server::start(&format!("{FILE}{}{}", quota("small", 10), quota("large", 20)));
    let mut client = Client::connect(&server).await;
    let request = [("small", "a"), ("large", "a"), ("user", "ann")];
    for left in [[5, 15, 995], [0, 10, 990], [0, 0, 980]] {
        assert_eq!(client.reserve(&request, 100).await.0, Code::Ok);
        assert_eq!(client.left(&request).await, left);
    }
    let (code, id) = client.reserve(&request, 100).await;
    assert_eq!((code, id.as_str()), (Code::OverLimit, ""));
    assert_eq!(client.left(&[("user", "ann")]).await, [980], "nothing was charged");
}
