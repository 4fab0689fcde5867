//! Responses of the HTTP API.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::{BindingLimit, Decision, Limit, Wait};
use serde::Serialize;
use serde_json::{Value, json};

use crate::trace::{self, DecisionInfo};

pub(super) type ApiResponse = Response<Full<Bytes>>;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A decision in JSON: the same fields in every response.
#[derive(Clone, Serialize)]
pub(super) struct DecisionBody<'a> {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    limit_name: Option<&'a str>,
    /// Whether the cost is above the limit's capacity, so that no wait would help.
    exceeds_capacity: bool,
    /// Whether it was decided without the store, which is unavailable.
    degraded: bool,
    /// Whether less than the cost was charged, because of the maximum debt.
    #[serde(skip_serializing_if = "is_false")]
    cut: bool,
    /// The reason for a decision that no rate made.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The decision of each limit, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decisions: Vec<DecisionBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
    /// Of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

impl<'a> DecisionBody<'a> {
    pub(super) fn new(limit: &'a Limit, decision: &Decision, degraded: bool) -> Self {
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
            exceeds_capacity: decision.exceeds_capacity(),
            degraded,
            cut: decision.is_cut(),
            reason: None,
            decisions: Vec::new(),
            reservation: None,
            request_id: None,
        }
    }

    /// Creates the body of a decision that no rate made.
    pub(super) fn without_limit(allowed: bool, reason: String) -> Self {
        Self {
            allowed,
            limit: None,
            remaining: None,
            retry_after_ms: None,
            reset_after_ms: None,
            delay_ms: 0,
            limit_name: None,
            exceeds_capacity: false,
            degraded: false,
            cut: false,
            reason: Some(reason),
            decisions: Vec::new(),
            reservation: None,
            request_id: None,
        }
    }

    pub(super) fn with_decisions(self, decisions: Vec<DecisionBody<'a>>) -> Self {
        let degraded = decisions.iter().any(|decision| decision.degraded);
        Self { decisions, degraded, ..self }
    }

    pub(super) fn with_reservation(self, id: String) -> Self {
        Self { reservation: Some(id), ..self }
    }

    pub(super) fn with_request_id(self, request_id: Option<&'a str>) -> Self {
        Self { request_id, ..self }
    }

    pub(super) fn with_delay(self, delay: Duration) -> Self {
        Self { delay_ms: millis_up(delay), ..self }
    }

    pub(super) fn with_limit_name(self, name: &'a str) -> Self {
        Self { limit_name: Some(name), ..self }
    }

    pub(super) fn to_response(&self, status: StatusCode) -> ApiResponse {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut response = full_response(status, JSON, body.into());
        if trace::is_on() {
            let limit = self.limit_name.map(Into::into);
            response.extensions_mut().insert(DecisionInfo { limit, is_degraded: self.degraded });
        }
        response
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Adds the rate limit headers of a caller's limit.
pub(super) fn with_limit_headers(
    mut response: ApiResponse,
    limit: &Limit,
    decision: &Decision,
) -> ApiResponse {
    ratekeeper::tower::set_headers_of(
        &ResponseSettings::default(),
        (limit.name(), limit),
        decision,
        response.headers_mut(),
    );
    response
}

/// Adds the id of a refused request.
pub(super) fn with_request_id(mut response: ApiResponse, id: Option<&str>) -> ApiResponse {
    if let Some(Ok(id)) = id.map(HeaderValue::try_from) {
        response.headers_mut().insert(ratekeeper::tower::X_REQUEST_ID, id);
    }
    response
}

/// Adds the rate limit headers of the policy's binding limit, if there is one.
pub(super) fn with_binding_headers(
    mut response: ApiResponse,
    binding: Option<BindingLimit<'_>>,
) -> ApiResponse {
    if let Some(binding) = binding {
        let settings = ResponseSettings::default();
        ratekeeper::tower::set_limit_headers(&settings, binding, response.headers_mut());
    }
    response
}

pub(super) fn json_response(status: StatusCode, body: &Value) -> ApiResponse {
    full_response(status, JSON, body.to_string().into())
}

pub(super) fn error_response(status: StatusCode, code: &str, message: &str) -> ApiResponse {
    let mut response = json_response(status, &json!({ "code": code, "message": message }));
    response.extensions_mut().insert(IsError);
    response
}

/// In the extensions of a response that is an error, and not a decision.
#[derive(Clone)]
pub(super) struct IsError;

pub(super) fn text_response(status: StatusCode, text: &'static str) -> ApiResponse {
    full_response(status, TEXT, text.into())
}

pub(super) fn full_response(
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
) -> ApiResponse {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Creates a response without a body.
pub(super) fn empty_response(status: StatusCode, headers: HeaderMap) -> ApiResponse {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The response if the store failed and there is no fallback for what was requested.
pub(super) fn store_error_response(message: &str) -> ApiResponse {
    error_response(StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE", message)
}

/// The response if there is no such reservation or permit.
pub(super) fn not_held_response(error: &dyn std::error::Error) -> ApiResponse {
    error_response(StatusCode::GONE, "GONE", &error.to_string())
}

/// The response if the in-flight limit is reached.
pub(super) fn too_many_in_flight() -> ApiResponse {
    let message = "too many requests are in flight; retry in a second";
    let mut response = error_response(StatusCode::SERVICE_UNAVAILABLE, "TOO_BUSY", message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The response to a health check while the server drains.
pub(super) fn not_ready() -> ApiResponse {
    text_response(StatusCode::SERVICE_UNAVAILABLE, "there is no limit in the files for Envoy\n")
}

pub(super) fn draining() -> ApiResponse {
    text_response(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
}
