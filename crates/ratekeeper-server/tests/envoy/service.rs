//! The service as seen by a gRPC client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::Code as GrpcCode;
use tonic_health::pb::HealthCheckRequest;
pub(crate) use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::client::Client as HttpClient;
use crate::grpc::{Client, Code, RateLimitOverride, RateLimitRequest, channel, request};
use crate::process::Server;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const KUADRANT: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

const FILE: &str = "
domain: test
descriptors:
  - { key: user, rate_limit: { name: users, unit: year, requests_per_unit: 2 } }
  - { key: plan, value: free, rate_limit: { unit: year, requests_per_unit: 100 } }
";

/// Returns the health of a service.
pub(crate) async fn health(server: &Server, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.into() };
    let mut client = HealthClient::new(channel(server.address()).await);
    client.check(request).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn descriptors_are_limited() {
    let server = Server::start(FILE);
    let mut client = Client::connect(server.address()).await;
    let ann = [("user", "ann"), ("plan", "free"), ("plan", "paid")];
    let response = client.check(&ann).await;
    assert_eq!(response.overall_code(), Code::Ok);
    let remaining: Vec<_> = response.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(remaining, [1, 99, 0]);
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit), ("users", 2, 6));
    assert!(response.statuses[0].duration_until_reset.is_some());
    assert!(response.statuses[2].current_limit.is_none());

    assert!(!client.is_over(&ann).await);
    let over = client.check(&ann).await;
    let codes: Vec<_> = over.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::OverLimit, Code::Ok, Code::Ok]);
    assert_eq!(over.statuses[1].limit_remaining, 98);
    let headers: Vec<_> = over.response_headers_to_add.iter().map(|one| one.key.as_str()).collect();
    assert!(headers.contains(&"retry-after") && headers.contains(&"x-ratelimit-reset"));
    assert!(!client.is_over(&[("user", "bob")]).await);
}

#[tokio::test]
async fn an_invalid_request_is_an_error_of_the_client() {
    let server = Server::start(FILE);
    let mut client = Client::connect(server.address()).await;
    let no_domain = RateLimitRequest { domain: String::new(), ..request(&[("user", "ann")]) };
    for request in [no_domain, request(&[])] {
        let error = client.send(request).await.unwrap_err();
        assert_eq!(error.code(), GrpcCode::InvalidArgument);
    }
}

#[tokio::test]
async fn many_callers_at_once_get_exactly_the_limit() {
    let file = "{ domain: test, descriptors: [{ key: user, rate_limit: { rate: 500/year } }] }";
    let server = Server::start(file);
    let allowed = Arc::new(AtomicUsize::new(0));
    let mut callers = Vec::new();
    for _ in 0..10 {
        let mut client = Client::connect(server.address()).await;
        let allowed = Arc::clone(&allowed);
        callers.push(tokio::spawn(async move {
            for _ in 0..100 {
                if !client.is_over(&[("user", "ann")]).await {
                    allowed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(allowed.load(Ordering::Relaxed), 500);
}

#[tokio::test]
async fn requests_can_be_sent_as_json() {
    let server = Server::start(FILE);
    let body = r#"{"domain":"test","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
    let length = body.len();
    let request =
        format!("POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
    let mut client = crate::client::Client::connect(server.http());
    let responses = [(); 3].map(|()| client.request(&request));
    assert_eq!(responses.each_ref().map(|response| response.status()), [200, 200, 429]);
    assert!(responses[2].body.contains(r#""overallCode":"OVER_LIMIT""#), "{}", responses[2].body);
}

#[tokio::test]
async fn changed_files_are_loaded_and_invalid_ones_are_rejected() {
    let server = Server::start(FILE);
    let mut client = Client::connect(server.address()).await;
    assert!(!client.is_over(&[("user", "ann")]).await);
    server.write("limits.yaml", &FILE.replace("requests_per_unit", "requests_per_unlt"));
    server.wait_for_log("did you mean \"requests_per_unit\"?");
    assert_eq!(client.check(&[("user", "ann")]).await.statuses[0].limit_remaining, 0);
    server.write("limits.yaml", &FILE.replace("requests_per_unit: 2", "requests_per_unit: 5"));
    server.write("more.yml", "{ domain: more, descriptors: [] }");
    server.wait_for_log("domains=2");
    // Usage carries over.
    assert_eq!(client.check(&[("user", "ann")]).await.statuses[0].limit_remaining, 2);
}

#[tokio::test]
async fn it_serves_health_checks_and_reflection() {
    let server = Server::start(FILE);
    for service in ["", SERVICE, KUADRANT, "ratelimit"] {
        assert_eq!(health(&server, service).await, ServingStatus::Serving, "{service:?}");
    }
    let channel = channel(server.address()).await;
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let requests = tokio_stream::once(list);
    let mut responses = ServerReflectionClient::new(channel)
        .server_reflection_info(requests)
        .await
        .unwrap()
        .into_inner();
    let response = responses.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = response else { panic!("{response:?}") };
    for name in [SERVICE, KUADRANT] {
        assert!(list.service.iter().any(|service| service.name == name), "{name}");
    }
}

#[tokio::test]
async fn without_files_descriptors_bring_their_own_limit() {
    let server = Server::start_without_files(&["--grpc", "127.0.0.1:0"]);
    assert!(server.log().contains("(descriptors bring their own limits)"), "{}", server.log());
    let mut client = Client::connect(server.address()).await;
    let mut own = request(&[("user", "ann"), ("plan", "free")]);
    own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 2, unit: 6 });
    let mut remaining = Vec::new();
    for _ in 0..2 {
        let response = client.send(own.clone()).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok);
        assert!(response.statuses[1].current_limit.is_none());
        remaining.push(response.statuses[0].limit_remaining);
    }
    assert_eq!(remaining, [1, 0]);
    assert_eq!(client.send(own).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(health(&server, "ratelimit").await, ServingStatus::Serving);
    assert_eq!(HttpClient::connect(server.admin()).get("/readyz").status(), 200);
}

/// With several threads: the client takes part in closing a connection.
#[tokio::test(flavor = "multi_thread")]
async fn it_stops_at_once_when_nothing_is_in_flight() {
    let mut server = Server::start(FILE);
    let mut client = Client::connect(server.address()).await;
    assert!(!client.is_over(&[("other", "1")]).await);
    server.signal("-TERM");
    assert!(server.wait().success());
    assert!(client.send(request(&[("other", "1")])).await.is_err());
}
