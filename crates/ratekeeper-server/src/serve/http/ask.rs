//! What a caller asks, read from JSON.

use std::borrow::Cow;
use std::sync::Arc;

use ratekeeper::policy::attributes::{Target, request_host};
use ratekeeper::policy::json::{JsonError, check_unique_members};
use ratekeeper::{Charge, Cost, Limit};
use serde::Deserialize;
use serde_json::{Map, Value};
use smallvec::{SmallVec, smallvec};

use super::limits::Asked;

/// The most limits in one question.
pub(super) const CHECKS_MAX: usize = 16;
const KEY_MAX: usize = 1_024;

/// One limit, one key, one cost.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) limit: Arc<Limit>,
    pub(super) key: String,
    pub(super) cost: Cost,
}

/// A request to be judged by the policy.
#[derive(Debug, Default)]
pub(super) struct Described {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Option<String>,
    pub(super) host: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) peer: Option<std::net::IpAddr>,
}

impl Described {
    pub(super) fn request(&self, now_us: u64) -> ratekeeper::policy::RequestAttributes<'_> {
        ratekeeper::policy::RequestAttributes {
            method: &self.method,
            host: self.host.as_deref(),
            path: &self.path,
            query: self.query.as_deref(),
            headers: &self.headers,
            peer: self.peer,
            custom: &|_| None,
            unix_secs: now_us / 1_000_000,
        }
    }
}

/// What can be asked.
#[derive(Debug)]
pub(super) enum Question {
    Checks(SmallVec<[Check; 1]>),
    Request(Box<Described>),
}

/// What is wrong with a question, and what would do.
pub(super) type Wrong = String;

impl Question {
    pub(super) fn read(body: &[u8]) -> Result<Self, Wrong> {
        // The slow way has the better complaints.
        if let Some(check) = Check::read_plain(body) {
            return Ok(Self::Checks(smallvec![check]));
        }
        let object = object(body)?;
        if let Some(request) = object.get("request") {
            only(&object, &["request"])?;
            return described(request).map(|request| Self::Request(Box::new(request)));
        }
        if let Some(checks) = object.get("checks") {
            only(&object, &["checks"])?;
            let list = checks.as_array().ok_or("\"checks\" is a list")?;
            if list.is_empty() || list.len() > CHECKS_MAX {
                return Err(format!(
                    "\"checks\" has 1 to {CHECKS_MAX} entries, not {}",
                    list.len()
                ));
            }
            let each = list.iter().map(|check| match check.as_object() {
                Some(check) => Check::read(check, &[]),
                None => Err("each of \"checks\" is an object with a key and a rate".into()),
            });
            return each.collect::<Result<_, _>>().map(Self::Checks);
        }
        Check::read(&object, &[]).map(|check| Self::Checks(smallvec![check]))
    }
}

impl Check {
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge::new(&self.limit, &self.key).cost(self.cost)
    }

    /// A check, and other fields that may stand beside it.
    pub(super) fn read(object: &Map<String, Value>, others: &[&str]) -> Result<Self, Wrong> {
        only(object, &[&["key", "rate", "algorithm", "cost", "name"], others].concat())?;
        let key = key(object)?;
        let rate = text(object, "rate")?
            .ok_or("a rate is missing, such as {\"key\":\"user:42\",\"rate\":\"100/minute\"}")?;
        let asked =
            Asked { rate, algorithm: text(object, "algorithm")?, name: text(object, "name")? };
        Ok(Self { limit: asked.limit()?, key, cost: cost(object)? })
    }

    /// The same from what most callers send: these fields, spelt right.
    fn read_plain(body: &[u8]) -> Option<Self> {
        // serde would take a list for an object.
        body.trim_ascii_start().strip_prefix(b"{")?;
        let Plain { key, rate, algorithm, name, cost } = serde_json::from_slice(body).ok()?;
        let asked = Asked { rate: &rate, algorithm: algorithm.as_deref(), name: name.as_deref() };
        let cost = Cost::new(cost.unwrap_or(1))?;
        Some(Self { limit: asked.limit().ok()?, key: checked_key(&key).ok()?, cost })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain<'b> {
    #[serde(borrow)]
    key: Cow<'b, str>,
    #[serde(borrow)]
    rate: Cow<'b, str>,
    #[serde(borrow)]
    algorithm: Option<Cow<'b, str>>,
    #[serde(borrow)]
    name: Option<Cow<'b, str>>,
    cost: Option<u64>,
}

pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Wrong> {
    check_unique_members(body).map_err(|error| match error {
        JsonError::Invalid(error) => format!("the body is no JSON: {error}"),
        duplicate => duplicate.to_string(),
    })?;
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("the body is a JSON object".into()),
        Err(error) => Err(format!("the body is no JSON: {error}")),
    }
}

pub(super) fn key(object: &Map<String, Value>) -> Result<String, Wrong> {
    checked_key(text(object, "key")?.ok_or("a key is missing, such as \"user:42\"")?)
}

pub(super) fn checked_key(key: &str) -> Result<String, Wrong> {
    match key.len() {
        0 => Err("the key is empty".into()),
        len if len > KEY_MAX => Err(format!("the key has {len} bytes; at most {KEY_MAX}")),
        _ => Ok(key.to_string()),
    }
}

pub(super) fn text<'o>(
    object: &'o Map<String, Value>,
    name: &str,
) -> Result<Option<&'o str>, Wrong> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("\"{name}\" is a text")),
    }
}

pub(super) fn number(object: &Map<String, Value>, name: &str) -> Result<Option<u64>, Wrong> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64();
            number
                .map(Some)
                .ok_or_else(|| format!("\"{name}\" is a whole number that is not negative"))
        }
    }
}

fn cost(object: &Map<String, Value>) -> Result<Cost, Wrong> {
    let cost = number(object, "cost")?.unwrap_or(1);
    Cost::new(cost).ok_or_else(|| "the cost is 0; to look without charging, use /v1/peek".into())
}

/// Complains about fields that nobody reads: a misspelt one must not be ignored.
pub(super) fn only(object: &Map<String, Value>, known: &[&str]) -> Result<(), Wrong> {
    let Some(unknown) = object.keys().find(|name| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    let near = ratekeeper::policy::suggest::closest(unknown, known.iter().copied());
    Err(match near {
        Some(near) => format!("unknown field \"{unknown}\"; did you mean \"{near}\"?"),
        None => format!("unknown field \"{unknown}\"; there are {}", known.join(", ")),
    })
}

fn described(value: &Value) -> Result<Described, Wrong> {
    let object = value.as_object().ok_or("\"request\" is an object with a method and a path")?;
    only(object, &["method", "path", "host", "headers", "peer"])?;
    let target = text(object, "path")?.ok_or("the request's path is missing")?;
    let Target { authority, path, query } = Target::parse(target);
    let peer = text(object, "peer")?.map(|peer| {
        peer.parse()
            .map_err(|_| format!("\"{peer}\" is no address; \"peer\" is one such as 192.0.2.1"))
    });
    let headers = match object.get("headers") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(headers)) => read_headers(headers)?,
        Some(_) => return Err("\"headers\" is an object of names and values".into()),
    };
    let named = headers.iter().filter(|(known, _)| known == "host");
    let host = match (text(object, "host")?, authority) {
        (Some(host), Some(authority)) => {
            request_host(Some(authority), [host.as_bytes()].into_iter()).map_err(said)?
        }
        (host, authority) => host.or(authority),
    };
    let host = request_host(host, named.map(|(_, value)| value.as_bytes())).map_err(said)?;
    Ok(Described {
        method: text(object, "method")?.unwrap_or("GET").to_string(),
        host: host.map(Into::into),
        path: path.to_string(),
        query: query.map(Into::into),
        peer: peer.transpose()?,
        headers,
    })
}

fn said(error: impl std::fmt::Display) -> Wrong {
    error.to_string()
}

