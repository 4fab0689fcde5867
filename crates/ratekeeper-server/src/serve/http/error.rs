//! Why a request of the HTTP API is invalid.

use std::net::AddrParseError;

use http::StatusCode;
use ratekeeper::policy::attributes::HostError;
use ratekeeper::policy::json::JsonError;
use ratekeeper::{ChargesError, InvalidHoldId};
use thiserror::Error;

use super::json_fields::KEY_MAX;
use super::request::CHECKS_MAX;
use super::response::{ApiResponse, error_response};
use crate::serve::caller_limit::CallerLimitError;
use crate::serve::hold_time::HOLD_MAX;

/// Why no described request can be decided.
pub(super) const NO_POLICY: &str =
    "the server has no policy with limits; start it with one, as in `ratekeeper serve policy.yaml`";

/// What is wrong with a request, and what would work instead.
#[derive(Debug, Error)]
pub(crate) enum RequestError {
    #[error("the body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
    #[error(transparent)]
    DuplicateField(JsonError),
    #[error("the body must be a JSON object")]
    NotAnObject,
    #[error("unknown field \"{field}\"; {}", suggestion(*.closest, .known))]
    UnknownField { field: String, closest: Option<&'static str>, known: Vec<&'static str> },
    #[error("\"{field}\" is missing; it is {expected}")]
    MissingField { field: &'static str, expected: &'static str },
    #[error("\"{field}\" must be {expected}")]
    FieldType { field: &'static str, expected: &'static str },
    #[error("the key is empty")]
    EmptyKey,
    #[error("the key has {0} bytes; use at most {KEY_MAX}")]
    KeyTooLong(usize),
    #[error("the cost is 0; to read a limit without charging it, use /v1/peek")]
    ZeroCost,
    #[error("\"checks\" has {0} entries; use 1 to {CHECKS_MAX}")]
    CheckCount(usize),
    #[error("\"valid_ms\" must be 1 to {}", HOLD_MAX.as_millis())]
    HoldTime,
    #[error("\"peer\" must be an address such as 192.0.2.1, not \"{text}\"")]
    Peer { text: String, source: AddrParseError },
    #[error("the header {0} must be a string or a list of strings")]
    HeaderType(String),
    #[error("the header {0} contains a line break or another control character")]
    HeaderControlCharacter(String),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Limit(#[from] CallerLimitError),
    #[error(transparent)]
    Charges(#[from] ChargesError),
    #[error(
        "this is not the id of a reservation; send the one that /v1/reserve returned, unchanged"
    )]
    ReservationId(#[source] InvalidHoldId),
    #[error("this is not the id of a permit; send the one that /v1/acquire returned, unchanged")]
    PermitId(#[source] InvalidHoldId),
    #[error("{NO_POLICY}, or send a \"key\" and a \"rate\" instead of a \"request\"")]
    NoPolicy,
    #[error(
        "a limit counts by the client's address; send it as \"peer\" in \"request\", such as 192.0.2.1"
    )]
    UnknownPeer,
    #[error("there are no descriptor limits; name their folder with --envoy-config")]
    NoDescriptorLimits,
    #[error(transparent)]
    Descriptors(Box<dyn std::error::Error + Send + Sync>),
}

impl RequestError {
    pub(super) fn to_response(&self) -> ApiResponse {
        error_response(StatusCode::BAD_REQUEST, "BAD_REQUEST", &self.to_string())
    }
}

impl From<JsonError> for RequestError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Invalid(error) => Self::Json(error),
            duplicate => Self::DuplicateField(duplicate),
        }
    }
}

fn suggestion(closest: Option<&str>, known: &[&str]) -> String {
    match closest {
        Some(closest) => format!("did you mean \"{closest}\"?"),
        None => format!("known fields: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::super::request::ApiRequest;

    #[test]
    fn an_error_keeps_its_source() {
        for body in [
            "{",
            r#"{"key":"k","rate":"1/fortnight"}"#,
            r#"{"key":"k","rate":"1/s burst 2","algorithm":"fixed_window"}"#,
            r#"{"request":{"path":"/","peer":"nowhere"}}"#,
        ] {
            let error = ApiRequest::parse(body.as_bytes()).unwrap_err();
            assert!(error.source().is_some(), "{error:?}");
        }
    }
}
