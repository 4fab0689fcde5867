//! Who may do what on the admin listener, by token, and by the site whose page sent a request.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Method};

use crate::tokens::Tokens;

/// What requests of the admin listener need.
pub(crate) struct AdminAccess {
    /// Needed for everything but health checks.
    pub(crate) tokens: Arc<Tokens>,
    /// Enough to read what names no keys.
    pub(crate) read_tokens: Arc<Tokens>,
    /// Names of the listener that browsers may use, besides `localhost` and addresses.
    pub(crate) hosts: Vec<String>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AccessError {
    #[error("a valid bearer token is needed")]
    NoToken,
    #[error("requests of other sites are rejected")]
    OtherSite,
    #[error(
        "without admin tokens, keys are only shown and changes only accepted under localhost, an address, or a name \
         given with --admin-host"
    )]
    UnknownHost,
    #[error("this token may not see keys or change anything")]
    ReadOnly,
}

impl AdminAccess {
    pub(super) fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), AccessError> {
        if matches!(path, "/healthz" | "/readyz") {
            return Ok(());
        }
        let has_tokens = !self.tokens.is_empty() || !self.read_tokens.is_empty();
        let is_full = !has_tokens || self.tokens.has_bearer(headers);
        if !is_full && !self.read_tokens.has_bearer(headers) {
            return Err(AccessError::NoToken);
        }
        if method == Method::POST && is_of_another_site(headers) {
            return Err(AccessError::OtherSite);
        }
        if !needs_full_access(method, path) {
            return Ok(());
        }
        if !has_tokens && may_be_a_browser(method, headers) && !self.is_own_host(headers) {
            return Err(AccessError::UnknownHost);
        }
        if is_full { Ok(()) } else { Err(AccessError::ReadOnly) }
    }

    /// Whether the `Host` header is not a name that another site can make lead here (DNS rebinding).
    fn is_own_host(&self, headers: &HeaderMap) -> bool {
        // All browsers send it.
        let Some(host) = headers.get(HOST) else { return true };
        let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let mut names = self.hosts.iter().map(String::as_str).chain(["localhost"]);
        host.parse::<IpAddr>().is_ok() || names.any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// Whether a request shows keys or changes something.
fn needs_full_access(method: &Method, path: &str) -> bool {
    let is_post = method == Method::POST && path != "/v1/simulate";
    is_post || path == "/v1/top" || path.starts_with("/v1/keys") || path.starts_with("/v1/refusals")
}

/// Browsers name the origin of every POST.
fn may_be_a_browser(method: &Method, headers: &HeaderMap) -> bool {
    method != Method::POST || headers.contains_key(ORIGIN)
}

/// Whether a page of another site made a browser send this request.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let authority = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    authority.is_none() || authority != headers.get(HOST).and_then(|host| host.to_str().ok())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn access(tokens: &[&str], read_tokens: &[&str]) -> AdminAccess {
        AdminAccess {
            tokens: Arc::new(Tokens::of(tokens)),
            read_tokens: Arc::new(Tokens::of(read_tokens)),
            hosts: vec!["limits.internal".into()],
        }
    }

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        let pair = |(name, value): &(http::HeaderName, &str)| {
            (name.clone(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_name_that_leads_here_shows_browsers_no_keys_and_changes_nothing() {
        let access = access(&[], &[]);
        let top = |host: &str| access.check(&Method::GET, "/v1/top", &headers(&[(HOST, host)]));
        let names = ["localhost", "LOCALHOST:9091", "127.0.0.1:9091", "[::1]:9091", "10.1.2.3"];
        for host in names.into_iter().chain(["limits.internal:9091", "Limits.Internal"]) {
            assert_eq!(top(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:9091", "localhost.evil.example", "127.0.0.1.x"] {
            assert_eq!(top(host), Err(AccessError::UnknownHost), "{host}");
        }
        let reset = |pairs| access.check(&Method::POST, "/v1/keys/reset", &headers(pairs));
        let rebound = [(HOST, "evil.example"), (ORIGIN, "http://evil.example")];
        assert_eq!(reset(&rebound), Err(AccessError::UnknownHost));
        assert_eq!(reset(&[(HOST, "ratekeeper")]), Ok(()), "browsers send an origin");
        let metrics = headers(&[(HOST, "ratekeeper:9091")]);
        assert_eq!(access.check(&Method::GET, "/metrics", &metrics), Ok(()));
    }

    #[test]
    fn a_token_is_needed_for_all_but_health_and_decides_what_is_shown() {
        use http::header::AUTHORIZATION;
        let access = access(&["omega"], &["alpha"]);
        let check = |method: &Method, path, token: &str| {
            let token = format!("Bearer {token}");
            access.check(method, path, &headers(&[(HOST, "a.example"), (AUTHORIZATION, &token)]))
        };
        assert_eq!(check(&Method::GET, "/healthz", "wrong"), Ok(()));
        assert_eq!(check(&Method::GET, "/v1/status", "wrong"), Err(AccessError::NoToken));
        assert_eq!(check(&Method::GET, "/v1/status", "alpha"), Ok(()));
        assert_eq!(check(&Method::POST, "/v1/simulate", "alpha"), Ok(()));
        for path in ["/v1/top", "/v1/refusals", "/v1/refusals/1"] {
            assert_eq!(check(&Method::GET, path, "alpha"), Err(AccessError::ReadOnly), "{path}");
            assert_eq!(check(&Method::GET, path, "omega"), Ok(()), "{path}");
        }
        assert_eq!(check(&Method::POST, "/v1/explain", "alpha"), Err(AccessError::ReadOnly));
        assert_eq!(check(&Method::POST, "/v1/explain", "omega"), Ok(()));
    }
}
