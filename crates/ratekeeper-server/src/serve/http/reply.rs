//! What a caller is answered.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::{Decision, Limit, Wait};
use serde::Serialize;
use serde_json::{Value, json};

use crate::trace::{self, About};

pub(super) type Reply = Response<Full<Bytes>>;

/// What is told of a decision: the same fields in every answer.
#[derive(Clone, Serialize)]
pub(super) struct Told<'a> {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    limit_name: Option<&'a str>,
    /// Whether waiting would not help.
    never: bool,
    /// Whether the store did not answer.
    degraded: bool,
    /// Why there is no limit to tell of.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Of several limits, what each says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decisions: Vec<Told<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
}

impl<'a> Told<'a> {
    pub(super) fn of(limit: &'a Limit, decision: &Decision, degraded: bool) -> Self {
        let retry_after_ms = match decision.wait() {
            Wait::None | Wait::Never => None,
            Wait::Micros(us) => Some(us.div_ceil(1_000)),
        };
        Self {
            allowed: decision.allowed(),
            limit: Some(decision.limit()),
            remaining: Some(decision.remaining()),
            retry_after_ms,
            reset_after_ms: Some(millis_up(decision.reset_after())),
            delay_ms: millis_up(decision.delay()),
            limit_name: Some(limit.name()),
            never: decision.exceeds_capacity(),
            degraded,
            why: None,
            decisions: Vec::new(),
            reservation: None,
        }
    }

    /// Without a limit that could say more.
    pub(super) fn because(allowed: bool, why: String) -> Self {
        Self {
            allowed,
            limit: None,
            remaining: None,
            retry_after_ms: None,
            reset_after_ms: None,
            delay_ms: 0,
            limit_name: None,
            never: false,
            degraded: false,
            why: Some(why),
            decisions: Vec::new(),
            reservation: None,
        }
    }

    pub(super) fn each(self, decisions: Vec<Told<'a>>) -> Self {
        let degraded = decisions.iter().any(|told| told.degraded);
        Self { decisions, degraded, ..self }
    }

    pub(super) fn reserved(self, id: String) -> Self {
        Self { reservation: Some(id), ..self }
    }

    pub(super) fn delayed(self, delay: Duration) -> Self {
        Self { delay_ms: millis_up(delay), ..self }
    }

    pub(super) fn named(self, name: &'a str) -> Self {
        Self { limit_name: Some(name), ..self }
    }

    pub(super) fn answer(&self, status: StatusCode) -> Reply {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut reply = full(status, "application/json", body.into());
        if trace::is_on() {
            let limit = self.limit_name.map(Into::into);
            reply.extensions_mut().insert(About { limit, is_degraded: self.degraded });
        }
        reply
    }
}

fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Says in headers what a limit says.
pub(super) fn tell(limit: &Limit, decision: &Decision, headers: &mut HeaderMap) {
    ratekeeper::tower::set_headers_of(
        &ResponseSettings::default(),
        (limit.name(), limit),
        decision,
        headers,
    );
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

/// There are too many questions under way.
pub(super) fn too_busy() -> Reply {
    let message = "too many questions are under way; ask again in a second";
    let mut reply = wrong(StatusCode::SERVICE_UNAVAILABLE, "TOO_BUSY", message);
    reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    reply
}

/// The server is about to go.
pub(super) fn ending() -> Reply {
    full(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", "ending\n".into())
}
