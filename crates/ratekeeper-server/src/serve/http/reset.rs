//! `/v1/reset`: clears the usage of keys, of rates of the caller, of the policy's limits for a described
//! request, or of descriptors.

use http::StatusCode;
use ratekeeper::policy::{Amount, AppliedLimits, Resolution};
use ratekeeper::{ActivePolicy, Charge, StoreError};
use serde_json::json;

use super::HttpApi;
use super::described_request::DescribedRequest;
use super::error::RequestError;
use super::json_fields;
use super::request::ApiRequest;
use super::response::{ApiResponse, json_response, store_error_response};
use crate::serve::grpc::rls::ResetError;

pub(super) async fn reset(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let object = json_fields::parse_object(body)?;
    if object.contains_key("domain") || object.contains_key("descriptors") {
        return reset_descriptors(api, body).await;
    }
    let reset = match ApiRequest::parse(body)? {
        ApiRequest::Described(request) => {
            let policy = api.policy_for(&request)?;
            reset_request(api, &policy, &request).await
        }
        ApiRequest::Checks(checks) => {
            let charges = checks.iter().map(|check| Charge::new(&check.limit, &check.key));
            reset_charges(api, charges).await
        }
    };
    Ok(match reset {
        Ok(limits) => reset_response(&limits),
        Err(error) => store_error_response(&error.to_string()),
    })
}

/// Resets the rates of a described request. Permits stay held.
async fn reset_request(
    api: &HttpApi,
    active: &ActivePolicy,
    request: &DescribedRequest,
) -> Result<Vec<String>, StoreError> {
    let limits = match active.policy().resolve(&request.attributes(api.now_us())) {
        Resolution::Charged(limits) => limits,
        Resolution::Exempt(_) | Resolution::MissingIdentity { .. } => AppliedLimits::new(),
    };
    let charges = limits.iter().filter_map(|applied_limit| {
        let key = applied_limit.key.as_bytes();
        match (applied_limit.guaranteed_limit(), applied_limit.amount()) {
            (Some(limit), _) => Some(Charge::guaranteed(limit, key)),
            (None, Amount::Rate(limit)) => Some(Charge::new(limit, key)),
            (None, Amount::Concurrency { .. }) => None,
        }
    });
    reset_charges(api, charges).await
}

/// Resets the usage of each charge, and returns the names of the limits.
async fn reset_charges<'a>(
    api: &HttpApi,
    charges: impl Iterator<Item = Charge<'a>>,
) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for charge in charges {
        api.limiter.engine().reset(&charge).await?;
        names.push(charge.limit().name().to_string());
    }
    Ok(names)
}

async fn reset_descriptors(api: &HttpApi, body: &[u8]) -> Result<ApiResponse, RequestError> {
    let envoy = api.envoy.as_ref().ok_or(RequestError::NoDescriptorLimits)?;
    match envoy.reset_json(body).await {
        Ok(limits) => Ok(reset_response(&limits)),
        Err(ResetError::Invalid(error)) => Err(RequestError::Descriptors(error.into())),
        Err(ResetError::Store(error)) => Ok(store_error_response(&error.to_string())),
    }
}

fn reset_response(limits: &[String]) -> ApiResponse {
    json_response(StatusCode::OK, &json!({ "reset": !limits.is_empty(), "limits": limits }))
}
