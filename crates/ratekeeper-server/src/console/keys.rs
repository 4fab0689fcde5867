//! What every limit has left for a key, and to start a key afresh.

use ratekeeper::policy::{Amount, LimitRule};
use ratekeeper::{Charge, Limit, Op, Policy, PolicyLimiter, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

/// Longer keys do not exist.
const KEY_BYTES_MAX: usize = 1_024;

/// A key or the value of an identity, and the limit that it is counted by. Without a limit, all of them.
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
    #[error("this limit does not count by one identity; use a whole key as /v1/top lists it")]
    NotByOneIdentity,
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
    let mut states = Vec::new();
    for (rule, key) in request.counted_by(active.policy())? {
        for (number, limit) in rates(rule).enumerate() {
            states.push(state(limiter, rule, limit, number, &key).await?);
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
    for (rule, key) in request.counted_by(active.policy())? {
        for limit in rates(rule) {
            let charge = Charge::new(limit, &key);
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
    key: &[u8],
) -> Result<Value, InvalidKeyRequest> {
    let charge = Charge::new(limit, key);
    let key = String::from_utf8_lossy(key);
    let mut state =
        json!({ "limit": rule.name(), "key": key, "amount": limit.to_string(), "number": number });
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

    /// Returns the limits that are meant, of those with rates, each with the key in it.
    fn counted_by<'p>(
        &self,
        policy: &'p Policy,
    ) -> Result<Vec<(&'p LimitRule, Vec<u8>)>, InvalidKeyRequest> {
        let found: Vec<_> = self
            .rules(policy)?
            .into_iter()
            .filter_map(|rule| Some((rule, self.key_in(policy, rule)?)))
            .collect();
        match found.is_empty() && self.limit.is_some() {
            true => Err(InvalidKeyRequest::NotByOneIdentity),
            false => Ok(found),
        }
    }

    /// Returns the key itself if it is a whole one, such as `user=ann`, and otherwise the one with this value.
    fn key_in(&self, policy: &Policy, rule: &LimitRule) -> Option<Vec<u8>> {
        let key = &*self.key;
        let begins_with = |name: &str| {
            key.strip_prefix(name).is_some_and(|rest| rest.starts_with(['=', '~', ',']))
        };
        match key == "*" || policy.identities().any(begins_with) {
            true => Some(key.as_bytes().to_vec()),
            false => policy.key_of(rule, key).map(|key| key.as_bytes().to_vec()),
        }
    }

    /// Returns the limits that are meant, of those with rates.
    fn rules<'p>(&self, policy: &'p Policy) -> Result<Vec<&'p LimitRule>, InvalidKeyRequest> {
        let is_meant =
            |rule: &LimitRule| self.limit.as_deref().is_none_or(|name| rule.name() == name);
        let found: Vec<_> = policy
            .limits()
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
