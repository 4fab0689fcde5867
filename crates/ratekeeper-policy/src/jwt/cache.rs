//! A bounded cache of verified tokens.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::claims::{Claims, Validity};

const SHARDS: usize = 16;

/// Maximum number of tokens in one generation of a shard. All shards and both generations have 4096.
const GENERATION_MAX: usize = 4096 / SHARDS / 2;

/// The whole SHA-256 digest, so that tokens never collide.
pub(super) type TokenDigest = [u8; 32];

/// A bounded map from tokens to their claims. When the young generation of a shard is full, it becomes
/// the old one, and the previous old one is dropped with all tokens that were not used since.
pub(super) struct TokenCache {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    young: HashMap<TokenDigest, (Claims, Validity)>,
    old: HashMap<TokenDigest, (Claims, Validity)>,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl TokenCache {
    pub(super) fn digest(token: &str) -> TokenDigest {
        Sha256::digest(token.as_bytes()).into()
    }

    pub(super) fn get(&self, token: &TokenDigest) -> Option<(Claims, Validity)> {
        let mut shard = self.shard(token);
        if let Some(found) = shard.young.get(token) {
            return Some(found.clone());
        }
        let found = shard.old.remove(token)?;
        shard.insert(*token, found.clone());
        Some(found)
    }

    pub(super) fn insert(&self, token: TokenDigest, claims: Claims, validity: Validity) {
        self.shard(&token).insert(token, (claims, validity));
    }

    /// Ignores poisoning: no operation panics while it holds the lock.
    fn shard(&self, token: &TokenDigest) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[usize::from(token[0]) % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let lens = self.shards.iter().map(|shard| {
            let shard = shard.lock().unwrap();
            shard.young.len() + shard.old.len()
        });
        lens.sum()
    }
}

impl Shard {
    fn insert(&mut self, token: TokenDigest, verified: (Claims, Validity)) {
        if self.young.len() >= GENERATION_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(token, verified);
    }
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified() -> (Claims, Validity) {
        (Claims::parse(b"{}").unwrap(), Validity { starts: None, expires: None })
    }

    fn insert(cache: &TokenCache, number: usize) -> TokenDigest {
        let digest = TokenCache::digest(&number.to_string());
        let (claims, validity) = verified();
        cache.insert(digest, claims, validity);
        digest
    }

    #[test]
    fn the_cache_is_bounded() {
        let cache = TokenCache::default();
        for number in 0..20_000 {
            let digest = insert(&cache, number);
            assert!(cache.get(&digest).is_some());
        }
        assert!(cache.len() <= 4096, "{}", cache.len());
    }

    #[test]
    fn used_tokens_stay_and_unused_ones_are_evicted() {
        let cache = TokenCache::default();
        let (used, unused) = (insert(&cache, 0), insert(&cache, 1));
        for number in 2..20_000 {
            insert(&cache, number);
            assert!(cache.get(&used).is_some());
        }
        assert!(cache.get(&unused).is_none());
    }
}
