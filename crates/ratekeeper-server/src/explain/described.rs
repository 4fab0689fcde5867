//! An explanation for the admin API: of a request in JSON, by the active policy.

use ratekeeper::PolicyLimiter;
use serde_json::Value;

use super::json;
use super::state::LimitStates;
use crate::serve::{DescribedRequest, RequestError};

/// Explains the request of a body such as `{"request": {"path": "/search"}}`, with what is left of each limit. Nothing
/// is charged.
///
/// # Errors
///
/// If the body describes no request.
pub(crate) async fn explain_described(
    limiter: &PolicyLimiter,
    body: &[u8],
) -> Result<Value, RequestError> {
    let request = DescribedRequest::of_body(body)?;
    let active = limiter.policy().active();
    let now_us = limiter.engine().now().get();
    let explanation = active.policy().explain(&request.attributes(now_us));
    let states = LimitStates::read(limiter, &explanation, 1).await;
    Ok(json::show(&request.attributes(now_us), &explanation, &states))
}
