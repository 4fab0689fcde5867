//! Answers that may be given again, within a bound of memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, RANGE, SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};

/// A longer answer is not kept.
pub(super) const ANSWER_MAX: usize = 1 << 20;
/// All answers together.
const BYTES_MAX: usize = 64 << 20;

/// What was asked, as far as it tells answers apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    host: Vec<u8>,
    target: String,
}

/// A question, and the headers that an answer may vary by.
pub(super) struct Asked {
    question: Question,
    headers: HeaderMap,
    is_personal: bool,
}

impl Asked {
    /// What a request asks, if the answer to it may be another's.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        if request.method() != Method::GET || headers.contains_key(RANGE) {
            return None;
        }
        let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let host = authority.or(headers.get(HOST).map(HeaderValue::as_bytes)).unwrap_or_default();
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let is_personal = headers.contains_key(AUTHORIZATION) || headers.contains_key(COOKIE);
        let question = Question { host: host.to_ascii_lowercase(), target: target.to_string() };
        Some(Self { question, headers: headers.clone(), is_personal })
    }

    /// May this answer be given to others too? Only if it says so itself.
    pub(super) fn may_be_kept(&self, status: StatusCode, headers: &HeaderMap) -> bool {
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

/// An answer that was kept.
struct Kept {
    headers: HeaderMap,
    body: Bytes,
    at_us: u64,
    /// What the request had in the headers that the answer varies by.
    varies: Vec<(HeaderName, Option<HeaderValue>)>,
}

impl Kept {
    fn size(&self) -> usize {
        let headers =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        self.body.len() + headers.sum::<usize>() + 512
    }
}

/// Answers that were kept, those of long ago given up first.
#[derive(Default)]
pub(super) struct Cache(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    by_question: HashMap<Question, Arc<Kept>>,
    order: VecDeque<(Question, u64)>,
    bytes: usize,
}

impl Cache {
    pub(super) fn keep(&self, asked: Asked, headers: HeaderMap, body: Bytes, at_us: u64) {
        let varied = words(&headers, VARY).into_iter().chain([ACCEPT_ENCODING.to_string()]);
        let varies = varied.filter_map(|name| HeaderName::try_from(name).ok()).map(|name| {
            let value = asked.headers.get(&name).cloned();
            (name, value)
        });
        let kept = Kept { varies: varies.collect(), headers, body, at_us };
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.put(asked.question, kept);
    }

    /// The answer to this, if there is one no older than that.
    pub(super) fn find(
        &self,
        asked: &Asked,
        age_max: Duration,
        now_us: u64,
    ) -> Option<(Response<()>, Bytes)> {
        let kept = {
            let shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shelf.by_question.get(&asked.question)?.clone()
        };
        let age = Duration::from_micros(now_us.saturating_sub(kept.at_us));
        let is_alike = |(name, value): &(HeaderName, Option<HeaderValue>)| {
            asked.headers.get(name) == value.as_ref()
        };
        if age > age_max || !kept.varies.iter().all(is_alike) {
            return None;
        }
        let mut response = Response::new(());
        *response.headers_mut() = kept.headers.clone();
        response.headers_mut().insert(http::header::AGE, age.as_secs().into());
        Some((response, kept.body.clone()))
    }
}

impl Shelf {
    fn put(&mut self, question: Question, kept: Kept) {
        self.bytes += kept.size();
        self.order.push_back((question.clone(), kept.at_us));
        if let Some(old) = self.by_question.insert(question, Arc::new(kept)) {
            self.bytes -= old.size();
        }
        // A question that was answered again is in the line twice; only its last place counts.
        while self.bytes > BYTES_MAX || self.order.len() > 2 * self.by_question.len() + 16 {
            let Some((question, at_us)) = self.order.pop_front() else { return };
            let is_last = self.by_question.get(&question).is_some_and(|kept| kept.at_us == at_us);
            if is_last && self.bytes <= BYTES_MAX {
                self.order.push_back((question, at_us));
            } else if is_last && let Some(old) = self.by_question.remove(&question) {
                self.bytes -= old.size();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(target: &str, headers: &[(&'static str, &'static str)]) -> Option<Asked> {
        let request =
            headers.iter().fold(Request::get(target), |r, (name, value)| r.header(*name, *value));
        Asked::of(&request.body(()).unwrap())
    }

    fn answer(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs =
            all.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        pairs.collect()
    }

    fn is_kept(
        request: &[(&'static str, &'static str)],
        response: &[(&'static str, &'static str)],
    ) -> bool {
        asked("/", request)
            .is_some_and(|asked| asked.may_be_kept(StatusCode::OK, &answer(response)))
    }

    #[test]
    fn only_answers_that_are_for_everybody_are_kept() {
        assert!(is_kept(&[], &[("cache-control", "max-age=60")]));
        assert!(is_kept(&[], &[("cache-control", "Public")]));
        assert!(is_kept(&[("authorization", "x")], &[("cache-control", "public, max-age=1")]));
        assert!(!is_kept(&[("authorization", "x")], &[("cache-control", "max-age=60")]));
        assert!(!is_kept(&[("cookie", "x=1")], &[("cache-control", "max-age=60")]));
        assert!(!is_kept(&[], &[]));
        assert!(!is_kept(&[], &[("cache-control", "max-age=0")]));
        assert!(!is_kept(&[], &[("cache-control", "public, no-store")]));
        assert!(!is_kept(&[], &[("cache-control", "private, max-age=60")]));
        assert!(!is_kept(&[], &[("cache-control", "public"), ("set-cookie", "a=1")]));
        assert!(!is_kept(&[], &[("cache-control", "public"), ("vary", "*")]));
        assert!(!is_kept(&[("range", "bytes=0-1")], &[("cache-control", "public")]));
    }

    #[test]
    fn an_answer_is_given_to_the_same_question_until_it_is_too_old() {
        let cache = Cache::default();
        let headers = answer(&[("cache-control", "public"), ("vary", "accept")]);
        let json = [("accept", "json")];
        cache.keep(asked("/a?b", &json).unwrap(), headers, Bytes::from("body"), 1_000_000);
        let find = |target, headers: &[(&'static str, &'static str)], now_us| {
            let found =
                cache.find(&asked(target, headers).unwrap(), Duration::from_secs(10), now_us);
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
            let body = Bytes::from(vec![0; ANSWER_MAX]);
            cache.keep(asked(&format!("/{}", i % 150), &[]).unwrap(), HeaderMap::new(), body, i);
        }
        let shelf = cache.0.lock().unwrap();
        assert!(shelf.bytes <= BYTES_MAX, "{}", shelf.bytes);
        assert_eq!(shelf.bytes, shelf.by_question.values().map(|kept| kept.size()).sum::<usize>());
        assert!(shelf.order.len() <= 2 * shelf.by_question.len() + 17);
        assert!(shelf.by_question.len() >= 60);
    }
}
