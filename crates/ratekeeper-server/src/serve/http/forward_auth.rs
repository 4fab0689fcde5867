//! `/v1/auth`: forward-auth, by which a proxy lets the policy decide about a request that it has received.
//!
//! nginx (`auth_request`) is configured to send `X-Original-URI` and `X-Original-Method`. Traefik and Caddy
//! send `X-Forwarded-Uri`, `-Method` and `-Host` by default. Each passes on the other's headers as its client
//! sends them, so that some of a request with both kinds may be forged.

use http::header::HOST;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use ratekeeper::Admission;
use ratekeeper::policy::attributes::{HostError, Target, request_host};
use ratekeeper::policy::{Headers, RequestAttributes, ResponseSettings};
use thiserror::Error;

use super::HttpApi;
use super::described_request::DescribedRequest;
use super::error::NO_POLICY;
use super::response::{ApiResponse, empty_response, error_response};
use crate::trace::{self, DecisionInfo};

/// The names of the headers in which a proxy describes a request.
struct ProxyHeaders {
    method: &'static str,
    target: &'static str,
    host: &'static str,
}

const ORIGINAL: ProxyHeaders =
    ProxyHeaders { method: "x-original-method", target: "x-original-uri", host: "x-original-host" };
const FORWARDED: ProxyHeaders = ProxyHeaders {
    method: "x-forwarded-method",
    target: "x-forwarded-uri",
    host: "x-forwarded-host",
};

impl ProxyHeaders {
    /// Returns the kind that a proxy has sent.
    fn of(headers: &HeaderMap) -> Result<Self, ForwardAuthError> {
        match (ORIGINAL.is_in(headers), FORWARDED.is_in(headers)) {
            (true, true) => Err(ForwardAuthError::BothKinds),
            (true, false) => Ok(ORIGINAL),
            _ => Ok(FORWARDED),
        }
    }

    /// Hosts are left out: `X-Forwarded-Host` is common behind other proxies too.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(self.method) || headers.contains_key(self.target)
    }
}

/// Why it is unknown which request a proxy describes. It is denied: a guess could be a request without limits.
#[derive(Debug, Error)]
enum ForwardAuthError {
    #[error(
        "X-Original-* and X-Forwarded-Uri or -Method were sent together: the client may have forged one of them"
    )]
    BothKinds,
    #[error("{0} was sent more than once")]
    SentTwice(&'static str),
    #[error(
        "the proxy must describe the request in X-Original-URI and X-Original-Method, or in \
         X-Forwarded-Uri and X-Forwarded-Method"
    )]
    Incomplete,
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("?deny={0} is not a status for denials; use 401, 403 or 429")]
    DenyStatus(String),
}

impl ForwardAuthError {
    fn code(&self) -> &'static str {
        match self {
            Self::BothKinds | Self::SentTwice(_) => "AMBIGUOUS",
            Self::Incomplete => "INCOMPLETE",
            Self::Host(_) => "INVALID_HOST",
            Self::DenyStatus(_) => "BAD_REQUEST",
        }
    }
}

/// The headers of the described request: those of the proxy's own request.
pub(super) struct HeaderMapView<'a>(pub(super) &'a HeaderMap);

impl Headers for HeaderMapView<'_> {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        self.0.get_all(name).iter().for_each(|value| show(value.as_bytes()));
    }
}

/// Returns the value of a header. Bytes that are not UTF-8 are replaced rather than rejected, so that such a
/// target still counts as that path. Of two lines, one may be the client's.
fn header(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, ForwardAuthError> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match lines.next() {
        Some(_) => Err(ForwardAuthError::SentTwice(name)),
        None => Ok(value),
    }
}

/// Returns the host in the header `name`, or that of the proxy's own request.
fn host(
    headers: &HeaderMap,
    name: &'static str,
    target: &Target<'_>,
) -> Result<Option<String>, ForwardAuthError> {
    let named = header(headers, name)?.filter(|host| !host.is_empty());
    let named = match (named, target.authority) {
        (None, None) => header(headers, HOST.as_str())?,
        (named, _) => named,
    };
    let lines = named.iter().map(|host| host.as_bytes());
    Ok(request_host(target.authority, lines)?.map(Into::into))
}

/// Returns the request that the proxy describes.
fn described_request(headers: &HeaderMap) -> Result<DescribedRequest, ForwardAuthError> {
    let names = ProxyHeaders::of(headers)?;
    let required = |name| header(headers, name)?.ok_or(ForwardAuthError::Incomplete);
    let (method, target) = (required(names.method)?, required(names.target)?);
    let target = Target::parse(&target);
    Ok(DescribedRequest {
        host: host(headers, names.host, &target)?,
        method,
        path: target.path.to_string(),
        query: target.query.map(Into::into),
        headers: Vec::new(),
        peer: None,
    })
}

