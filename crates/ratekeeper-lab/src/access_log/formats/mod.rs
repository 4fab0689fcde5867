//! The formats: a file for each program or family.

pub(super) mod alb;
pub(super) mod caddy;
pub(super) mod cloudfront;
pub(super) mod combined;
pub(super) mod envoy;
pub(super) mod gateway;
pub(super) mod haproxy;
pub(super) mod nginx;
pub(super) mod traefik;
