//! The gRPC listener: Envoy's rate limit service (RLS), health checks and reflection.
//!
//! `handler` serves connections and authenticates requests, `rls` makes the decisions, and `health` serves
//! health checks and reflection.

mod handler;
mod health;
pub(super) mod rls;

pub(super) use handler::GrpcHandler;
