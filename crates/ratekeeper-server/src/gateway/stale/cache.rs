//! A cache of responses, bounded in bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, RANGE, SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};

/// The longest response that is cached.
pub(super) const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// The size of all cached responses together.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// What distinguishes cached responses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CacheKey {
    host: Vec<u8>,
    target: String,
}

/// A request whose response may be cached, with the headers that the response may vary by.
pub(super) struct CacheableRequest {
    key: CacheKey,
    headers: HeaderMap,
    is_personal: bool,
}

impl CacheableRequest {
    /// Returns the cacheable part of a request, if its response may be shared.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        if request.method() != Method::GET || headers.contains_key(RANGE) {
            return None;
        }
        let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let host = authority.or(headers.get(HOST).map(HeaderValue::as_bytes)).unwrap_or_default();
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let is_personal = headers.contains_key(AUTHORIZATION) || headers.contains_key(COOKIE);
        let key = CacheKey { host: host.to_ascii_lowercase(), target: target.to_string() };
        Some(Self { key, headers: headers.clone(), is_personal })
    }

    /// Whether the response may be served to other clients, which its headers have to allow.
    pub(super) fn may_be_cached(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let control = words(headers, CACHE_CONTROL);
        let says = |word: &str| control.iter().any(|known| known == word);
        let has_age = control.iter().any(|word| {
            let (name, secs) = word.split_once('=').unwrap_or((word, ""));
            matches!(name, "max-age" | "s-maxage") && secs.parse::<u64>().is_ok_and(|secs| secs > 0)
        });
        let is_shared = says("public") || has_age && !self.is_personal;
        let is_private = says("private") || says("no-store") || says("no-cache");
        status == StatusCode::OK
            && is_shared
            && !is_private
            && !headers.contains_key(SET_COOKIE)
            && !words(headers, VARY).iter().any(|word| word == "*")
    }
}

fn words(headers: &HeaderMap, name: HeaderName) -> Vec<String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let words = values.flat_map(|value| value.split(','));
    words.map(|word| word.trim().to_ascii_lowercase()).collect()
}

struct CachedResponse {
    headers: HeaderMap,
    body: Bytes,
    at_us: u64,
    /// The values of the request's headers that the response varies by.
    varies: Vec<(HeaderName, Option<HeaderValue>)>,
}

impl CachedResponse {
    fn size(&self) -> usize {
        let headers =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        self.body.len() + headers.sum::<usize>() + 512
    }
}

/// Cached responses; the oldest are evicted first.
#[derive(Default)]
pub(super) struct Cache(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    by_key: HashMap<CacheKey, Arc<CachedResponse>>,
    order: VecDeque<(CacheKey, u64)>,
    bytes: usize,
}

impl Cache {
    pub(super) fn keep(
        &self,
        request: CacheableRequest,
        headers: HeaderMap,
        body: Bytes,
        at_us: u64,
    ) {
        let varied = words(&headers, VARY).into_iter().chain([ACCEPT_ENCODING.to_string()]);
        let varies = varied.filter_map(|name| HeaderName::try_from(name).ok()).map(|name| {
            let value = request.headers.get(&name).cloned();
            (name, value)
        });
        let cached = CachedResponse { varies: varies.collect(), headers, body, at_us };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.put(request.key, cached);
    }

    /// Returns the cached response to a request, if there is one that is not older than `age_max`.
    pub(super) fn find(
        &self,
        request: &CacheableRequest,
        age_max: Duration,
        now_us: u64,
    ) -> Option<(Response<()>, Bytes)> {
        let cached = {
            let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            entries.by_key.get(&request.key)?.clone()
        };
        let age = Duration::from_micros(now_us.saturating_sub(cached.at_us));
        let is_alike = |(name, value): &(HeaderName, Option<HeaderValue>)| {
            request.headers.get(name) == value.as_ref()
        };
        if age > age_max || !cached.varies.iter().all(is_alike) {
            return None;
        }
        let mut response = Response::new(());
        *response.headers_mut() = cached.headers.clone();
        response.headers_mut().insert(http::header::AGE, age.as_secs().into());
        Some((response, cached.body.clone()))
    }
}

