//! `/v1/check`: decides about rates of the caller, or about a described request by the policy.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use ratekeeper::{ActivePolicy, Admission, Admitted, Charge, Op, RefusalReason};
use smallvec::SmallVec;

use super::described_request::DescribedRequest;
use super::error::RequestError;
use super::peek;
use super::request::{ApiRequest, RateCheck};
use super::response::{
    ApiResponse, DecisionBody, with_binding_headers, with_limit_headers, with_request_id,
};
use super::{Checked, HttpApi};

/// Handles `/v1/check`, and `/v1/peek` with [`Op::Peek`].
pub(super) async fn check(
    api: &HttpApi,
    headers: &HeaderMap,
    body: &[u8],
    op: Op,
) -> Result<ApiResponse, RequestError> {
    match ApiRequest::parse(body)? {
        ApiRequest::Checks(checks) => check_rates(api, headers, &checks, op).await,
        ApiRequest::Described(request) => {
            let policy = api.policy_for(&request)?;
            Ok(match op {
                Op::Peek => Box::pin(peek::peek_request(api, &policy, &request)).await,
                _ => Box::pin(check_request(api, policy, &request)).await,
            })
        }
    }
}

async fn check_rates(
    api: &HttpApi,
    headers: &HeaderMap,
    checks: &[RateCheck],
    op: Op,
) -> Result<ApiResponse, RequestError> {
    let charges: SmallVec<[Charge<'_>; 4]> = checks.iter().map(RateCheck::charge).collect();
    let applied = api.limiter.engine().apply(op, &charges).await?;
    let mut request_id = None;
    if op == Op::Check {
        request_id = (!applied.allowed()).then(|| api.request_id(headers));
        let checked = Checked { checks, charges: &charges, applied: &applied };
        api.record_check(&checked, request_id.as_ref());
    }
    let binding = &checks[applied.binding()].limit;
    let mut body = DecisionBody::new(binding, &applied, applied.is_degraded());
    if checks.len() > 1 {
        let decisions = checks.iter().zip(applied.decisions()).map(|(check, decision)| {
            DecisionBody::new(&check.limit, decision, applied.is_degraded())
        });
        body = body.with_decisions(decisions.collect());
    }
    let body = body.with_request_id(request_id.as_deref());
    let response = body.to_response(status(op, applied.allowed()));
    let response = with_limit_headers(response, binding, &applied);
    Ok(with_request_id(response, request_id.as_deref()))
}

/// A peek succeeds whatever the decision.
fn status(op: Op, is_allowed: bool) -> StatusCode {
    match is_allowed || op == Op::Peek {
        true => StatusCode::OK,
        false => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Decides about a described request by the policy.
async fn check_request(
    api: &HttpApi,
    policy: Arc<ActivePolicy>,
    request: &DescribedRequest,
) -> ApiResponse {
    let now = api.limiter.engine().now();
    let deciding = api.limiter.decide_under(policy, &request.attributes(now.get()), now);
    admission_response(&deciding.await)
}

fn reason_without_binding(admitted: &Admitted) -> &'static str {
    let mut limits = admitted.limits().iter();
    match admitted.limits() {
        [] => "no limit applies",
        _ if limits.any(|limit| limit.is_enforced) => "only concurrency limits apply",
        _ => "only limits in shadow mode apply",
    }
}

fn admission_response(admission: &Admission) -> ApiResponse {
    match admission {
        Admission::Exempt => {
            DecisionBody::without_limit(true, "exempt".into()).to_response(StatusCode::OK)
        }
        Admission::Admitted(admitted) => {
            let body = match admitted.binding() {
                Some(binding) => {
                    DecisionBody::new(binding.limit, binding.decision, admitted.is_degraded)
                }
                None => DecisionBody::without_limit(true, reason_without_binding(admitted).into()),
            };
            let response = body.with_delay(admitted.delay).to_response(StatusCode::OK);
            with_binding_headers(response, admitted.binding())
        }
        Admission::Shed(refusal) => {
            let reason = format!("{} is shed, because the service is overloaded", refusal.class);
            let body = DecisionBody::without_limit(false, reason);
            body.to_response(StatusCode::SERVICE_UNAVAILABLE)
        }
        Admission::Refused(refusal) => {
            let body = match (&refusal.reason, refusal.binding()) {
                (_, Some(binding)) => {
                    DecisionBody::new(binding.limit, binding.decision, refusal.is_degraded)
                }
                (RefusalReason::MissingIdentity { identity, why }, _) => {
                    DecisionBody::without_limit(false, format!("{identity}: {why}"))
                }
                _ => DecisionBody::without_limit(false, "too many requests in flight".into()),
            };
            let status = match refusal.reason {
                RefusalReason::MissingIdentity { .. } => StatusCode::UNAUTHORIZED,
                RefusalReason::NoPermit(_) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::TOO_MANY_REQUESTS,
            };
            let id = refusal.request_id.as_deref();
            let body = body.with_limit_name(refusal.rule.name()).with_request_id(id);
            let response = with_binding_headers(body.to_response(status), refusal.binding());
            with_request_id(response, id)
        }
    }
}
