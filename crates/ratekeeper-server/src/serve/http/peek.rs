//! `/v1/peek` of a described request: what the policy would decide, without charging anything.

use http::StatusCode;
use ratekeeper::policy::{Amount, AppliedLimit, Resolution};
use ratekeeper::{ActivePolicy, Decision};

use super::HttpApi;
use super::described_request::DescribedRequest;
use super::response::{ApiResponse, DecisionBody};

pub(super) async fn peek_request(
    api: &HttpApi,
    active: &ActivePolicy,
    request: &DescribedRequest,
) -> ApiResponse {
    let resolution = active.policy().resolve(&request.attributes(api.now_us()));
    let (allowed, reason) = match resolution {
        Resolution::Charged(limits) => return peek_limits(api, &limits).await,
        Resolution::Exempt(_) => (true, "exempt".to_string()),
        Resolution::MissingIdentity { missing, .. } => {
            (false, format!("{}: {}", missing.identity, missing.why))
        }
    };
    DecisionBody::without_limit(allowed, reason).to_response(StatusCode::OK)
}

/// Peeks at the enforced rates; the strictest one is the binding limit. Concurrency limits are left out.
async fn peek_limits(api: &HttpApi, limits: &[AppliedLimit]) -> ApiResponse {
    let (mut decisions, mut binding) = (Vec::new(), None::<(Decision, DecisionBody<'_>)>);
    for applied_limit in limits.iter().filter(|limit| limit.is_enforced) {
        let Amount::Rate(limit) = applied_limit.amount() else { continue };
        let Some(applied) = api.limiter.peek(applied_limit).await else { continue };
        let body = DecisionBody::new(limit, &applied, applied.is_degraded());
        if binding.as_ref().is_none_or(|(known, _)| applied.strictness() > known.strictness()) {
            binding = Some((**applied.verdict(), body.clone()));
        }
        decisions.push(body);
    }
    let body = match binding {
        None => DecisionBody::without_limit(true, "no rate applies".into()),
        Some((_, body)) if decisions.len() > 1 => body.with_decisions(decisions),
        Some((_, body)) => body,
    };
    body.to_response(StatusCode::OK)
}
