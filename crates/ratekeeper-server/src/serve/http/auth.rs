//! Forward-auth: a proxy asks whether a request that it has received may pass.
//!
//! nginx (`auth_request`) is told to send `X-Original-URI` and `X-Original-Method`; Traefik and Caddy
//! send `X-Forwarded-Uri`, `-Method` and `-Host` by themselves. Each passes on what its caller sends in
//! the other's headers, so that a question with both kinds may be half invented.

use http::header::HOST;
use http::{HeaderMap, Request, StatusCode};
use ratekeeper::Admission;
use ratekeeper::policy::attributes::{Target, request_host};
use ratekeeper::policy::{Headers, ResponseSettings};

use super::HttpApi;
use super::ask::Described;
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

/// Why it cannot be known which request a proxy asks about: a code and a message.
type Unknown = (&'static str, String);

/// Any bytes count: a target that is no text must not become another one. Of two lines, one may be the
/// caller's.
fn text(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, Unknown> {
    let mut lines = headers.get_all(name).iter();
    let text = lines.next().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match lines.next() {
        Some(_) => Err(("AMBIGUOUS", format!("{name} was sent more than once"))),
        None => Ok(text),
    }
}

/// The host that the proxy names, or that of its own request.
fn host(
    headers: &HeaderMap,
    name: &'static str,
    target: &Target<'_>,
) -> Result<Option<String>, Unknown> {
    let named = text(headers, name)?.filter(|host| !host.is_empty());
    let named = match (named, target.authority) {
        (None, None) => text(headers, HOST.as_str())?,
        (named, _) => named,
    };
    let lines = named.iter().map(|host| host.as_bytes());
    let host = request_host(target.authority, lines);
    host.map(|host| host.map(Into::into)).map_err(|error| ("INVALID_HOST", error.to_string()))
}

/// The request that the proxy asks about; or why it cannot be known. A guess could be a request without
/// limits.
fn original(headers: &HeaderMap) -> Result<Described, Unknown> {
    let family = match (ORIGINAL.is_in(headers), FORWARDED.is_in(headers)) {
        (true, true) => {
            let message =
                "X-Original-* and X-Forwarded-Uri or -Method together: one of them is the caller's";
            return Err(("AMBIGUOUS", message.into()));
        }
        (true, false) => ORIGINAL,
        _ => FORWARDED,
    };
    let told = |name| text(headers, name)?.ok_or_else(|| ("INCOMPLETE", MISSING.to_string()));
    let (method, target) = (told(family.method)?, told(family.target)?);
    let target = Target::parse(&target);
    Ok(Described {
        host: host(headers, family.host, &target)?,
        method,
        path: target.path.to_string(),
        query: target.query.map(Into::into),
        headers: Vec::new(),
        peer: None,
    })
}

/// 200 if it may pass. Otherwise 429, or what `?deny=403` says: nginx understands nothing else but
/// 401 and 403.
pub(super) async fn answer<B>(door: &HttpApi, asked: &Request<B>, peer: std::net::IpAddr) -> Reply {
    let denied = asked.uri().query().and_then(deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let described = match original(asked.headers()) {
        Ok(described) => described,
        Err((code, message)) => return wrong(StatusCode::FORBIDDEN, code, &message),
    };
    let (policy, now) = (door.gate.policy().active(), door.gate.engine().now());
    let deciding = {
        let headers = Original(asked.headers());
        let request = ratekeeper::policy::RequestAttributes {
            method: &described.method,
            host: described.host.as_deref(),
            path: &described.path,
            query: described.query.as_deref(),
            headers: &headers,
            peer: Some(peer),
            custom: &|_| None,
            unix_secs: now.get() / 1_000_000,
        };
        door.gate.decide_under(policy.clone(), &request, now)
    };
    let admission = deciding.await;
    let mut reply = told(policy.policy().response_settings(), &admission, denied);
    if trace::is_on() {
        reply.extensions_mut().insert(about(&admission));
    }
    reply
}

fn told(answers: &ResponseSettings, admission: &Admission, denied: StatusCode) -> Reply {
    match admission {
        Admission::Exempt => empty(StatusCode::OK, HeaderMap::new()),
        Admission::Admitted(admitted) => {
            let mut headers = HeaderMap::new();
            if let Some(speaker) = admitted.binding() {
                ratekeeper::tower::set_limit_headers(answers, speaker, &mut headers);
            }
            empty(StatusCode::OK, headers)
        }
        Admission::Refused(refusal) => {
            let mut reply = ratekeeper::tower::refuse(answers, refusal, false);
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
            limit: admitted.binding().map(|speaker| speaker.rule.name().to_string()),
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
            ("host", &b"ratekeeper"[..]),
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
    fn a_host_that_is_none_is_refused() {
        let ask = |host: &'static [u8]| {
            let uri = ("x-original-uri", &b"/a#b?c"[..]);
            told(&[uri, ("x-original-method", b"GET"), ("x-original-host", host)])
        };
        assert_eq!(ask(b"shop:80").unwrap(), "GET shop:80/a");
        for host in [&b"shop:80:80"[..], b"::", b"shop\xff", b"a, b"] {
            assert_eq!(ask(host), Err("INVALID_HOST"), "{host:?}");
        }
        let twice = [("x-original-uri", &b"/a"[..]), ("x-original-method", b"GET")];
        let twice = [&twice[..], &[("x-original-uri", b"/b")]].concat();
        assert_eq!(told(&twice), Err("AMBIGUOUS"));
    }

    #[test]
    fn a_path_that_is_no_text_is_still_that_path() {
        let uri = ("x-original-uri", &b"/checkout/\xff\xc3\xa9"[..]);
        let path = told(&[uri, ("x-original-method", b"GET")]).unwrap();
        assert_eq!(path, "GET /checkout/\u{fffd}\u{e9}");
    }
}
