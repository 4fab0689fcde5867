//! The one place where decisions become HTTP headers and responses.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use ratekeeper_core::{Decision, Limit};
use ratekeeper_policy::attributes::HostError;
use ratekeeper_policy::{BodyKind, LimitAction, ResponseSettings};
use serde_json::json;

use super::rejection::Rejection;
use crate::admission::{BindingLimit, Refusal, RefusalReason, ShedRefusal};
use crate::dependency::{DependencyRejected, DependencyRejection};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The header that has the id of a request, in a response that refuses it.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Every header that states what remains of a limit.
pub const RATELIMIT_HEADERS: [HeaderName; 5] =
    [RATELIMIT, RATELIMIT_POLICY, X_LIMIT, X_REMAINING, X_RESET];
const GRPC_RESOURCE_EXHAUSTED: u64 = 8;
const GRPC_INTERNAL: u64 = 13;
const GRPC_UNAVAILABLE: u64 = 14;
const GRPC_UNAUTHENTICATED: u64 = 16;
const PROBLEM: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// In the extensions of a response that is a refusal: which limit refused, and what it does with requests
/// that it refuses.
///
/// ```
/// use http::Response;
/// use ratekeeper::tower::RefusedBy;
///
/// fn log<B>(response: &Response<B>) {
///     if let Some(refused) = response.extensions().get::<RefusedBy>() {
///         println!("{} refused the request", refused.limit);
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedBy {
    /// The name of the limit.
    pub limit: std::sync::Arc<str>,
    /// What it does with requests that it refuses.
    pub when_limited: LimitAction,
}

/// In the extensions of a response: the limits that would have refused its request, but for shadow mode.
///
/// ```
/// use http::Response;
/// use ratekeeper::tower::ShadowRefusedBy;
///
/// fn log<B>(response: &Response<B>) {
///     if let Some(refused) = response.extensions().get::<ShadowRefusedBy>() {
///         println!("{:?} would have refused the request", refused.limits);
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowRefusedBy {
    /// The names of the limits.
    pub limits: Vec<std::sync::Arc<str>>,
}

impl ShadowRefusedBy {
    /// Returns the limits in shadow mode that would have refused a request, if any would have.
    pub(super) fn of(admitted: &crate::admission::Admitted) -> Option<Self> {
        let limits: Vec<_> =
            admitted.shadow_denied().map(|limit| limit.rule.shared_name().clone()).collect();
        (!limits.is_empty()).then_some(Self { limits })
    }
}

/// Sets the rate limit headers by the decision of the binding limit.
pub fn set_limit_headers(
    settings: &ResponseSettings,
    binding: BindingLimit<'_>,
    headers: &mut HeaderMap,
) {
    let BindingLimit { rule, limit, decision } = binding;
    set_headers_of(settings, (rule.name(), limit), decision, headers);
}

/// Sets the rate limit headers by the decision of a limit that is in no policy, and its name.
pub fn set_headers_of(
    settings: &ResponseSettings,
    (name, limit): (&str, &Limit),
    decision: &Decision,
    headers: &mut HeaderMap,
) {
    let retry_after = decision.retry_after_secs();
    if let Some(secs) = retry_after {
        set_number(headers, RETRY_AFTER, secs);
    }
    // A denied client reads two headers, which have to name the same moment.
    let reset = retry_after.unwrap_or_else(|| secs_up(decision.reset_after()));
    if settings.ratelimit {
        let remaining = decision.remaining();
        let (quota, window) = stated_policy(limit);
        set(headers, RATELIMIT_POLICY, item(name, (";q=", quota), window.map(|w| (";w=", w))));
        set(headers, RATELIMIT, item(name, (";r=", remaining), Some((";t=", reset))));
    }
    if settings.x_ratelimit {
        set_number(headers, X_LIMIT, limit.quota());
        set_number(headers, X_REMAINING, decision.remaining());
        set_number(headers, X_RESET, reset);
    }
}

/// Returns the quota and its window in seconds. A bucket that refills in less than a second has its rate as quota: a
/// client cannot know it otherwise. Other windows of less than a second are not stated.
fn stated_policy(limit: &Limit) -> (u64, Option<u64>) {
    let window = window(limit);
    if window.as_secs() > 0 {
        return (limit.quota(), Some(secs_up(window)));
    }
    let rate = limit.rate();
    let (count, period) = (rate.count(), rate.period());
    let is_whole = period.subsec_nanos() == 0 && !period.is_zero();
    match limit.algorithm().has_burst() {
        true if is_whole => (count, Some(period.as_secs())),
        true if SECOND.is_multiple_of(period.as_micros()) => {
            let periods = u64::try_from(SECOND / period.as_micros()).unwrap_or(1);
            (count.saturating_mul(periods), Some(1))
        }
        _ => (limit.quota(), None),
    }
}

