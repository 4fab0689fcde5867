//! Ids of requests: 32 hexadecimal digits where a request has none of its own.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ratekeeper_policy::Headers;

const LENGTH: usize = 32;
/// The longest id that a request may bring.
const KEPT_MAX: usize = 128;

/// Generates ids of requests that no other generator generates: 64 random bits, and a count that starts at random.
///
/// ```
/// use ratekeeper::RequestIds;
///
/// let ids = RequestIds::default();
/// assert_ne!(ids.generate(), ids.generate());
/// ```
#[derive(Debug)]
pub struct RequestIds {
    prefix: u64,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        let random = || RandomState::new().hash_one(0);
        Self { prefix: random(), next: AtomicU64::new(random()) }
    }
}

impl RequestIds {
    /// Returns the digits of a new id.
    #[must_use]
    pub fn generate(&self) -> [u8; LENGTH] {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let number = u128::from(self.prefix) << 64 | u128::from(count);
        std::array::from_fn(|index| {
            let digit = (number >> (4 * (LENGTH - 1 - index))) as usize & 0xf;
            b"0123456789abcdef"[digit]
        })
    }

    /// Returns the text of a new id.
    pub(crate) fn generate_text(&self) -> Arc<str> {
        let digits = self.generate();
        Arc::from(str::from_utf8(&digits).unwrap_or_default())
    }

    /// Returns whether an id that a request came with is short and plain, so that it can be used as it is.
    ///
    /// ```
    /// use ratekeeper::RequestIds;
    ///
    /// assert!(RequestIds::is_plain(b"abc-123"));
    /// assert!(!RequestIds::is_plain(b"a b"));
    /// ```
    #[must_use]
    pub fn is_plain(id: &[u8]) -> bool {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
        (1..=KEPT_MAX).contains(&id.len()) && id.iter().all(is_plain)
    }

    /// Returns the id in the header of this name, if there is one that is plain.
    #[must_use]
    pub fn of_headers(name: &str, headers: &dyn Headers) -> Option<Arc<str>> {
        let (mut count, mut first) = (0, None);
        headers.each(name, &mut |value| {
            count += 1;
            first = first.or(Some(value));
        });
        let id = first.filter(|id| count == 1 && Self::is_plain(id))?;
        str::from_utf8(id).ok().map(Arc::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_32_digits_and_differ() {
        let ids = RequestIds::default();
        let (one, two) = (ids.generate(), ids.generate());
        assert!(one != two && one.iter().all(u8::is_ascii_hexdigit));
        assert_eq!(ids.generate_text().len(), LENGTH);
    }

    #[test]
    fn only_a_short_and_plain_id_is_kept() {
        let of = |values: &[&str]| {
            let headers: Vec<_> =
                values.iter().map(|value| ("X-Request-ID".into(), value.to_string())).collect();
            RequestIds::of_headers("x-request-id", &headers)
        };
        assert_eq!(of(&["abc-123"]).as_deref(), Some("abc-123"));
        for values in [&[][..], &["a b"], &["a", "b"], &[""], &[&"a".repeat(KEPT_MAX + 1)]] {
            assert_eq!(of(values), None, "{values:?}");
        }
    }
}
