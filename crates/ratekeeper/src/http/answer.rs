//! The one place where decisions become HTTP.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use ratekeeper_core::{Decision, Limit};
use ratekeeper_policy::attributes::HostError;
use ratekeeper_policy::{BodyKind, ResponseSettings, WhenLimited};
use serde_json::json;

use crate::gate::{Refusal, Refused, Speaker};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Every header that may say what is left.
pub const RATELIMIT_HEADERS: [HeaderName; 5] =
    [RATELIMIT, RATELIMIT_POLICY, X_LIMIT, X_REMAINING, X_RESET];
const PROBLEM: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// In the extensions of an answer that is a refusal: which limit refused, and what else it would have
/// the caller be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The limit.
    pub limit: std::sync::Arc<str>,
    /// What becomes of a request that does not fit.
    pub when_limited: WhenLimited,
}

/// What is left, on the answer to a request that was allowed.
pub(super) fn tell_allowed(
    answers: &ResponseSettings,
    speaker: Option<Speaker<'_>>,
    headers: &mut HeaderMap,
) {
    if let Some(speaker) = speaker
        && answers.on_allowed
    {
        tell(answers, speaker, headers);
    }
}

/// Says in headers what a limit says.
pub fn tell(answers: &ResponseSettings, speaker: Speaker<'_>, headers: &mut HeaderMap) {
    let Speaker { rule, limit, decision } = speaker;
    tell_limit(answers, (rule.name(), limit), decision, headers);
}

/// The same of a limit that is in no policy, with its name.
pub fn tell_limit(
    answers: &ResponseSettings,
    (name, limit): (&str, &Limit),
    decision: &Decision,
    headers: &mut HeaderMap,
) {
    if let Some(secs) = decision.retry_after_secs() {
        set_number(headers, RETRY_AFTER, secs);
    }
    let reset = secs_up(decision.reset_after());
    if answers.ratelimit {
        let window = secs_up(window(limit));
        let (quota, remaining) = (limit.quota(), decision.remaining());
        set(headers, RATELIMIT_POLICY, item(name, [(";q=", quota), (";w=", window)]));
        set(headers, RATELIMIT, item(name, [(";r=", remaining), (";t=", reset)]));
    }
    if answers.x_ratelimit {
        set_number(headers, X_LIMIT, limit.quota());
        set_number(headers, X_REMAINING, decision.remaining());
        set_number(headers, X_RESET, reset);
    }
}

/// How long the whole quota takes to come back.
fn window(limit: &Limit) -> Duration {
    let (rate, quota) = (limit.rate(), limit.quota());
    if !limit.algorithm().has_burst() {
        return rate.period();
    }
    let micros = rate.period().as_micros() * u128::from(quota) / u128::from(rate.count());
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

fn secs_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// A name in quotes and two numbers. It is written for every answer, so without the formatter.
fn item(name: &str, numbers: [(&str, u64); 2]) -> String {
    let mut text = String::with_capacity(name.len() + 48);
    text.push('"');
    text.push_str(name);
    text.push('"');
    let mut digits = itoa::Buffer::new();
    for (mark, number) in numbers {
        text.push_str(mark);
        text.push_str(digits.format(number));
    }
    text
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

fn set_number(headers: &mut HeaderMap, name: HeaderName, value: u64) {
    headers.insert(name, HeaderValue::from(value));
}

/// The answer to a request that was refused, in the words of gRPC if it was asked in those.
pub fn refuse(answers: &ResponseSettings, refusal: &Refusal, is_grpc: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    let mut wait = None;
    if let Some(speaker) = refusal.speaker() {
        tell(answers, speaker, headers);
        wait = speaker.decision.retry_after();
    }
    let message = message(answers, refusal);
    match is_grpc {
        true => refuse_grpc(&mut response, refusal, &message),
        false => {
            let body = body(answers.body, refusal, &message, wait);
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(answers.body)));
            *response.status_mut() = status(answers, refusal);
            *response.body_mut() = body;
        }
    }
    let (limit, when_limited) = (refusal.rule.shared_name().clone(), refusal.rule.when_limited());
    response.extensions_mut().insert(Limited { limit, when_limited });
    response
}

