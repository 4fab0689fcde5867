//! Ids of requests: kept from trusted proxies, generated for other clients.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue};

const LENGTH: usize = 32;
const KEPT_MAX: usize = 128;

/// Generates ids that no other worker generates: 64 random bits, and a count that starts at random.
pub(super) struct RequestIds {
    prefix: u64,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        Self { prefix: random(), next: AtomicU64::new(random()) }
    }
}

impl RequestIds {
    pub(super) fn generate(&self) -> HeaderValue {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let number = u128::from(self.prefix) << 64 | u128::from(count);
        let mut text = [0; LENGTH];
        for (index, byte) in text.iter_mut().enumerate() {
            let digit = (number >> (4 * (LENGTH - 1 - index))) as usize & 0xf;
            *byte = b"0123456789abcdef"[digit];
        }
        HeaderValue::from_bytes(&text).expect("hexadecimal digits are ASCII")
    }

    /// Returns the id that a request came with if it is short and plain, and a new one otherwise.
    pub(super) fn keep_or_generate(
        &self,
        headers: &http::HeaderMap,
        name: &HeaderName,
    ) -> HeaderValue {
        let mut given = headers.get_all(name).iter();
        match (given.next(), given.next()) {
            (Some(id), None) if is_plain_id(id.as_bytes()) => id.clone(),
            _ => self.generate(),
        }
    }
}

fn is_plain_id(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=KEPT_MAX).contains(&id.len()) && id.iter().all(is_plain)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_32_digits_and_differ() {
        let ids = RequestIds::default();
        let (one, two) = (ids.generate(), ids.generate());
        assert!(one != two && one.len() == LENGTH);
        assert!(one.as_bytes().iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn only_a_short_and_sane_id_is_taken_over() {
        let (ids, name) = (RequestIds::default(), HeaderName::from_static("x-request-id"));
        let take = |given: &str| {
            let headers = [(name.clone(), given.parse().unwrap())].into_iter().collect();
            ids.keep_or_generate(&headers, &name)
        };
        assert_eq!(take("abc-123"), "abc-123");
        assert_ne!(take("a b"), "a b");
        let long = "a".repeat(KEPT_MAX + 1);
        assert_ne!(take(&long), long.as_str());
    }
}
