//! Forward-auth: a proxy asks whether a request that it has received may pass.
//!
//! nginx (`auth_request`) is told to send `X-Original-URI` and `X-Original-Method`; Traefik and Caddy
//! send `X-Forwarded-Uri`, `-Method` and `-Host` by themselves.

use http::header::HOST;
use http::{HeaderMap, HeaderName, Request, StatusCode};
use tollgate::gate::Admission;
use tollgate::policy::Headers;

use super::HttpDoor;
use super::ask::{Described, split_target};
use super::reply::{Reply, empty};
use crate::trace::{self, About};

const METHODS: [HeaderName; 2] =
    [HeaderName::from_static("x-original-method"), HeaderName::from_static("x-forwarded-method")];
const TARGETS: [HeaderName; 2] =
    [HeaderName::from_static("x-original-uri"), HeaderName::from_static("x-forwarded-uri")];
const HOSTS: [HeaderName; 2] =
    [HeaderName::from_static("x-original-host"), HeaderName::from_static("x-forwarded-host")];

/// Headers of the request that is asked about.
pub(super) struct Original<'a>(pub(super) &'a HeaderMap);

impl Headers for Original<'_> {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        self.0.get_all(name).iter().for_each(|value| show(value.as_bytes()));
    }
}

fn first<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Option<&'h str> {
    names.iter().find_map(|name| headers.get(name)).and_then(|value| value.to_str().ok())
}

/// The request that the proxy asks about.
fn original<B>(asked: &Request<B>) -> Described {
    let headers = asked.headers();
    let (path, query) = split_target(first(headers, &TARGETS).unwrap_or("/"));
    let host = first(headers, &HOSTS).or_else(|| headers.get(HOST)?.to_str().ok());
    Described {
        method: first(headers, &METHODS).unwrap_or("GET").to_string(),
        path: path.to_string(),
        query: query.map(Into::into),
        host: host.map(Into::into),
        headers: Vec::new(),
        peer: None,
    }
}

/// 200 if it may pass. Otherwise 429, or what `?deny=403` says: nginx understands nothing else but
/// 401 and 403.
pub(super) async fn answer<B>(
    door: &HttpDoor,
    asked: &Request<B>,
    peer: std::net::IpAddr,
) -> Reply {
    let denied = asked.uri().query().and_then(deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let described = original(asked);
    let deciding = {
        let headers = Original(asked.headers());
        let request = tollgate::policy::Request {
            method: &described.method,
            host: described.host.as_deref(),
            path: &described.path,
            query: described.query.as_deref(),
            headers: &headers,
            peer: Some(peer),
            custom: &|_| None,
            unix_secs: door.now_us() / 1_000_000,
        };
        door.gate.decide(&request)
    };
    let admission = deciding.await;
    let mut reply = told(door, &admission, denied);
    if trace::is_on() {
        reply.extensions_mut().insert(about(&admission));
    }
    reply
}

fn told(door: &HttpDoor, admission: &Admission, denied: StatusCode) -> Reply {
    let live = door.gate.live();
    let answers = live.policy().answers();
    match admission {
        Admission::Exempt => empty(StatusCode::OK, HeaderMap::new()),
        Admission::Admitted(admitted) => {
            let mut headers = HeaderMap::new();
            if let Some(speaker) = admitted.speaker() {
                tollgate::http::tell(answers, speaker, &mut headers);
            }
            empty(StatusCode::OK, headers)
        }
        Admission::Refused(refusal) => {
            let mut reply = tollgate::http::refuse(answers, refusal, false);
            if *reply.status_mut() != StatusCode::UNAUTHORIZED {
                *reply.status_mut() = denied;
            }
            reply.map(http_body_util::Full::new)
        }
    }
}

fn about(admission: &Admission) -> About {
    match admission {
        Admission::Exempt => About::default(),
        Admission::Admitted(admitted) => About {
            limit: admitted.speaker().map(|speaker| speaker.rule.name().to_string()),
            is_degraded: admitted.is_degraded,
        },
        Admission::Refused(refusal) => {
            About { limit: Some(refusal.rule.name().to_string()), is_degraded: false }
        }
    }
}

fn deny_status(query: &str) -> Option<StatusCode> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("deny="))?;
    StatusCode::from_bytes(value.as_bytes()).ok().filter(StatusCode::is_client_error)
}
