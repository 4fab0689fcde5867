//! Counts and times what is asked.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::{Request, StatusCode};
use http_body::Body;

use super::reply::Reply;
use super::{HttpApi, routes};
use crate::serve::meters::{Outcome, Tally};
use crate::trace::{self, About, Parent, Question};

/// What a path is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// May this pass?
    Decision,
    /// The same, asked by a proxy.
    Auth,
    /// About limits, but nothing is decided.
    Other,
    /// Not about limits: help, health.
    Page,
}

pub(super) async fn answer<B>(door: &HttpApi, request: Request<B>, peer: IpAddr) -> Reply
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let purpose = Purpose::of(request.uri().path());
    let parent = Parent::of(request.headers());
    let (meters, began) = (&door.meters, door.gate.engine().now());
    let mut reply = routes::answer(door, request, peer).await;
    let meter = if purpose == Purpose::Auth { &meters.auth } else { &meters.http };
    let outcome = purpose.outcome(&reply);
    if purpose == Purpose::Page {
        meter.count(outcome);
        return reply;
    }
    let ended = door.gate.engine().now();
    meter.record(&Tally::one(outcome), ended.since(began));
    if trace::is_on() {
        let About { limit, is_degraded } = reply.extensions_mut().remove().unwrap_or_default();
        let door = if purpose == Purpose::Auth { "auth" } else { "http" };
        let (limit, outcome) = (limit.as_deref(), outcome.name());
        trace::tell(&Question { door, limit, outcome, is_degraded, began, ended, parent });
    }
    reply
}

impl Purpose {
    fn of(path: &str) -> Self {
        match path {
            "/v1/check" | "/v1/reserve" | "/v1/acquire" | "/json" => Self::Decision,
            "/v1/auth" => Self::Auth,
            _ if path.starts_with("/v1/") => Self::Other,
            _ => Self::Page,
        }
    }

    fn outcome(self, reply: &Reply) -> Outcome {
        let status = reply.status();
        // Who has no token is not asked about anything; a policy that misses an identity denies.
        let is_stranger = reply.headers().contains_key(WWW_AUTHENTICATE);
        match (self, status) {
            (Self::Decision | Self::Auth, StatusCode::OK) => Outcome::Allowed,
            (Self::Auth, _) if !is_stranger && !status.is_server_error() => Outcome::Denied,
            (Self::Decision, StatusCode::TOO_MANY_REQUESTS) => Outcome::Denied,
            (Self::Decision, StatusCode::UNAUTHORIZED) if !is_stranger => Outcome::Denied,
            _ if status.is_success() => Outcome::Other,
            _ => Outcome::Error,
        }
    }
}
