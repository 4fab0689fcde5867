//! The messages and the service, generated from `proto/`.

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, dead_code)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

use generated::envoy;

pub(crate) use envoy::config::core::v3::HeaderValue;
pub(crate) use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub(crate) use envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
pub(crate) use envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub(crate) use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The encoded file descriptor set, for reflection and JSON.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.bin"));
