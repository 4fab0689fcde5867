//! What a server shows of itself at one time: its status and its most frequent keys.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin_client::{AdminClient, AdminError};
use crate::failure::Failure;

const STATUS: &str = "/v1/status";
/// As many keys as the server lists.
const KEYS: &str = "/v1/top?n=200";

/// One reading of a server.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) status: Status,
    /// Why there are no keys, otherwise.
    pub(super) keys: Result<TopKeys, String>,
}

/// The fields of `/v1/status` that are shown.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Status {
    pub(super) at_us: u64,
    pub(super) version: String,
    pub(super) policy: PolicyStatus,
    pub(super) store: StoreStatus,
    pub(super) attention: Vec<Attention>,
    pub(super) limits: Vec<LimitStatus>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct PolicyStatus {
    pub(super) version: u64,
    pub(super) loaded_at_us: u64,
    pub(super) failures: u64,
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct StoreStatus {
    pub(super) state: String,
    pub(super) error: Option<String>,
    pub(super) breaker: Option<String>,
    pub(super) memory: Option<MemoryStatus>,
    pub(super) fallback: Option<FallbackStatus>,
    pub(super) leases: Option<LeaseStatus>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MemoryStatus {
    pub(super) keys: u64,
    pub(super) bytes: u64,
    pub(super) evictions: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct FallbackStatus {
    pub(super) nodes: u64,
    pub(super) by_store: u64,
    pub(super) local: u64,
    pub(super) open: u64,
    pub(super) closed: u64,
    pub(super) backlog_keys: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LeaseStatus {
    pub(super) keys: u64,
    pub(super) unspent: u64,
    pub(super) local: u64,
    pub(super) store_calls: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Attention {
    pub(super) urgency: String,
    pub(super) text: String,
    pub(super) details: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LimitStatus {
    pub(super) name: String,
    pub(super) rule: Option<String>,
    pub(super) mode: String,
    pub(super) total: Counts,
}

/// Decisions of a limit since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) near_limit: u64,
    pub(super) denied: u64,
    pub(super) shadow_denied: u64,
}

/// The lists of `/v1/top`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct TopKeys {
    pub(super) half_life_s: u64,
    pub(super) hottest: KeyList,
    pub(super) most_denied: KeyList,
    pub(super) most_shadow_denied: KeyList,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct KeyList {
    pub(super) keys: Vec<KeyCount>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct KeyCount {
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) truncated: bool,
    pub(super) count: u64,
    pub(super) error_max: u64,
}

/// Why a server could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("{0} has no {path}; is this the address of an admin listener?", path = STATUS)]
    NoStatus(String),
    #[error("unexpected response to {path}; is the server of another version than this command?")]
    Unexpected { path: &'static str, source: serde_json::Error },
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Admin(error) => error.into(),
            error => Self::io(error),
        }
    }
}

/// Reads a server once.
pub(super) async fn read(client: &AdminClient) -> Result<Reading, ReadError> {
    let (status, keys) = tokio::join!(client.fetch(STATUS), client.fetch(KEYS));
    let status = status?.ok_or_else(|| ReadError::NoStatus(client.address()))?;
    let keys = match keys {
        // A token that may read what names no keys.
        Err(AdminError::Refused(why)) => Err(why),
        Ok(None) => Err("this server does not list keys".into()),
        keys => Ok(parse(KEYS, keys?.unwrap_or_default())?),
    };
    Ok(Reading { status: parse(STATUS, status)?, keys })
}

fn parse<T: for<'de> Deserialize<'de>>(path: &'static str, json: Value) -> Result<T, ReadError> {
    serde_json::from_value(json).map_err(|source| ReadError::Unexpected { path, source })
}
