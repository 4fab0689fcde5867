//! Rate limit services over tonic, on one thread: an empty one, and one that
//! calls limitador, whose own server is not published as a package.

use std::collections::HashMap;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use tokio::runtime::Builder;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, async_trait};
use tonic_prost::ProstCodec;

#[allow(clippy::all, dead_code)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

use generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use generated::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use generated::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// A request in throttlecrab's own protocol.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ThrottleRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ThrottleResponse {
    #[prost(bool, tag = "1")]
    allowed: bool,
}

pub fn throttle_request() -> ThrottleRequest {
    let key = "user:12345".to_string();
    let (max_burst, count_per_period) = (1_000_000, 1_000_000);
    ThrottleRequest { key, max_burst, count_per_period, period: 1, quantity: 1 }
}

/// Asserts that a request is allowed, because load generators do not check responses.
pub fn assert_envoy_allows(port: u16, method: &'static str) {
    let response: RateLimitResponse = call(port, method, rate_limit_request());
    assert_eq!(response.overall_code(), Code::Ok, "{response:?}");
}

pub fn assert_throttlecrab_allows(port: u16, method: &'static str) {
    let response: ThrottleResponse = call(port, method, throttle_request());
    assert!(response.allowed);
}

fn call<Q, A>(port: u16, method: &'static str, request: Q) -> A
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let endpoint =
            Channel::from_shared(format!("http://127.0.0.1:{port}")).expect("an address");
        let mut client = Grpc::new(endpoint.connect().await.expect("a server"));
        client.ready().await.expect("a server");
        let codec = ProstCodec::<Q, A>::default();
        let method = PathAndQuery::from_static(method);
        let response = client.unary(Request::new(request), method, codec).await;
        response.expect("a response").into_inner()
    })
}

/// Returns a request as Envoy sends it.
pub fn rate_limit_request() -> RateLimitRequest {
    let entry = Entry { key: "user".into(), value: "user:12345".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Serves until it is killed.
pub fn run(name: &str, port: &str) {
    let service = match name {
        "empty" => Peer::Empty,
        "limitador" => Peer::limitador(),
        _ => panic!("no peer is called {name}"),
    };
    let address = format!("127.0.0.1:{port}").parse().expect("a port");
    let server = Server::builder().tcp_nodelay(true);
    let served = async move {
        server.clone().add_service(RateLimitServiceServer::new(service)).serve(address).await
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(served).expect("a listener");
}

enum Peer {
    Empty,
    Limitador(RateLimiter, Namespace),
}

impl Peer {
    fn limitador() -> Self {
        let limiter = RateLimiter::new(1_000_000);
        let user = "descriptors[0].user".try_into().expect("a variable");
        let none: Vec<limitador::limit::Predicate> = Vec::new();
        limiter.add_limit(Limit::new("bench", u64::MAX / 2, 60, none, vec![user]));
        Self::Limitador(limiter, "bench".into())
    }
}

#[async_trait]
impl RateLimitService for Peer {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let is_limited = match self {
            Self::Empty => false,
            Self::Limitador(limiter, namespace) => {
                let values = |descriptor: &RateLimitDescriptor| -> HashMap<String, String> {
                    let entries = descriptor.entries.iter();
                    entries.map(|entry| (entry.key.clone(), entry.value.clone())).collect()
                };
                let mut context = Context::default();
                let all = request.descriptors.iter().map(values).collect();
                context.list_binding("descriptors".to_string(), all);
                let checked = limiter.check_rate_limited_and_update(namespace, &context, 1);
                checked.map_err(|error| Status::internal(error.to_string()))?.limited
            }
        };
        let code = if is_limited { Code::OverLimit } else { Code::Ok } as i32;
        let status = DescriptorStatus { code, ..Default::default() };
        let statuses = vec![status; request.descriptors.len()];
        Ok(Response::new(RateLimitResponse { overall_code: code, statuses, ..Default::default() }))
    }
}
