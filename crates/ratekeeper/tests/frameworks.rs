//! The layer in axum, tonic and plain hyper, over real connections.
#![cfg(all(feature = "axum", feature = "tonic"))]

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use ratekeeper::tower::PeerAddr;
use ratekeeper::{Policy, PolicyLimiter, RatekeeperLayer};
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

async fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{addr}{path}")).body(Empty::new()).unwrap();
    let response = client.request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn one_line_limits_an_axum_app_by_ip() {
    let app = axum::Router::new()
        .route("/", axum::routing::get(|| async { "hello" }))
        .layer(ratekeeper::layer("2/hour per ip").unwrap());
    let (listener, addr) = listen().await;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, service).await });
    assert_eq!(get(addr, "/").await, (200, "hello".into()));
    assert_eq!(get(addr, "/").await.0, 200);
    let (status, body) = get(addr, "/").await;
    assert_eq!(status, 429);
    assert!(body.contains("RATE_LIMITED"), "{body}");
    server.abort();
}

#[tokio::test]
async fn without_connect_info_an_axum_app_says_what_is_missing() {
    let app = axum::Router::new()
        .route("/", axum::routing::get(|| async { "hello" }))
        .layer(ratekeeper::layer("1/hour per ip").unwrap());
    let (listener, addr) = listen().await;
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let (status, body) = get(addr, "/").await;
    assert_eq!(status, 500, "all callers would share one quota");
    assert!(body.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{body}");
    server.abort();
}

#[tokio::test]
async fn a_tonic_service_refuses_with_resource_exhausted() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    let policy = "
version: 1
limits:
  - name: health
    match: { path: /grpc.health.v1.Health/Check }
    per: ip
    rate: 2/hour
";
    let policy = Policy::parse("policy.yaml", policy, &ratekeeper::policy::NoSources).unwrap();
    let layer = RatekeeperLayer::new(PolicyLimiter::new(policy).unwrap());
    let (_, health) = tonic_health::server::health_reporter();
    let (listener, addr) = listen().await;
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().layer(layer).add_service(health);
    let server = tokio::spawn(server.serve_with_incoming(incoming));

    let channel = tonic::transport::Endpoint::try_from(format!("http://{addr}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut check = async || client.check(HealthCheckRequest::default()).await;
    assert!(check().await.is_ok());
    assert!(check().await.is_ok());
    let refused = check().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.metadata().get("retry-after").is_some());
    server.abort();
}

#[tokio::test]
async fn the_layer_works_with_plain_hyper() {
    let hello = |_: Request<hyper::body::Incoming>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::from("hello")))
    };
    let layer = ratekeeper::layer("2/hour per ip").unwrap();
    let (listener, addr) = listen().await;
    let server = tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = layer.layer(service_fn(hello));
            let service = service_fn(move |mut request: Request<_>| {
                request.extensions_mut().insert(PeerAddr(peer));
                tower::ServiceExt::oneshot(service.clone(), request)
            });
            let service = TowerToHyperService::new(service);
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    let statuses = [get(addr, "/").await.0, get(addr, "/").await.0, get(addr, "/").await.0];
    assert_eq!(statuses, [200, 200, 429]);
    server.abort();
}