/// In microseconds.
const SECOND: u128 = 1_000_000;

/// How long it takes until the whole quota is available again. Windows of the calendar differ, so it is the length
/// of the current one.
fn window(limit: &Limit) -> Duration {
    let (rate, quota) = (limit.rate(), limit.quota());
    if let Some(length) = limit.calendar_window_length() {
        return length;
    }
    if !limit.algorithm().has_burst() {
        return rate.period();
    }
    let micros = rate.period().as_micros() * u128::from(quota) / u128::from(rate.count());
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

fn secs_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// A quoted name and one or two numbers. Written for every response, so without the formatter.
fn item(name: &str, first: (&str, u64), second: Option<(&str, u64)>) -> String {
    let mut text = String::with_capacity(name.len() + 48);
    text.push('"');
    text.push_str(name);
    text.push('"');
    let mut digits = itoa::Buffer::new();
    for (parameter, number) in [Some(first), second].into_iter().flatten() {
        text.push_str(parameter);
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

/// Returns the response to a request that was refused: a gRPC status if it is a gRPC request.
pub fn refuse(settings: &ResponseSettings, refusal: &Refusal, is_grpc: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    let mut wait = None;
    if let Some(binding) = refusal.binding() {
        set_limit_headers(settings, binding, headers);
        wait = binding.decision.retry_after();
    }
    if let Some(id) = &refusal.request_id {
        set(headers, X_REQUEST_ID, id.to_string());
    }
    if let RefusalReason::NoPermit(error) = &refusal.reason {
        let retry_after = Rejection::ConcurrencyLimit(*error).retry_after();
        set_number(headers, RETRY_AFTER, secs_up(retry_after));
        wait = Some(retry_after);
    }
    let message = message(settings, refusal);
    match is_grpc {
        true => refuse_grpc(&mut response, refusal, &message),
        false => {
            let body = body(settings, refusal, &message, wait);
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(settings.body)));
            *response.status_mut() = status(settings, refusal);
            *response.body_mut() = body;
        }
    }
    let (limit, when_limited) = (refusal.rule.shared_name().clone(), refusal.rule.when_limited());
    response.extensions_mut().insert(RefusedBy { limit, when_limited });
    response
}

/// Returns the response to a request whose host is malformed or ambiguous.
pub(super) fn bad_request(error: HostError) -> Response<Bytes> {
    error_response(StatusCode::BAD_REQUEST, "BAD_REQUEST", &error.to_string())
}

/// Returns the response to a request that the program is not set up to limit.
pub(super) fn misconfigured(message: &str, is_grpc: bool) -> Response<Bytes> {
    if !is_grpc {
        return error_response(StatusCode::INTERNAL_SERVER_ERROR, "MISCONFIGURED", message);
    }
    let mut response = Response::new(Bytes::new());
    set_grpc_status(&mut response, GRPC_INTERNAL, message);
    response
}

/// Returns the response to a request that was rejected to protect the service: 503 with `Retry-After`, or the status
/// `UNAVAILABLE` if it is a gRPC request. Its extensions have the [`Rejection`].
///
/// ```
/// use ratekeeper::Bulkhead;
/// use ratekeeper::tower::{Rejection, reject};
///
/// let bulkhead = Bulkhead::new(1)?;
/// let permit = bulkhead.try_acquire();
/// let rejection = Rejection::Bulkhead(bulkhead.try_acquire().unwrap_err());
/// let response = reject(&rejection, false);
/// assert_eq!(response.status(), 503);
/// assert_eq!(response.headers()["retry-after"], "1");
/// assert!(response.body().starts_with(b"{\"code\":\"BULKHEAD_FULL\""));
/// # Ok::<(), ratekeeper::ZeroPermits>(())
/// ```
pub fn reject(rejection: &Rejection, is_grpc: bool) -> Response<Bytes> {
    reject_class(rejection, None, is_grpc)
}

/// Returns the response to a request that a policy has shed. The body has the name of its class.
pub fn refuse_shed(refusal: &ShedRefusal, is_grpc: bool) -> Response<Bytes> {
    reject_class(&Rejection::Shed(refusal.shed), Some(&refusal.class), is_grpc)
}

fn reject_class(rejection: &Rejection, class: Option<&str>, is_grpc: bool) -> Response<Bytes> {
    let what = match rejection {
        Rejection::Shed(_) => "The service is overloaded.",
        Rejection::Bulkhead(_) | Rejection::ConcurrencyLimit(_) => {
            "Too many requests are in flight."
        }
    };
    let (code, retry_after) = (rejection.code(), rejection.retry_after());
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    let fields = class.map_or(json!({}), |class| json!({ "class": class }));
    let mut response = rejected_response(unavailable, code, what, retry_after, fields, is_grpc);
    response.extensions_mut().insert(*rejection);
    response
}

/// Returns the response to a request that a dependency rejected, whose name is in the body: 503 with `Retry-After`; 429
/// if its rate is used up; the status `UNAVAILABLE` or `RESOURCE_EXHAUSTED` if it is a gRPC request. Its extensions
/// have the [`DependencyRejected`].
///
/// ```
/// # use ratekeeper::policy::NoSources;
/// use ratekeeper::tower::reject_call;
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = "{ version: 1, dependencies: { mail: { rate: 1/minute } }, limits: [] }";
/// let mail = PolicyLimiter::new(Policy::parse("policy.yaml", text, &NoSources)?)?.dependency("mail")?;
/// mail.acquire().await?.success();
/// let response = reject_call(&mail.acquire().await.unwrap_err(), false);
/// assert_eq!(response.status(), 429);
/// assert!(response.body().windows(19).any(|part| part == b"\"dependency\":\"mail\""));
/// # Ok(()) }
/// ```
pub fn reject_call(rejected: &DependencyRejected, is_grpc: bool) -> Response<Bytes> {
    let name = &rejected.dependency;
    let (status, what) = match &rejected.reason {
        DependencyRejection::RateLimited { .. } => {
            (StatusCode::TOO_MANY_REQUESTS, format!("The rate of calls to {name} is used up."))
        }
        DependencyRejection::Bulkhead(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("Too many calls to {name} are in flight."))
        }
        DependencyRejection::Open(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("Calls to {name} fail, so none are made."))
        }
    };
    let (code, retry_after) = (rejected.code(), rejected.retry_after());
    let fields = json!({ "dependency": **name });
    let mut response = rejected_response(status, code, &what, retry_after, fields, is_grpc);
    response.extensions_mut().insert(rejected.clone());
    response
}