/// A value, or a list of values for a header that was sent several times.
fn read_headers(headers: &Map<String, Value>) -> Result<Vec<(String, String)>, Wrong> {
    let mut read = Vec::new();
    for (name, value) in headers {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let value = value.as_str().ok_or_else(|| format!("the header {name} is a text"))?;
            if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
                return Err(format!(
                    "the header {name} has a line break or another control character"
                ));
            }
            read.push((name.to_ascii_lowercase(), value.to_string()));
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(body: &str) -> String {
        Question::read(body.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_question_is_a_check_several_or_a_request() {
        let one = Question::read(br#"{"key":"k","rate":"5/s burst 10","cost":2,"algorithm":null}"#);
        let Ok(Question::Checks(checks)) = one else { panic!("{one:?}") };
        assert_eq!(checks[0].limit.to_string(), "token_bucket 5/s burst 10");
        let two = br#"{"checks":[{"key":"a","rate":"1/s"},{"key":"b","rate":"2/s","name":"n"}]}"#;
        assert!(matches!(Question::read(two), Ok(Question::Checks(checks)) if checks.len() == 2));
        let request =
            br#"{"request":{"method":"POST","path":"/a?b=c","headers":{"X-A":["1","2"]}}}"#;
        let Ok(Question::Request(request)) = Question::read(request) else { panic!("a request") };
        assert_eq!((request.path.as_str(), request.query.as_deref()), ("/a", Some("b=c")));
        assert_eq!(request.headers.len(), 2);
    }

    #[test]
    fn a_described_request_has_one_host() {
        let host =
            |request: &str| match Question::read(format!("{{\"request\":{request}}}").as_bytes()) {
                Ok(Question::Request(request)) => Ok(request.host.unwrap_or_default()),
                Ok(_) => panic!("a request"),
                Err(why) => Err(why),
            };
        assert_eq!(host(r#"{"path":"/","host":"a:80"}"#).unwrap(), "a:80");
        assert_eq!(host(r#"{"path":"/","headers":{"Host":"a"}}"#).unwrap(), "a");
        assert_eq!(host(r#"{"path":"http://a/b"}"#).unwrap(), "a");
        assert_eq!(host(r#"{"path":"/","host":"a","headers":{"host":"A:80"}}"#).unwrap(), "a");
        let wrong = |request: &str| host(request).unwrap_err();
        assert!(wrong(r#"{"path":"/","host":"a:80:80"}"#).contains("NAME:PORT"));
        assert!(
            wrong(r#"{"path":"/","host":"a","headers":{"host":"b"}}"#).contains("is not the host")
        );
        assert!(wrong(r#"{"path":"http://a/","host":"b"}"#).contains("is not the host"));
        assert!(wrong(r#"{"path":"/","headers":{"host":["a","a"]}}"#).contains("more than one"));
        assert!(wrong(r#"{"path":"/","headers":{"x":"a\r\n b"}}"#).contains("line break"));
    }

    #[test]
    fn a_wrong_question_says_what_would_do() {
        assert!(wrong("[]").contains("JSON object"));
        assert!(wrong(r#"["k","1/s",null,null,1]"#).contains("JSON object"));
        assert!(wrong("{").contains("no JSON"));
        assert!(wrong(r#"{"rate":"1/s"}"#).contains("a key is missing"));
        assert!(wrong(r#"{"key":"k"}"#).contains("a rate is missing"));
        assert!(wrong(r#"{"key":"k","rate":"1/fortnight"}"#).contains("unknown period"));
        assert!(wrong(r#"{"key":"k","rate":"1/s","cots":1}"#).contains("did you mean \"cost\"?"));
        assert!(wrong(r#"{"key":"k","rate":"1/s","cost":0}"#).contains("/v1/peek"));
        assert!(wrong(r#"{"key":"k","rate":"1/s","cost":-1}"#).contains("whole number"));
        assert!(wrong(r#"{"checks":[]}"#).contains("1 to 16"));
        assert!(
            wrong(r#"{"key":"k","rate":"1/s","algorithm":"gcrra"}"#).contains("unknown algorithm")
        );
        assert!(
            wrong(r#"{"key":"k","rate":"1/s burst 2","algorithm":"fixed_window"}"#)
                .contains("no burst")
        );
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused() {
        for body in [
            r#"{"key":"a","rate":"1/s","key":"b"}"#,
            r#"{"key":"a","rate":"1/s","cost":1,"cost":1}"#,
            r#"{"checks":[{"key":"a","rate":"1/s","k\u0065y":"b"}]}"#,
            r#"{"request":{"path":"/a","path":"/b"}}"#,
            r#"{"request":{"path":"/a","headers":{"x-user":"a","x-user":"b"}}}"#,
        ] {
            assert!(wrong(body).contains("is given twice"), "{body}: {}", wrong(body));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_body_makes_it_panic(body in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = Question::read(&body);
        }
    }
}
