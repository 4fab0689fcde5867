//! The messages and the service, generated from `proto/`.

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, dead_code)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

use generated::{envoy, kuadrant};

pub(crate) use envoy::config::core::v3::HeaderValue;
pub(crate) use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub(crate) use envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
pub(crate) use envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub(crate) use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

pub(crate) use kuadrant::service::ratelimit::v1::rate_limit_service_server::{
    RateLimitService as KuadrantService, RateLimitServiceServer as KuadrantServiceServer,
};
pub(crate) use kuadrant::service::ratelimit::v1::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};

/// The encoded file descriptor set, for reflection and JSON.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.bin"));
