//! Ids of requests: kept from trusted proxies, generated for other clients.

use http::{HeaderMap, HeaderName, HeaderValue};
use ratekeeper::RequestIds;

pub(super) fn generate(ids: &RequestIds) -> HeaderValue {
    HeaderValue::from_bytes(&ids.generate()).expect("hexadecimal digits are ASCII")
}

/// Returns the id that a request came with if it is short and plain, and a new one otherwise.
pub(super) fn keep_or_generate(
    ids: &RequestIds,
    headers: &HeaderMap,
    name: &HeaderName,
) -> HeaderValue {
    let mut given = headers.get_all(name).iter();
    match (given.next(), given.next()) {
        (Some(id), None) if RequestIds::is_plain(id.as_bytes()) => id.clone(),
        _ => generate(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_short_and_sane_id_is_taken_over() {
        let (ids, name) = (RequestIds::default(), HeaderName::from_static("x-request-id"));
        let take = |given: &str| {
            let headers = [(name.clone(), given.parse().unwrap())].into_iter().collect();
            keep_or_generate(&ids, &headers, &name)
        };
        assert_eq!(take("abc-123"), "abc-123");
        assert_ne!(take("a b"), "a b");
        assert_eq!(take("a b").len(), 32);
    }
}
