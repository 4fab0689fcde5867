//! A request of the caller's client, described in JSON, for which the policy decides.

use std::net::IpAddr;
use std::sync::Arc;

use ratekeeper::ActivePolicy;
use ratekeeper::policy::RequestAttributes;
use ratekeeper::policy::attributes::{Target, request_host};
use serde_json::Value;

use super::HttpApi;
use super::error::RequestError;
use super::json_fields::{self, JsonObject};

/// The parts of a request that a policy reads.
#[derive(Debug, Default)]
pub(crate) struct DescribedRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Option<String>,
    pub(super) host: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) peer: Option<IpAddr>,
}

impl HttpApi {
    /// Returns the policy that decides about a described request, if it can.
    pub(super) fn policy_for(
        &self,
        request: &DescribedRequest,
    ) -> Result<Arc<ActivePolicy>, RequestError> {
        let active = self.limiter.policy().active();
        let policy = active.policy();
        if policy.limits().is_empty() {
            return Err(RequestError::NoPolicy);
        }
        if request.peer.is_none() && policy.needs_client_ip(&request.attributes(self.now_us())) {
            return Err(RequestError::UnknownPeer);
        }
        Ok(active)
    }
}

impl DescribedRequest {
    pub(crate) fn attributes(&self, now_us: u64) -> RequestAttributes<'_> {
        RequestAttributes {
            host: self.host.as_deref(),
            query: self.query.as_deref(),
            headers: &self.headers,
            peer: self.peer,
            unix_secs: now_us / 1_000_000,
            ..RequestAttributes::new(&self.method, &self.path)
        }
    }

    /// Parses a body whose only member is `request`.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, RequestError> {
        let object = json_fields::parse_object(body)?;
        json_fields::check_known(&object, &["request"])?;
        let expected = "an object with a method and a path";
        let missing = RequestError::MissingField { field: "request", expected };
        Self::parse(object.get("request").ok_or(missing)?)
    }

    /// Parses the value of `request`.
    pub(super) fn parse(value: &Value) -> Result<Self, RequestError> {
        let expected = "an object with a method and a path";
        let object =
            value.as_object().ok_or(RequestError::FieldType { field: "request", expected })?;
        json_fields::check_known(object, &["method", "path", "host", "headers", "peer"])?;
        let expected = "the path and query of the request";
        let target = json_fields::required_string(object, "path", expected)?;
        let Target { authority, path, query } = Target::parse(target);
        let headers = headers(object)?;
        Ok(Self {
            method: json_fields::string(object, "method")?.unwrap_or("GET").to_string(),
            host: host(object, authority, &headers)?,
            path: path.to_string(),
            query: query.map(Into::into),
            peer: peer(object)?,
            headers,
        })
    }
}

fn peer(object: &JsonObject) -> Result<Option<IpAddr>, RequestError> {
    let Some(text) = json_fields::string(object, "peer")? else { return Ok(None) };
    let invalid = |source| RequestError::Peer { text: text.to_string(), source };
    text.parse().map(Some).map_err(invalid)
}

/// Returns the host. `host`, the target and the `Host` header must not contradict each other.
fn host(
    object: &JsonObject,
    authority: Option<&str>,
    headers: &[(String, String)],
) -> Result<Option<String>, RequestError> {
    let host = match (json_fields::string(object, "host")?, authority) {
        (Some(host), Some(authority)) => {
            request_host(Some(authority), [host.as_bytes()].into_iter())?
        }
        (host, authority) => host.or(authority),
    };
    let host_headers = headers.iter().filter(|(name, _)| name == "host");
    let host = request_host(host, host_headers.map(|(_, value)| value.as_bytes()))?;
    Ok(host.map(Into::into))
}

/// Returns the headers, with lower-case names. A header that was sent several times has a list of values.
fn headers(object: &JsonObject) -> Result<Vec<(String, String)>, RequestError> {
    let headers = match object.get("headers") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(headers)) => headers,
        Some(_) => {
            let expected = "an object of names and values";
            return Err(RequestError::FieldType { field: "headers", expected });
        }
    };
    let mut pairs = Vec::new();
    for (name, value) in headers {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let value = value.as_str().ok_or_else(|| RequestError::HeaderType(name.clone()))?;
            if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
                return Err(RequestError::HeaderControlCharacter(name.clone()));
            }
            pairs.push((name.to_ascii_lowercase(), value.to_string()));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(request: &str) -> Result<DescribedRequest, RequestError> {
        DescribedRequest::parse(&serde_json::from_str(request).unwrap())
    }

    #[test]
    fn a_described_request_has_one_host() {
        let host = |request: &str| parse(request).unwrap().host.unwrap_or_default();
        assert_eq!(host(r#"{"path":"/","host":"a:80"}"#), "a:80");
        assert_eq!(host(r#"{"path":"/","headers":{"Host":"a"}}"#), "a");
        assert_eq!(host(r#"{"path":"http://a/b"}"#), "a");
        assert_eq!(host(r#"{"path":"/","host":"a","headers":{"host":"A:80"}}"#), "a");
        let error = |request: &str| parse(request).unwrap_err().to_string();
        assert!(error(r#"{"path":"/","host":"a:80:80"}"#).contains("NAME:PORT"));
        assert!(
            error(r#"{"path":"/","host":"a","headers":{"host":"b"}}"#).contains("is not the host")
        );
        assert!(error(r#"{"path":"http://a/","host":"b"}"#).contains("is not the host"));
        assert!(error(r#"{"path":"/","headers":{"host":["a","a"]}}"#).contains("more than one"));
        assert!(error(r#"{"path":"/","headers":{"x":"a\r\n b"}}"#).contains("line break"));
    }

    #[test]
    fn a_field_of_the_wrong_type_is_rejected() {
        let error = |request: &str| parse(request).unwrap_err().to_string();
        assert!(error("1").contains("must be an object with a method"));
        assert!(error("{}").contains("\"path\" is missing"));
        assert!(error(r#"{"path":"/","headers":[]}"#).contains("an object of names"));
        assert!(error(r#"{"path":"/","headers":{"x":1}}"#).contains("the header x must be"));
        assert!(error(r#"{"path":"/","peer":"here"}"#).contains("not \"here\""));
    }
}