/// Responds with 200 if the request may proceed, otherwise with 429 or the status of `?deny=403`: nginx
/// understands only 401 and 403.
pub(super) async fn authorize<B>(
    api: &HttpApi,
    request: &Request<B>,
    peer: std::net::IpAddr,
) -> ApiResponse {
    let denied = match request.uri().query().map_or(Ok(StatusCode::TOO_MANY_REQUESTS), deny_status)
    {
        Ok(denied) => denied,
        Err(error) => {
            return error_response(StatusCode::BAD_REQUEST, error.code(), &error.to_string());
        }
    };
    let described = match described_request(request.headers()) {
        Ok(described) => described,
        Err(error) => {
            return error_response(StatusCode::FORBIDDEN, error.code(), &error.to_string());
        }
    };
    let (policy, now) = (api.limiter.policy().active(), api.limiter.engine().now());
    if policy.policy().limits().is_empty() {
        return error_response(StatusCode::INTERNAL_SERVER_ERROR, "NO_POLICY", NO_POLICY);
    }
    let deciding = {
        let headers = HeaderMapView(request.headers());
        let attributes = RequestAttributes {
            headers: &headers,
            peer: Some(peer),
            ..described.attributes(now.get())
        };
        api.forward_auth.decide_under(policy.clone(), &attributes, now)
    };
    let admission = deciding.await;
    let mut response = admission_response(policy.policy().response_settings(), &admission, denied);
    if trace::is_on() {
        response.extensions_mut().insert(decision_info(&admission));
    }
    response
}

fn admission_response(
    settings: &ResponseSettings,
    admission: &Admission,
    denied: StatusCode,
) -> ApiResponse {
    match admission {
        Admission::Exempt => empty_response(StatusCode::OK, HeaderMap::new()),
        Admission::Admitted(admitted) => {
            let mut headers = HeaderMap::new();
            if let Some(binding) = admitted.binding() {
                ratekeeper::tower::set_limit_headers(settings, binding, &mut headers);
            }
            empty_response(StatusCode::OK, headers)
        }
        Admission::Refused(refusal) => {
            let mut response = ratekeeper::tower::refuse(settings, refusal, false);
            // Others are no denials of the client.
            if response.status().as_u16() == settings.status {
                *response.status_mut() = denied;
            }
            response.map(Full::new)
        }
        Admission::Shed(refusal) => ratekeeper::tower::refuse_shed(refusal, false).map(Full::new),
    }
}

fn decision_info(admission: &Admission) -> DecisionInfo {
    match admission {
        Admission::Exempt => DecisionInfo::default(),
        Admission::Admitted(admitted) => DecisionInfo {
            limit: admitted.binding().map(|binding| binding.rule.name().to_string()),
            is_degraded: admitted.is_degraded,
        },
        Admission::Refused(refusal) => DecisionInfo {
            limit: Some(refusal.rule.name().to_string()),
            is_degraded: refusal.is_degraded,
        },
        Admission::Shed(_) => DecisionInfo::default(),
    }
}

/// Returns the status of denials: 429, or the one that `deny=` names.
fn deny_status(query: &str) -> Result<StatusCode, ForwardAuthError> {
    let Some(value) = query.split('&').find_map(|pair| pair.strip_prefix("deny=")) else {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    };
    match value {
        "401" => Ok(StatusCode::UNAUTHORIZED),
        "403" => Ok(StatusCode::FORBIDDEN),
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        _ => Err(ForwardAuthError::DenyStatus(value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(headers: &[(&'static str, &[u8])]) -> Result<String, &'static str> {
        let value = |value: &[u8]| http::HeaderValue::from_bytes(value).unwrap();
        let headers =
            headers.iter().map(|(name, text)| (http::HeaderName::from_static(name), value(text)));
        let DescribedRequest { method, host, path, query, .. } =
            described_request(&headers.collect()).map_err(|error| error.code())?;
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
        assert_eq!(described(&nginx).unwrap(), "POST shop/a?b=c");
        let traefik = [
            ("host", &b"ratekeeper"[..]),
            ("x-forwarded-uri", b"/a"),
            ("x-forwarded-method", b"PUT"),
            ("x-forwarded-host", b"shop"),
            ("x-original-host", b"forged"),
        ];
        assert_eq!(described(&traefik).unwrap(), "PUT shop/a");
    }

    #[test]
    fn headers_of_both_kinds_are_rejected_as_possibly_forged() {
        for (one, other) in [
            ("x-original-uri", "x-forwarded-uri"),
            ("x-original-uri", "x-forwarded-method"),
            ("x-original-method", "x-forwarded-uri"),
        ] {
            assert_eq!(
                described(&[(one, b"/a"), (other, b"/b")]),
                Err("AMBIGUOUS"),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn an_invalid_host_or_a_repeated_header_is_rejected() {
        let with_host = |host: &'static [u8]| {
            let uri = ("x-original-uri", &b"/a#b?c"[..]);
            described(&[uri, ("x-original-method", b"GET"), ("x-original-host", host)])
        };
        assert_eq!(with_host(b"shop:80").unwrap(), "GET shop:80/a");
        for host in [&b"shop:80:80"[..], b"::", b"shop\xff", b"a, b"] {
            assert_eq!(with_host(host), Err("INVALID_HOST"), "{host:?}");
        }
        let twice = [("x-original-uri", &b"/a"[..]), ("x-original-method", b"GET")];
        let twice = [&twice[..], &[("x-original-uri", b"/b")]].concat();
        assert_eq!(described(&twice), Err("AMBIGUOUS"));
    }

    #[test]
    fn a_path_that_is_not_utf8_is_still_that_path() {
        let uri = ("x-original-uri", &b"/checkout/\xff\xc3\xa9"[..]);
        let path = described(&[uri, ("x-original-method", b"GET")]).unwrap();
        assert_eq!(path, "GET /checkout/\u{fffd}\u{e9}");
    }
}
