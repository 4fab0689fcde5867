//! Requests of the HTTP API, parsed from JSON.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use ratekeeper::{Algorithm, Charge, Cost, Limit, MaxDebt};
use serde::Deserialize;
use serde_json::Value;
use smallvec::{SmallVec, smallvec};

use super::described_request::DescribedRequest;
use super::error::RequestError;
use super::json_fields::{self, JsonObject};
use crate::serve::caller_limit::{CallerLimitError, LimitCache, LimitSpec};

/// The most rates in one request.
pub(super) const CHECKS_MAX: usize = 16;

/// What a caller wants decided: rates of its own, or the policy's limits for a request.
#[derive(Debug)]
pub(super) enum ApiRequest {
    Checks(SmallVec<[RateCheck; 1]>),
    Described(Box<DescribedRequest>),
}

impl ApiRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, RequestError> {
        // What this does not accept is parsed again below, which reports the error precisely.
        if let Some(check) = RateCheck::parse_fast(body) {
            return Ok(Self::Checks(smallvec![check]));
        }
        let object = json_fields::parse_object(body)?;
        if let Some(request) = object.get("request") {
            json_fields::check_known(&object, &["request"])?;
            return Ok(Self::Described(Box::new(DescribedRequest::parse(request)?)));
        }
        if let Some(checks) = object.get("checks") {
            json_fields::check_known(&object, &["checks"])?;
            return parse_checks(checks).map(Self::Checks);
        }
        RateCheck::parse(&object, &[]).map(|check| Self::Checks(smallvec![check]))
    }
}

fn parse_checks(value: &Value) -> Result<SmallVec<[RateCheck; 1]>, RequestError> {
    let expected = "a list of objects with a key and a rate";
    let wrong_type = || RequestError::FieldType { field: "checks", expected };
    let checks = value.as_array().ok_or_else(wrong_type)?;
    if checks.is_empty() || checks.len() > CHECKS_MAX {
        return Err(RequestError::CheckCount(checks.len()));
    }
    let parse = |check: &Value| RateCheck::parse(check.as_object().ok_or_else(wrong_type)?, &[]);
    checks.iter().map(parse).collect()
}

/// A cost to charge to a key, under a limit that the caller defines.
#[derive(Clone, Debug)]
pub(super) struct RateCheck {
    pub(super) limit: Arc<Limit>,
    pub(super) key: String,
    pub(super) cost: Cost,
    /// Whether more may be charged than is left, and how much more.
    overdraft: Option<MaxDebt>,
}

impl RateCheck {
    pub(super) fn charge(&self) -> Charge<'_> {
        let charge = Charge::new(&self.limit, &self.key).cost(self.cost);
        match self.overdraft {
            Some(max_debt) => charge.overdraft(max_debt),
            None => charge,
        }
    }

    /// Returns whether an overdraft has a maximum debt.
    pub(super) fn has_max_debt(&self) -> bool {
        self.overdraft.is_some_and(|max| max != MaxDebt::NONE)
    }

    /// Parses a check from an object that may have `other_fields` too.
    pub(super) fn parse(
        object: &JsonObject,
        other_fields: &[&'static str],
    ) -> Result<Self, RequestError> {
        let known =
            [&["key", "rate", "algorithm", "cost", "name", "overdraft"], other_fields].concat();
        json_fields::check_known(object, &known)?;
        let key = json_fields::key(object)?;
        let expected = "a rate such as \"100/minute\" or \"5/s burst 10\"";
        let limit = cached_limit(
            json_fields::required_string(object, "rate", expected)?,
            json_fields::string(object, "algorithm")?,
            json_fields::string(object, "name")?,
        );
        let overdraft = json_fields::overdraft(object)?;
        Ok(Self { limit: limit?, key, cost: json_fields::cost(object)?, overdraft })
    }

    /// Parses the body that most callers send: one valid check. Returns `None` for anything else.
    fn parse_fast(body: &[u8]) -> Option<Self> {
        // serde would accept a list in place of an object.
        body.trim_ascii_start().strip_prefix(b"{")?;
        let CheckBody { key, rate, algorithm, name, cost, overdraft } =
            serde_json::from_slice(body).ok()?;
        let limit = cached_limit(&rate, algorithm.as_deref(), name.as_deref()).ok()?;
        let cost = Cost::new(cost.unwrap_or(1))?;
        let key = json_fields::checked_key(&key).ok()?;
        let overdraft = overdraft.filter(|is_on| *is_on).map(|_| MaxDebt::NONE);
        Some(Self { limit, key, cost, overdraft })
    }
}

thread_local! {
    static LIMITS: RefCell<LimitCache> = RefCell::default();
}

