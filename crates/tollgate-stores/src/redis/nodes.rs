//! Who else is there: nodes announce themselves, and count as long as they go on doing so.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, nonsense, script};
use crate::store::{SharedStore, StoreError};

impl SharedStore for RedisStore {
    async fn announce(&self, node: &str, lives: Duration) -> Result<u32, StoreError> {
        let key = format!("{}:1:nodes", self.config.prefix).into_bytes();
        let args = [node.as_bytes().to_vec(), lives.as_millis().to_string().into_bytes()];
        let reply = self.turn().script(&script::ANNOUNCE, &[key], &args).await?;
        match reply {
            Value::Int(nodes) => Ok(u32::try_from(nodes).unwrap_or(u32::MAX)),
            reply => Err(nonsense(&reply)),
        }
    }
}
