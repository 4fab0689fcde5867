//! What every limit has left for a key, and to start a key afresh.

use ratekeeper::policy::{Amount, LimitRule};
use ratekeeper::{Charge, Limit, Op, PolicyLimiter, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

/// Longer keys do not exist.
const KEY_BYTES_MAX: usize = 1_024;

/// A key, and the limit that it is a key of. Without a limit, all of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    key: String,
    #[serde(default)]
    limit: Option<String>,
}

/// Why a key cannot be looked up or reset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidKeyRequest {
    #[error("expected JSON such as {{\"key\": \"k-123\", \"limit\": \"search\"}}: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the key has more than {KEY_BYTES_MAX} bytes")]
    TooLong,
    #[error("the policy has no rate limit of this name; see /v1/policy")]
    UnknownLimit,
    #[error("name the limit to reset")]
    NoLimit,
    #[error("the store is unavailable: {0}")]
    Store(#[from] StoreError),
}

/// Returns what each limit has left for a key. Nothing is charged.
pub(crate) async fn lookup(
    limiter: &PolicyLimiter,
    body: &[u8],
) -> Result<Value, InvalidKeyRequest> {
    let request = KeyRequest::parse(body)?;
    let active = limiter.policy().active();
    let rules = request.rules(active.policy().limits())?;
    let mut states = Vec::new();
    for rule in rules {
        for (number, limit) in rates(rule).enumerate() {
            states.push(state(limiter, rule, limit, number, &request.key).await?);
        }
    }
    Ok(json!({ "key": request.key, "limits": states }))
}

/// Deletes the state of a key in one limit, so that it starts afresh.
pub(crate) async fn reset(
    limiter: &PolicyLimiter,
    body: &[u8],
) -> Result<Value, InvalidKeyRequest> {
    let request = KeyRequest::parse(body)?;
    if request.limit.is_none() {
        return Err(InvalidKeyRequest::NoLimit);
    }
    let active = limiter.policy().active();
    for rule in request.rules(active.policy().limits())? {
        for limit in rates(rule) {
            let charge = Charge::new(limit, request.key.as_bytes());
            limiter.engine().reset(&charge).await?;
        }
        tracing::info!(limit = rule.name(), "a key was reset");
    }
    Ok(json!({ "reset": true, "key": request.key, "limit": request.limit }))
}

async fn state(
    limiter: &PolicyLimiter,
    rule: &LimitRule,
    limit: &Limit,
    number: usize,
    key: &str,
) -> Result<Value, InvalidKeyRequest> {
    let charge = Charge::new(limit, key.as_bytes());
    let mut state = json!({ "limit": rule.name(), "amount": limit.to_string(), "number": number });
    let Ok(applied) = limiter.engine().apply(Op::Peek, &[charge]).await else {
        state["known"] = false.into();
        return Ok(state);
    };
    let ttl = limiter.engine().usage_ttl(&charge).await?;
    let verdict = applied.verdict();
    state["known"] = (!applied.is_degraded()).into();
    state["is_used"] = (!ttl.is_zero()).into();
    state["allowed"] = verdict.allowed().into();
    state["capacity"] = verdict.limit().into();
    state["remaining"] = verdict.remaining().into();
    state["retry_after_us"] = verdict.retry_after().map(|after| after.as_micros() as u64).into();
    state["reset_after_us"] = (verdict.reset_after().as_micros() as u64).into();
    Ok(state)
}

/// Returns the rates of a limit, one for each tier. Concurrency limits have no keys to look up.
fn rates(rule: &LimitRule) -> impl Iterator<Item = &Limit> {
    rule.amounts().filter_map(|amount| match amount {
        Amount::Rate(limit) => Some(limit),
        Amount::Concurrency { .. } => None,
    })
}

impl KeyRequest {
    fn parse(body: &[u8]) -> Result<Self, InvalidKeyRequest> {
        let request: Self = serde_json::from_slice(body)?;
        match request.key.len() {
            0..=KEY_BYTES_MAX => Ok(request),
            _ => Err(InvalidKeyRequest::TooLong),
        }
    }

    /// Returns the limits that are meant, of those with rates.
    fn rules<'p>(
        &self,
        rules: &'p [std::sync::Arc<LimitRule>],
    ) -> Result<Vec<&'p LimitRule>, InvalidKeyRequest> {
        let is_meant =
            |rule: &LimitRule| self.limit.as_deref().is_none_or(|name| rule.name() == name);
        let found: Vec<_> = rules
            .iter()
            .map(|rule| &**rule)
            .filter(|rule| is_meant(rule) && rates(rule).next().is_some())
            .collect();
        match self.limit {
            Some(_) if found.is_empty() => Err(InvalidKeyRequest::UnknownLimit),
            _ => Ok(found),
        }
    }
}
