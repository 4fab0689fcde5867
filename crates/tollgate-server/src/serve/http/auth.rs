//! Forward-auth: a proxy asks whether a request that it has received may pass.
//!
//! nginx (`auth_request`) is told to send `X-Original-URI` and `X-Original-Method`; Traefik and Caddy
//! send `X-Forwarded-Uri`, `-Method` and `-Host` by themselves. Each passes on what its caller sends in
//! the other's headers, so that a question with both kinds may be half invented.

use http::header::HOST;
use http::{HeaderMap, Request, StatusCode};
use tollgate::gate::Admission;
use tollgate::policy::Headers;

use super::HttpDoor;
use super::ask::{Described, split_target};
use super::reply::{Reply, empty, wrong};
use crate::trace::{self, About};

/// The headers in which a proxy describes a request.
struct Family {
    method: &'static str,
    target: &'static str,
    host: &'static str,
}

const ORIGINAL: Family =
    Family { method: "x-original-method", target: "x-original-uri", host: "x-original-host" };
const FORWARDED: Family =
    Family { method: "x-forwarded-method", target: "x-forwarded-uri", host: "x-forwarded-host" };

const MISSING: &str = "the proxy has to say what it asks about: in X-Original-URI and X-Original-Method, or in \
    X-Forwarded-Uri and X-Forwarded-Method";

impl Family {
    /// Hosts are left out: `X-Forwarded-Host` is common behind other proxies too.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(self.method) || headers.contains_key(self.target)
    }
}

/// Headers of the request that is asked about.
pub(super) struct Original<'a>(pub(super) &'a HeaderMap);

impl Headers for Original<'_> {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        self.0.get_all(name).iter().for_each(|value| show(value.as_bytes()));
    }
}

/// Any bytes count: a target that is no text must not become another one.
fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// The request that the proxy asks about; or why it cannot be known. A guess could be a request without
/// limits.
fn original(headers: &HeaderMap) -> Result<Described, (&'static str, String)> {
    let family = match (ORIGINAL.is_in(headers), FORWARDED.is_in(headers)) {
        (true, true) => {
            let message =
                "X-Original-* and X-Forwarded-Uri or -Method together: one of them is the caller's";
            return Err(("AMBIGUOUS", message.into()));
        }
        (true, false) => ORIGINAL,
        _ => FORWARDED,
    };
    let told = |name: &str| text(headers, name).ok_or_else(|| ("INCOMPLETE", MISSING.to_string()));
    let (method, target) = (told(family.method)?, told(family.target)?);
    let (path, query) = split_target(&target);
    Ok(Described {
        method,
        path: path.to_string(),
        query: query.map(Into::into),
        host: text(headers, family.host).or_else(|| text(headers, HOST.as_str())),
        headers: Vec::new(),
        peer: None,
    })
}

/// 200 if it may pass. Otherwise 429, or what `?deny=403` says: nginx understands nothing else but
/// 401 and 403.
pub(super) async fn answer<B>(
    door: &HttpDoor,
    asked: &Request<B>,
    peer: std::net::IpAddr,
) -> Reply {
    let denied = asked.uri().query().and_then(deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let described = match original(asked.headers()) {
        Ok(described) => described,
        Err((code, message)) => return wrong(StatusCode::FORBIDDEN, code, &message),
    };
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
            About { limit: Some(refusal.rule.name().to_string()), is_degraded: refusal.is_degraded }
        }
    }
}

fn deny_status(query: &str) -> Option<StatusCode> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("deny="))?;
    StatusCode::from_bytes(value.as_bytes()).ok().filter(StatusCode::is_client_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(headers: &[(&'static str, &[u8])]) -> Result<String, &'static str> {
        let value = |value: &[u8]| http::HeaderValue::from_bytes(value).unwrap();
        let headers =
            headers.iter().map(|(name, text)| (http::HeaderName::from_static(name), value(text)));
        let Described { method, host, path, query, .. } =
            original(&headers.collect()).map_err(|(code, _)| code)?;
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        Ok(format!("{method} {}{path}{query}", host.unwrap_or_default()))
    }

    #[test]
    fn a_proxy_describes_a_request_in_its_own_headers() {
        let nginx = [
            ("host", &b"shop"[..]),
            ("x-original-uri", b"/a?b=c"),
            ("x-original-method", b"POST"),
            ("x-forwarded-host", b"forged"),
        ];
        assert_eq!(told(&nginx).unwrap(), "POST shop/a?b=c");
        let traefik = [
            ("host", &b"tollgate"[..]),
            ("x-forwarded-uri", b"/a"),
            ("x-forwarded-method", b"PUT"),
            ("x-forwarded-host", b"shop"),
            ("x-original-host", b"forged"),
        ];
        assert_eq!(told(&traefik).unwrap(), "PUT shop/a");
    }

    #[test]
    fn what_the_caller_may_have_written_is_not_believed() {
        for (one, other) in [
            ("x-original-uri", "x-forwarded-uri"),
            ("x-original-uri", "x-forwarded-method"),
            ("x-original-method", "x-forwarded-uri"),
        ] {
            assert_eq!(told(&[(one, b"/a"), (other, b"/b")]), Err("AMBIGUOUS"), "{one} {other}");
        }
    }

    #[test]
    fn a_path_that_is_no_text_is_still_that_path() {
        let uri = ("x-original-uri", &b"/checkout/\xff\xc3\xa9"[..]);
        let path = told(&[uri, ("x-original-method", b"GET")]).unwrap();
        assert_eq!(path, "GET /checkout/\u{fffd}\u{e9}");
    }
}
