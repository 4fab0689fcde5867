//! Keys made as good as new: of a rate that the caller brings, of what the policy counts a request
//! under, or of descriptors.

use http::StatusCode;
use ratekeeper::policy::{Amount, Resolution};
use ratekeeper::{Charge, StoreError};
use serde_json::json;

use super::HttpApi;
use super::ask::{self, Described, Question};
use super::reply::{Reply, json, wrong};
use crate::serve::grpc::rls::ResetError;

pub(super) async fn answer(door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    if object.contains_key("domain") || object.contains_key("descriptors") {
        return of_descriptors(door, body).await;
    }
    let done = match Question::read(body)? {
        Question::Request(described) => of_request(door, &described).await,
        Question::Checks(checks) => {
            let charges = checks.iter().map(|check| Charge::new(&check.limit, &check.key));
            reset(door, charges).await
        }
    };
    Ok(match done {
        Ok(names) => told(&names),
        Err(error) => no_store(&error.to_string()),
    })
}

/// Permits stay with those who hold them.
async fn of_request(door: &HttpApi, described: &Described) -> Result<Vec<String>, StoreError> {
    let live = door.gate.policy().active();
    let applied = match live.policy().resolve(&described.request(door.now_us())) {
        Resolution::Charged(applied) => applied,
        Resolution::Exempt(_) | Resolution::MissingIdentity { .. } => Vec::new(),
    };
    let charges = applied.iter().filter_map(|one| match one.amount() {
        Amount::Rate(limit) => Some(Charge::new(limit, one.key.as_bytes())),
        Amount::Concurrency { .. } => None,
    });
    reset(door, charges).await
}

/// Resets all of them, and tells the names of their limits.
async fn reset<'a>(
    door: &HttpApi,
    charges: impl Iterator<Item = Charge<'a>>,
) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for charge in charges {
        door.gate.engine().reset(&charge).await?;
        names.push(charge.limit().name().to_string());
    }
    Ok(names)
}

async fn of_descriptors(door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
    let Some(envoy) = &door.envoy else {
        return Err(
            "there are no limits of descriptors; name their folder with --envoy-config".into()
        );
    };
    match envoy.reset_json(body).await {
        Ok(names) => Ok(told(&names)),
        Err(ResetError::Invalid(error)) => Err(error.to_string()),
        Err(ResetError::Store(error)) => Ok(no_store(&error.to_string())),
    }
}

fn told(limits: &[String]) -> Reply {
    json(StatusCode::OK, &json!({ "reset": !limits.is_empty(), "limits": limits }))
}

fn no_store(why: &str) -> Reply {
    wrong(StatusCode::SERVICE_UNAVAILABLE, "STORE", why)
}
