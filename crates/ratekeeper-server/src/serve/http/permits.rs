//! `/v1/acquire` and `/v1/release`: permits of a concurrency limit.
//!
//! A permit of a shared store is held there, and its id contains what any server needs to release it.

use http::StatusCode;
use ratekeeper::HeldPermit;
use serde_json::json;

use super::HttpApi;
use super::error::RequestError;
use super::hold_table::Hold;
use super::json_fields;
use super::permit_id::StoredPermit;
use super::response::{
    ApiResponse, error_response, json_response, store_error_response, too_many_holds,
};
use crate::serve::caller_limit::{DEFAULT_NAME, checked_name};

pub(super) async fn acquire(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    json_fields::check_known(&object, &["key", "max", "name", "valid_ms"])?;
    let key = json_fields::key(&object)?;
    let expected = "how many permits may be held at a time, at least 1";
    let max = match json_fields::required_integer(&object, "max", expected)? {
        0 => return Err(RequestError::FieldType { field: "max", expected: "at least 1" }),
        max => max,
    };
    let hold_time = json_fields::hold_time(&object)?;
    let name = checked_name(json_fields::string(&object, "name")?.unwrap_or(DEFAULT_NAME))?;
    let permit = api.limiter.engine().hold(name, key.as_bytes(), max, hold_time).await;
    api.count_key(name, &key, permit.is_some());
    let id = match permit {
        None => {
            let denied = json!({ "allowed": false, "max": max });
            return Ok(json_response(StatusCode::TOO_MANY_REQUESTS, &denied));
        }
        Some(HeldPermit::InStore(id)) => Some(StoredPermit { id, name, key }.to_string()),
        Some(HeldPermit::InProcess(permit)) => {
            let deadline_us = api.deadline_us(hold_time);
            api.holds.insert(Hold::Permit(permit), deadline_us, api.now_us())
        }
    };
    Ok(match id {
        Some(id) => {
            json_response(StatusCode::OK, &json!({ "allowed": true, "max": max, "permit": id }))
        }
        None => too_many_holds(),
    })
}

pub(super) async fn release(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    json_fields::check_known(&object, &["permit"])?;
    let expected = "the id that /v1/acquire returned";
    let id = json_fields::required_string(&object, "permit", expected)?;
    let was_held = match StoredPermit::parse(id)? {
        Some(StoredPermit { id, name, key }) => {
            match api.limiter.engine().release(name, key.as_bytes(), id).await {
                Ok(was_held) => was_held,
                Err(error) => return Ok(not_released(&error)),
            }
        }
        None => {
            let is_permit = |hold: &Hold| matches!(hold, Hold::Permit(_));
            api.holds.remove(id, api.now_us(), is_permit).is_some()
        }
    };
    Ok(match was_held {
        true => json_response(StatusCode::OK, &json!({ "released": true })),
        false => no_such_permit(),
    })
}

fn no_such_permit() -> ApiResponse {
    let message = "there is no such permit: it was released before, it has expired, or another server \
         granted it while the store was unavailable; nothing has changed";
    error_response(StatusCode::GONE, "GONE", message)
}

fn not_released(error: &ratekeeper::StoreError) -> ApiResponse {
    let message = format!("the permit was not released and is held until it expires: {error}");
    store_error_response(&message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use ratekeeper::policy::NoSources;
    use ratekeeper::{Policy, PolicyLimiter};
    use serde_json::Value;

    use super::super::hold_table::HOLDS_MAX;
    use super::*;
    use crate::serve::request_metrics::RequestMetrics;

    async fn parts(response: Result<ApiResponse, RequestError>) -> (u16, Value) {
        let (head, body) = response.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), serde_json::from_slice(&body).unwrap())
    }

    /// Acquires a permit for a key of its own, under one of a thousand names.
    async fn acquire_nth(api: &HttpApi, n: usize) -> (u16, Value) {
        let body = json!({"key": format!("k{n}"), "name": format!("n{}", n % 1_000), "max": 1});
        parts(acquire(api, body.to_string().as_bytes()).await).await
    }

    #[tokio::test]
    async fn permits_above_the_bound_are_rejected() {
        let policy = Policy::parse("none", "version: 1\nlimits: []\n", &NoSources).unwrap();
        let metrics = RequestMetrics::new(Arc::default());
        let api = HttpApi::new(PolicyLimiter::new(policy).unwrap(), Arc::default(), None, metrics);
        let (_, first) = acquire_nth(&api, 0).await;
        for n in 1..HOLDS_MAX {
            let (status, body) = acquire_nth(&api, n).await;
            assert_eq!(status, 200, "{n}: {body}");
        }
        for _ in 0..2 {
            // Not 429 the second time: a permit that has no entry in the table is not held.
            let (status, body) = acquire_nth(&api, HOLDS_MAX).await;
            assert_eq!((status, &body["code"]), (503, &json!("TOO_MANY_HELD")));
        }
        let body = json!({"permit": first["permit"]}).to_string();
        assert_eq!(parts(release(&api, body.as_bytes()).await).await.0, 200);
        assert_eq!(acquire_nth(&api, HOLDS_MAX).await.0, 200, "one was released");
    }
}