/// The answer to a request that no policy can judge.
pub(super) fn malformed(error: HostError) -> Response<Bytes> {
    let body = json!({ "code": "BAD_REQUEST", "message": error.to_string() });
    let mut response = Response::new(body.to_string().into());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let kind = HeaderValue::from_static(content_type(BodyKind::Json));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn status(answers: &ResponseSettings, refusal: &Refusal) -> StatusCode {
    match &refusal.why {
        Refused::NoIdentity { .. } => StatusCode::UNAUTHORIZED,
        _ => StatusCode::from_u16(answers.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
    }
}

/// gRPC tells in headers that stand for trailers; to its callers, 429 would mean that nobody is there.
fn refuse_grpc(response: &mut Response<Bytes>, refusal: &Refusal, message: &str) {
    let code = match &refusal.why {
        Refused::NoIdentity { .. } => 16,
        _ => 8,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    set_number(headers, HeaderName::from_static("grpc-status"), code);
    set(headers, HeaderName::from_static("grpc-message"), escape(message));
}

/// As gRPC has it: all but printable ASCII percent-encoded.
fn escape(message: &str) -> String {
    message.bytes().fold(String::new(), |mut escaped, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(char::from(byte)),
            _ => {
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
        escaped
    })
}

fn code(refusal: &Refusal) -> &'static str {
    match &refusal.why {
        Refused::Limited { .. } => "RATE_LIMITED",
        Refused::Busy { .. } => "TOO_MANY_IN_FLIGHT",
        Refused::NoIdentity { .. } => "IDENTITY_REQUIRED",
    }
}

fn message(answers: &ResponseSettings, refusal: &Refusal) -> String {
    let name = refusal.rule.name();
    let (secs, quota) = match &refusal.why {
        Refused::NoIdentity { identity, .. } => {
            return format!(
                "This needs to know who is asking: {identity} is missing or not valid."
            );
        }
        Refused::Busy { max } => (None, *max),
        Refused::Limited { limit, decision } => (decision.retry_after_secs(), limit.quota()),
    };
    let template = refusal.rule.message().or(answers.message.as_deref());
    match (template, secs) {
        (Some(template), _) => {
            let secs = secs.map_or("a few".to_string(), |secs| secs.to_string());
            let filled = template.replace("{limit}", name).replace("{retry_after}", &secs);
            filled.replace("{quota}", &quota.to_string())
        }
        (None, Some(1)) => "Too many requests. Try again in 1 second.".into(),
        (None, Some(secs)) => format!("Too many requests. Try again in {secs} seconds."),
        (None, None) if matches!(refusal.why, Refused::Busy { .. }) => {
            "Too many requests at a time. Try again when others have ended.".into()
        }
        (None, None) => "This request is more than the limit can ever allow.".into(),
    }
}

fn content_type(kind: BodyKind) -> &'static str {
    match kind {
        BodyKind::Json => "application/json",
        BodyKind::Problem => "application/problem+json",
        BodyKind::Text => "text/plain; charset=utf-8",
    }
}

fn body(kind: BodyKind, refusal: &Refusal, message: &str, wait: Option<Duration>) -> Bytes {
    let name = refusal.rule.name();
    // Rounded up: a caller who waits this long is not early.
    let retry_after_ms = wait.map(|wait| wait.as_micros().div_ceil(1_000) as u64);
    let body = match (kind, &refusal.why) {
        (BodyKind::Text, _) => return format!("{message}\n").into(),
        (BodyKind::Json, _) => json!({
            "code": code(refusal),
            "message": message,
            "retry_after_ms": retry_after_ms,
            "limit": name,
        }),
        (BodyKind::Problem, Refused::NoIdentity { .. }) => {
            json!({ "type": "about:blank", "title": "Unauthorized", "status": 401, "detail": message })
        }
        (BodyKind::Problem, _) => json!({
            "type": PROBLEM,
            "title": "Too Many Requests",
            "detail": message,
            "violated-policies": [name],
            "retry_after_ms": retry_after_ms,
        }),
    };
    body.to_string().into()
}