/// Returns a response that says when to try again.
fn rejected_response(
    status: StatusCode,
    code: &str,
    what: &str,
    retry_after: Duration,
    mut fields: serde_json::Value,
    is_grpc: bool,
) -> Response<Bytes> {
    let secs = secs_up(retry_after);
    let plural = if secs == 1 { "" } else { "s" };
    let message = format!("{what} Try again in {secs} second{plural}.");
    let mut response = Response::new(Bytes::new());
    if is_grpc {
        let is_limited = status == StatusCode::TOO_MANY_REQUESTS;
        let status = if is_limited { GRPC_RESOURCE_EXHAUSTED } else { GRPC_UNAVAILABLE };
        set_grpc_status(&mut response, status, &message);
    } else {
        fields["code"] = code.into();
        fields["message"] = message.into();
        fields["retry_after_ms"] = (retry_after.as_micros().div_ceil(1_000) as u64).into();
        *response.body_mut() = fields.to_string().into();
        *response.status_mut() = status;
        let content_type = HeaderValue::from_static(content_type(BodyKind::Json));
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    set_number(response.headers_mut(), RETRY_AFTER, secs);
    response
}

fn error_response(status: StatusCode, code: &str, message: &str) -> Response<Bytes> {
    let body = json!({ "code": code, "message": message });
    let mut response = Response::new(body.to_string().into());
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type(BodyKind::Json));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn status(settings: &ResponseSettings, refusal: &Refusal) -> StatusCode {
    match &refusal.reason {
        RefusalReason::MissingIdentity { .. } => StatusCode::UNAUTHORIZED,
        RefusalReason::NoPermit(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::from_u16(settings.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
    }
}

fn refuse_grpc(response: &mut Response<Bytes>, refusal: &Refusal, message: &str) {
    let code = match &refusal.reason {
        RefusalReason::MissingIdentity { .. } => GRPC_UNAUTHENTICATED,
        RefusalReason::NoPermit(_) => GRPC_UNAVAILABLE,
        _ => GRPC_RESOURCE_EXHAUSTED,
    };
    set_grpc_status(response, code, message);
}

/// Makes this a response of headers only, with the status that gRPC has in trailers. gRPC clients would take
/// an HTTP 429 for an unavailable server.
fn set_grpc_status(response: &mut Response<Bytes>, code: u64, message: &str) {
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    set_number(headers, HeaderName::from_static("grpc-status"), code);
    set(headers, HeaderName::from_static("grpc-message"), escape(message));
}

/// Percent-encodes all but printable ASCII, as gRPC requires.
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
    match &refusal.reason {
        RefusalReason::RateLimited { .. } => "RATE_LIMITED",
        RefusalReason::TooManyInFlight { .. } => "TOO_MANY_IN_FLIGHT",
        RefusalReason::NoPermit(_) => "CONCURRENCY_LIMIT",
        RefusalReason::MissingIdentity { .. } => "IDENTITY_REQUIRED",
        RefusalReason::TooManyLimits { .. } => "TOO_MANY_LIMITS",
    }
}

fn message(settings: &ResponseSettings, refusal: &Refusal) -> String {
    let name = refusal.rule.name();
    let (secs, quota) = match &refusal.reason {
        RefusalReason::MissingIdentity { identity, .. } => {
            return format!(
                "This request needs a valid identity: {identity} is missing or invalid."
            );
        }
        RefusalReason::TooManyInFlight { max } => (None, *max),
        RefusalReason::NoPermit(_) => {
            return "The service is busy. Try again in 1 second.".to_string();
        }
        RefusalReason::TooManyLimits { max } => {
            return format!("More than {max} limits apply to this request.");
        }
        RefusalReason::RateLimited { limit, decision } => {
            (decision.retry_after_secs(), limit.quota())
        }
    };
    let template = refusal.rule.message().or(settings.message.as_deref());
    match (template, secs) {
        (Some(template), _) => {
            let secs = secs.map_or("a few".to_string(), |secs| secs.to_string());
            let filled = template.replace("{limit}", name).replace("{retry_after}", &secs);
            filled.replace("{quota}", &quota.to_string())
        }
        (None, Some(1)) => "Too many requests. Try again in 1 second.".into(),
        (None, Some(secs)) => format!("Too many requests. Try again in {secs} seconds."),
        (None, None) if matches!(refusal.reason, RefusalReason::TooManyInFlight { .. }) => {
            "Too many requests in flight. Try again when others have completed.".into()
        }
        (None, None) => "This request costs more than the limit can ever allow.".into(),
    }
}

fn content_type(kind: BodyKind) -> &'static str {
    match kind {
        BodyKind::Json => "application/json",
        BodyKind::Problem => "application/problem+json",
        BodyKind::Text => "text/plain; charset=utf-8",
    }
}

fn body(
    settings: &ResponseSettings,
    refusal: &Refusal,
    message: &str,
    wait: Option<Duration>,
) -> Bytes {
    let name = refusal.rule.name();
    // Rounded up, so that a client who waits this long is not early.
    let retry_after_ms = wait.map(|wait| wait.as_micros().div_ceil(1_000) as u64);
    let id = refusal.request_id.as_deref();
    let mut body = match (settings.body, &refusal.reason) {
        (BodyKind::Text, _) => {
            let id = id.map(|id| format!("Request id: {id}\n")).unwrap_or_default();
            return format!("{message}\n{id}").into();
        }
        (BodyKind::Json, _) => json!({
            "code": code(refusal),
            "message": message,
            "retry_after_ms": retry_after_ms,
            "limit": name,
        }),
        (BodyKind::Problem, RefusalReason::MissingIdentity { .. }) => {
            json!({ "type": "about:blank", "title": "Unauthorized", "status": 401, "detail": message })
        }
        (BodyKind::Problem, RefusalReason::NoPermit(_)) => json!({
            "type": "about:blank",
            "title": "Service Unavailable",
            "status": 503,
            "detail": message,
            "limit": name,
            "retry_after_ms": retry_after_ms,
        }),
        (BodyKind::Problem, _) => json!({
            "type": PROBLEM,
            "title": "Too Many Requests",
            "status": status(settings, refusal).as_u16(),
            "detail": message,
            "violated-policies": [name],
            "retry_after_ms": retry_after_ms,
        }),
    };
    if let Some(id) = id {
        body["request_id"] = id.into();
    }
    body.to_string().into()
}
