//! A gRPC client that sends requests as Envoy does.

use std::net::SocketAddr;

use tonic::Status;
use tonic::transport::Channel;

#[allow(clippy::all, missing_docs, unreachable_pub, dead_code)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

#[allow(unused_imports, reason = "the tests of the server do not use it")]
pub(crate) use generated::kuadrant::service::ratelimit::v1 as kuadrant;

use generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
#[allow(unused_imports, reason = "the TLS tests of the server do without")]
pub(crate) use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
pub(crate) use generated::envoy::service::ratelimit::v3::rate_limit_response::Code;
use generated::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub(crate) use generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

#[derive(Clone)]
pub(crate) struct Client(RateLimitServiceClient<Channel>);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(RateLimitServiceClient::new(channel(address).await))
    }

    /// Returns a client over an open connection.
    #[allow(dead_code, reason = "the TLS tests of the server use it")]
    pub(crate) fn over(channel: Channel) -> Self {
        Self(RateLimitServiceClient::new(channel))
    }

    pub(crate) async fn send(
        &mut self,
        request: impl tonic::IntoRequest<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        self.0.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// Sends descriptors of one entry each.
    pub(crate) async fn check(&mut self, entries: &[(&str, &str)]) -> RateLimitResponse {
        self.send(request(entries)).await.expect("a response")
    }

    pub(crate) async fn is_over(&mut self, entries: &[(&str, &str)]) -> bool {
        self.check(entries).await.overall_code() == Code::OverLimit
    }
}

pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

pub(crate) fn request(entries: &[(&str, &str)]) -> RateLimitRequest {
    let descriptor = |(key, value): &(&str, &str)| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).into(), value: (*value).into() }],
        ..RateLimitDescriptor::default()
    };
    let descriptors = entries.iter().map(descriptor).collect();
    RateLimitRequest { domain: "test".into(), descriptors, hits_addend: 0 }
}
