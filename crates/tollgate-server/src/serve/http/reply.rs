//! What a caller is answered.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Map, Value, json};
use tollgate::gate::Speaker;
use tollgate::policy::Answers;
use tollgate::{Decision, Limit, Wait};

pub(super) type Reply = Response<Full<Bytes>>;

/// What a limit says: the same numbers in every answer.
pub(super) fn decision(limit: &Limit, decision: &Decision) -> Map<String, Value> {
    let retry_after_ms = match decision.wait() {
        Wait::None | Wait::Never => None,
        Wait::Micros(us) => Some(us.div_ceil(1_000)),
    };
    let fields = json!({
        "allowed": decision.allowed(),
        "limit": decision.limit(),
        "remaining": decision.remaining(),
        "retry_after_ms": retry_after_ms,
        "reset_after_ms": millis_up(decision.reset_after()),
        "delay_ms": millis_up(decision.delay()),
        "never": decision.never(),
        "limit_name": limit.name(),
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The same fields where no limit says anything, and why.
pub(super) fn undecided(is_allowed: bool, why: &str) -> Map<String, Value> {
    let fields = json!({
        "allowed": is_allowed, "limit": null, "remaining": null, "retry_after_ms": null,
        "reset_after_ms": null, "delay_ms": 0, "never": false, "limit_name": null,
        "degraded": false, "why": why,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Says in headers what a limit says.
pub(super) fn tell(limit: &Limit, decision: &Decision, headers: &mut HeaderMap) {
    tollgate::http::tell_limit(&Answers::default(), (limit.name(), limit), decision, headers);
}

/// An answer with these numbers, and in headers what the tightest limit says.
pub(super) fn decided(
    body: Map<String, Value>,
    speaker: Option<Speaker<'_>>,
    status: StatusCode,
) -> Reply {
    let mut reply = json(status, &Value::Object(body));
    if let Some(speaker) = speaker {
        tollgate::http::tell(&Answers::default(), speaker, reply.headers_mut());
    }
    reply
}

pub(super) fn json(status: StatusCode, body: &Value) -> Reply {
    full(status, "application/json", body.to_string().into())
}

/// What is wrong with a question.
pub(super) fn wrong(status: StatusCode, code: &str, message: &str) -> Reply {
    json(status, &json!({ "code": code, "message": message }))
}

pub(super) fn full(status: StatusCode, kind: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::from(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// An answer without a body.
pub(super) fn empty(status: StatusCode, headers: HeaderMap) -> Reply {
    let mut reply = Response::new(Full::default());
    *reply.status_mut() = status;
    *reply.headers_mut() = headers;
    reply
}