fn cached_limit(
    rate: &str,
    algorithm: Option<&str>,
    name: Option<&str>,
) -> Result<Arc<Limit>, CallerLimitError> {
    let algorithm = algorithm.map(str::parse::<Algorithm>).transpose()?;
    let spec = LimitSpec { rate, algorithm, name };
    LIMITS.with_borrow_mut(|limits| limits.get_or_build(spec).cloned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckBody<'b> {
    #[serde(borrow)]
    key: Cow<'b, str>,
    #[serde(borrow)]
    rate: Cow<'b, str>,
    #[serde(borrow)]
    algorithm: Option<Cow<'b, str>>,
    #[serde(borrow)]
    name: Option<Cow<'b, str>>,
    cost: Option<u64>,
    overdraft: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        ApiRequest::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_body_is_one_check_several_checks_or_a_described_request() {
        let one =
            ApiRequest::parse(br#"{"key":"k","rate":"5/s burst 10","cost":2,"algorithm":null}"#);
        let Ok(ApiRequest::Checks(checks)) = one else { panic!("{one:?}") };
        assert_eq!(checks[0].limit.to_string(), "token_bucket 5/s burst 10");
        let calendar =
            ApiRequest::parse(br#"{"key":"k","rate":"9/calendar day in Europe/Berlin"}"#);
        let Ok(ApiRequest::Checks(checks)) = calendar else { panic!("{calendar:?}") };
        let shown = checks[0].limit.to_string();
        assert_eq!(shown, "fixed_window 9/calendar day in Europe/Berlin");
        let two = br#"{"checks":[{"key":"a","rate":"1/s"},{"key":"b","rate":"2/s","name":"n"}]}"#;
        let two = ApiRequest::parse(two);
        assert!(matches!(two, Ok(ApiRequest::Checks(checks)) if checks.len() == 2));
        let request =
            br#"{"request":{"method":"POST","path":"/a?b=c","headers":{"X-A":["1","2"]}}}"#;
        let Ok(ApiRequest::Described(request)) = ApiRequest::parse(request) else {
            panic!("a described request")
        };
        assert_eq!((request.path.as_str(), request.query.as_deref()), ("/a", Some("b=c")));
        assert_eq!(request.headers.len(), 2);
    }

    #[test]
    fn an_error_says_what_would_work() {
        assert!(error("[]").contains("JSON object"));
        assert!(error(r#"["k","1/s",null,null,1]"#).contains("JSON object"));
        assert!(error("{").contains("not valid JSON"));
        assert!(error(r#"{"rate":"1/s"}"#).contains("\"key\" is missing; it is"));
        assert!(error(r#"{"key":"k"}"#).contains("\"rate\" is missing; it is a rate such as"));
        assert!(error(r#"{"key":"k","rate":1}"#).contains("\"rate\" must be a string"));
        assert!(error(r#"{"key":"k","rate":"1/fortnight"}"#).contains("unknown period"));
        assert!(
            error(r#"{"key":"k","rate":"1/calendar day","algorithm":"sliding_log"}"#)
                .contains("sliding_log has no calendar windows; use fixed_window")
        );
        assert!(error(r#"{"key":"k","rate":"1/s","cots":1}"#).contains("did you mean \"cost\"?"));
        assert!(error(r#"{"key":"k","rate":"1/s","xyz":1}"#).contains("known fields: key, rate"));
        assert!(error(r#"{"key":"k","rate":"1/s","cost":0}"#).contains("/v1/peek"));
        assert!(error(r#"{"key":"k","rate":"1/s","cost":-1}"#).contains("whole number"));
        assert!(error(r#"{"key":"","rate":"1/s"}"#).contains("the key is empty"));
        assert!(error(r#"{"checks":[]}"#).contains("0 entries; use 1 to 16"));
        assert!(error(r#"{"checks":{}}"#).contains("must be a list"));
        assert!(error(r#"{"checks":[1]}"#).contains("must be a list of objects"));
        assert!(
            error(r#"{"key":"k","rate":"1/s","algorithm":"gcrra"}"#).contains("unknown algorithm")
        );
        assert!(
            error(r#"{"key":"k","rate":"1/s burst 2","algorithm":"fixed_window"}"#)
                .contains("no burst")
        );
    }

    #[test]
    fn a_duplicate_field_is_rejected() {
        for body in [
            r#"{"key":"a","rate":"1/s","key":"b"}"#,
            r#"{"key":"a","rate":"1/s","cost":1,"cost":1}"#,
            r#"{"checks":[{"key":"a","rate":"1/s","k\u0065y":"b"}]}"#,
            r#"{"request":{"path":"/a","path":"/b"}}"#,
            r#"{"request":{"path":"/a","headers":{"x-user":"a","x-user":"b"}}}"#,
        ] {
            assert!(error(body).contains("is given twice"), "{body}: {}", error(body));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_body_causes_a_panic(body in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = ApiRequest::parse(&body);
        }
    }
}