impl Entries {
    fn put(&mut self, key: CacheKey, cached: CachedResponse) {
        self.bytes += cached.size();
        self.order.push_back((key.clone(), cached.at_us));
        if let Some(old) = self.by_key.insert(key, Arc::new(cached)) {
            self.bytes -= old.size();
        }
        // A response that was replaced is in the queue twice; only its last position counts.
        while self.bytes > CACHE_BYTES_MAX || self.order.len() > 2 * self.by_key.len() + 16 {
            let Some((key, at_us)) = self.order.pop_front() else { return };
            let is_last = self.by_key.get(&key).is_some_and(|cached| cached.at_us == at_us);
            if is_last && self.bytes <= CACHE_BYTES_MAX {
                self.order.push_back((key, at_us));
            } else if is_last && let Some(old) = self.by_key.remove(&key) {
                self.bytes -= old.size();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, headers: &[(&'static str, &'static str)]) -> Option<CacheableRequest> {
        let request =
            headers.iter().fold(Request::get(target), |r, (name, value)| r.header(*name, *value));
        CacheableRequest::of(&request.body(()).unwrap())
    }

    fn response_headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs =
            all.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        pairs.collect()
    }

    fn is_cached(
        headers: &[(&'static str, &'static str)],
        response: &[(&'static str, &'static str)],
    ) -> bool {
        request("/", headers).is_some_and(|request| {
            request.may_be_cached(StatusCode::OK, &response_headers(response))
        })
    }

    #[test]
    fn only_shared_responses_are_cached() {
        assert!(is_cached(&[], &[("cache-control", "max-age=60")]));
        assert!(is_cached(&[], &[("cache-control", "Public")]));
        assert!(is_cached(&[("authorization", "x")], &[("cache-control", "public, max-age=1")]));
        assert!(!is_cached(&[("authorization", "x")], &[("cache-control", "max-age=60")]));
        assert!(!is_cached(&[("cookie", "x=1")], &[("cache-control", "max-age=60")]));
        assert!(!is_cached(&[], &[]));
        assert!(!is_cached(&[], &[("cache-control", "max-age=0")]));
        assert!(!is_cached(&[], &[("cache-control", "public, no-store")]));
        assert!(!is_cached(&[], &[("cache-control", "private, max-age=60")]));
        assert!(!is_cached(&[], &[("cache-control", "public"), ("set-cookie", "a=1")]));
        assert!(!is_cached(&[], &[("cache-control", "public"), ("vary", "*")]));
        assert!(!is_cached(&[("range", "bytes=0-1")], &[("cache-control", "public")]));
    }

    #[test]
    fn a_response_is_served_to_the_same_request_until_it_is_too_old() {
        let cache = Cache::default();
        let headers = response_headers(&[("cache-control", "public"), ("vary", "accept")]);
        let json = [("accept", "json")];
        cache.keep(request("/a?b", &json).unwrap(), headers, Bytes::from("body"), 1_000_000);
        let find = |target, headers: &[(&'static str, &'static str)], now_us| {
            let found =
                cache.find(&request(target, headers).unwrap(), Duration::from_secs(10), now_us);
            found.map(|(response, _)| response.headers()["age"].to_str().unwrap().to_string())
        };
        assert_eq!(find("/a?b", &json, 6_500_000).as_deref(), Some("5"));
        assert_eq!(find("/a?b", &json, 11_000_001), None);
        assert_eq!(find("/a?c", &json, 1_000_000), None);
        assert_eq!(find("/a?b", &[("accept", "html")], 1_000_000), None);
        assert_eq!(
            find("/a?b", &[("accept", "json"), ("accept-encoding", "gzip")], 1_000_000),
            None
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let cache = Cache::default();
        for i in 0..200 {
            let body = Bytes::from(vec![0; RESPONSE_BYTES_MAX]);
            cache.keep(request(&format!("/{}", i % 150), &[]).unwrap(), HeaderMap::new(), body, i);
        }
        let entries = cache.0.lock().unwrap();
        assert!(entries.bytes <= CACHE_BYTES_MAX, "{}", entries.bytes);
        assert_eq!(
            entries.bytes,
            entries.by_key.values().map(|cached| cached.size()).sum::<usize>()
        );
        assert!(entries.order.len() <= 2 * entries.by_key.len() + 17);
        assert!(entries.by_key.len() >= 60);
    }
}
