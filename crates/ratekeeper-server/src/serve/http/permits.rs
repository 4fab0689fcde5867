//! `/v1/acquire` and `/v1/release`: permits, of which a bounded number is held at a time. With a shared store
//! any server can release them.

use http::{HeaderMap, StatusCode};
use ratekeeper::PermitError;
use ratekeeper::refusals::{Decided, Details, RecordedReason};
use ratekeeper::telemetry::Outcome;
use serde_json::json;

use super::HttpApi;
use super::error::RequestError;
use super::json_fields;
use super::reservations::too_many_held;
use super::response::{
    ApiResponse, json_response, not_held_response, store_error_response, with_request_id,
};
use crate::serve::caller_limit::{DEFAULT_NAME, checked_name};

pub(super) async fn acquire(
    api: &HttpApi,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    json_fields::check_known(&object, &["key", "max", "name", "valid_ms"])?;
    let key = json_fields::key(&object)?;
    let expected = "how many permits may be held at a time, at least 1";
    let max = match json_fields::required_integer(&object, "max", expected)? {
        0 => return Err(RequestError::FieldType { field: "max", expected: "at least 1" }),
        max => max,
    };
    let valid = json_fields::hold_time(&object)?;
    let name = checked_name(json_fields::string(&object, "name")?.unwrap_or(DEFAULT_NAME))?;
    let held = match api.engine().hold(name, key.as_bytes(), max, valid).await {
        Ok(held) => held,
        Err(error) => return Ok(too_many_held(&error)),
    };
    let now = api.engine().now();
    api.count_key(name, &key, held.is_some(), now);
    Ok(match held {
        Some(id) => {
            let permit = id.to_string();
            json_response(StatusCode::OK, &json!({ "allowed": true, "max": max, "permit": permit }))
        }
        None => {
            let id = api.request_id(headers);
            let decided = Decided::new(name, key.as_bytes(), Outcome::Denied, now);
            api.limiter.refusals().record(&decided.by(Some(&id), "http"), || {
                Details::new(RecordedReason::InFlight { max }, false)
            });
            let denied = json!({ "allowed": false, "max": max, "request_id": &*id });
            with_request_id(json_response(StatusCode::TOO_MANY_REQUESTS, &denied), Some(&id))
        }
    })
}

pub(super) async fn release(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    json_fields::check_known(&object, &["permit"])?;
    let expected = "the id that /v1/acquire returned";
    let id = json_fields::required_string(&object, "permit", expected)?;
    let id = id.parse().map_err(RequestError::PermitId)?;
    Ok(match api.engine().release(id).await {
        Ok(()) => json_response(StatusCode::OK, &json!({ "released": true })),
        Err(error @ PermitError::Store(_)) => store_error_response(&error.to_string()),
        Err(error) => not_held_response(&error),
    })
}
