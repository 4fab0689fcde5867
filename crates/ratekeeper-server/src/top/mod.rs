//! The hottest keys and the most denied ones, also of limits in shadow mode, in a fixed amount of memory whatever the cardinality.
//!
//! Decisions never wait for this. A thread counts all of its decisions while they are few, and samples a
//! flood; a decision is dropped if another thread is updating the same part.

mod fixed_text;
mod sampler;
mod sketch;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ratekeeper::Micros;
use ratekeeper::telemetry::{DecisionEvent, Outcome};
use serde_json::{Value, json};

use sampler::Sampler;
use sketch::{KEYS, KeyCount, Sketch};

/// The number of parts, each with a lock of its own. A key belongs to one of them.
const PARTS: usize = 16;
/// How often counts are halved, so that old traffic fades.
const HALF_LIFE_US: u64 = 60_000_000;
/// How many keys of a list are returned by default, and at most.
const LISTED: usize = 20;
const LISTED_MAX: usize = 200;

/// The memory of all lists, whatever is counted.
pub(crate) const MEMORY_BYTES: usize = 3 * PARTS * Sketch::bytes();

/// The keys that were checked most, those that were denied most, and those that shadow mode let pass most.
pub(crate) struct Top {
    hasher: RandomState,
    checked: TopList,
    denied: TopList,
    shadow_denied: TopList,
}

/// Keys by how often they were counted.
struct TopList {
    parts: [Mutex<Part>; PARTS],
    /// What was not counted because another thread was counting.
    dropped: AtomicU64,
}

struct Part {
    sketch: Sketch,
    halved_at_us: u64,
}

thread_local! {
    /// Of all decisions, of denials, and of denials in shadow mode.
    static SAMPLERS: [Sampler; 3] = const { [const { Sampler::new() }; 3] };
}

impl Default for Top {
    fn default() -> Self {
        let [checked, denied, shadow_denied] = std::array::from_fn(|_| TopList::new());
        Self { hasher: RandomState::new(), checked, denied, shadow_denied }
    }
}

impl Top {
    /// Counts a decision of a limit of the policy.
    pub(crate) fn observe(&self, event: &DecisionEvent<'_>) {
        self.count(event.limit, event.key, event.outcome, event.at);
    }

    /// Counts a decision about a key.
    #[inline]
    pub(crate) fn count(&self, limit: &str, key: &[u8], outcome: Outcome, now: Micros) {
        let now_us = now.get();
        let times = SAMPLERS.with(|[of_all, of_denials, of_shadow]| {
            let weight =
                |sampler: &Sampler, counts| if counts { sampler.weight(now_us) } else { 0 };
            [
                of_all.weight(now_us),
                weight(of_denials, outcome == Outcome::Denied),
                weight(of_shadow, outcome == Outcome::ShadowDenied),
            ]
        });
        if times != [0; 3] {
            self.add(limit, key, times, now_us);
        }
    }

    #[cold]
    fn add(&self, limit: &str, key: &[u8], times: [u64; 3], now_us: u64) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_usize(limit.len());
        hasher.write(limit.as_bytes());
        hasher.write(key);
        let hash = hasher.finish();
        let lists = [&self.checked, &self.denied, &self.shadow_denied];
        for (list, times) in lists.into_iter().zip(times) {
            if times > 0 {
                list.add(hash, limit, key, times, now_us);
            }
        }
    }

    /// Returns the first of each list, as many as a query such as `n=20` asks for.
    ///
    /// # Errors
    ///
    /// If the query is anything else.
    pub(crate) fn to_json(&self, query: Option<&str>, now: Micros) -> Result<Value, InvalidQuery> {
        let listed = parse_query(query)?;
        Ok(json!({
            "about": "counts are estimates, too high by at most error_max; in a flood one decision in \
                128 is counted, as 128; all counts are halved every half_life_s",
            "half_life_s": HALF_LIFE_US / 1_000_000,
            "memory_bytes": MEMORY_BYTES,
            "hottest": self.checked.to_json(listed, now.get()),
            "most_denied": self.denied.to_json(listed, now.get()),
            "most_shadow_denied": self.shadow_denied.to_json(listed, now.get()),
        }))
    }
}

/// The query of `/v1/top` is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid query; use n=1 to n={LISTED_MAX}, such as /v1/top?n={LISTED}")]
pub(crate) struct InvalidQuery;

fn parse_query(query: Option<&str>) -> Result<usize, InvalidQuery> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(LISTED) };
    let listed = query.strip_prefix("n=").and_then(|number| number.parse().ok());
    listed.filter(|listed| (1..=LISTED_MAX).contains(listed)).ok_or(InvalidQuery)
}

impl TopList {
    fn new() -> Self {
        let part = |_| Mutex::new(Part { sketch: Sketch::new(), halved_at_us: 0 });
        Self { parts: std::array::from_fn(part), dropped: AtomicU64::new(0) }
    }

    fn add(&self, hash: u64, limit: &str, key: &[u8], times: u64, now_us: u64) {
        let part = &self.parts[(hash >> 32) as usize % PARTS];
        match part.try_lock() {
            Ok(mut part) => part.at(now_us).add(hash, limit, key, times),
            Err(_) => {
                self.dropped.fetch_add(times, Ordering::Relaxed);
            }
        }
    }

    fn to_json(&self, listed: usize, now_us: u64) -> Value {
        let (mut counted, mut unlisted) = (Vec::with_capacity(PARTS * KEYS), 0);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let sketch = part.at(now_us);
            counted.extend(sketch.counted());
            unlisted = unlisted.max(sketch.unlisted());
        }
        counted.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        json!({
            "keys": counted.iter().take(listed).map(KeyCount::to_json).collect::<Vec<_>>(),
            "unlisted_max": counted.get(listed).map_or(unlisted, |next| next.count.max(unlisted)),
            "dropped": self.dropped.load(Ordering::Relaxed),
        })
    }
}

impl Part {
    /// Returns the sketch, halved as often as is due.
    fn at(&mut self, now_us: u64) -> &mut Sketch {
        if self.halved_at_us == 0 {
            self.halved_at_us = now_us;
        }
        let times = now_us.saturating_sub(self.halved_at_us) / HALF_LIFE_US;
        self.halved_at_us += times * HALF_LIFE_US;
        (0..times.min(64)).for_each(|_| self.sketch.halve());
        &mut self.sketch
    }
}

impl KeyCount {
    fn to_json(&self) -> Value {
        let Self { limit, key, is_truncated, count, error } = self;
        json!({
            "limit": limit,
            "key": key,
            "truncated": is_truncated,
            "count": count,
            "error_max": error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::new(1_000_000_000);

    fn keys(json: &Value, list: &str) -> Vec<(String, u64)> {
        let keys = json[list]["keys"].as_array().unwrap();
        let pair = |key: &Value| {
            (key["key"].as_str().unwrap().to_string(), key["count"].as_u64().unwrap())
        };
        keys.iter().map(pair).collect()
    }

    #[test]
    fn a_few_decisions_are_all_counted() {
        let top = Top::default();
        for i in 0..10_u64 {
            let at = Micros::new(NOW.get() + i * 2_000);
            top.count("api", b"ann", if i >= 7 { Outcome::Denied } else { Outcome::Allowed }, at);
            top.count("api", b"bob", Outcome::ShadowDenied, at);
            top.count("search", b"ann", Outcome::Allowed, at);
        }
        let json = top.to_json(Some("n=2"), NOW).unwrap();
        assert_eq!(keys(&json, "hottest"), [("ann".into(), 10), ("ann".into(), 10)]);
        assert_eq!(json["hottest"]["unlisted_max"], 10);
        assert_eq!(keys(&json, "most_denied"), [("ann".into(), 3)]);
        assert_eq!(json["most_denied"]["unlisted_max"], 0);
        assert_eq!(keys(&json, "most_shadow_denied"), [("bob".into(), 10)]);
    }

    #[test]
    fn hot_keys_are_found_among_a_flood_of_distinct_keys() {
        let top = Top::default();
        for i in 0..400_000_u64 {
            let distinct = i.to_string();
            let key = if i % 10 == 0 { "ann" } else { distinct.as_str() };
            let at = Micros::new(NOW.get() + i / 1_000);
            top.count("api", key.as_bytes(), Outcome::Denied, at);
        }
        let json = top.to_json(None, NOW).unwrap();
        for list in ["hottest", "most_denied"] {
            let (first, count) = keys(&json, list).swap_remove(0);
            assert_eq!(first, "ann");
            // A tenth of them, give or take what a sample may be off by and the stated error.
            assert!((25_000..60_000).contains(&count), "{count}");
        }
    }

    #[test]
    fn old_counts_fade() {
        let top = Top::default();
        (0..16).for_each(|_| top.count("api", b"ann", Outcome::Allowed, NOW));
        let later = |minutes: u64| Micros::new(NOW.get() + minutes * HALF_LIFE_US);
        assert_eq!(keys(&top.to_json(None, later(2)).unwrap(), "hottest"), [("ann".into(), 4)]);
        assert_eq!(keys(&top.to_json(None, later(10)).unwrap(), "hottest"), []);
    }

    #[test]
    fn an_invalid_query_says_what_is_valid() {
        let top = Top::default();
        for wrong in ["n=0", "n=201", "m=2", "n=x"] {
            assert!(
                top.to_json(Some(wrong), NOW).unwrap_err().to_string().contains("n=20"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_million_distinct_keys_take_no_more_memory() {
        let top = Top::default();
        let bytes = |top: &Top| -> usize {
            let lists = [&top.checked, &top.denied, &top.shadow_denied];
            let parts = lists.into_iter().flat_map(|list| &list.parts);
            parts.map(|part| part.lock().unwrap().sketch.bytes_now()).sum()
        };
        let before = bytes(&top);
        // Past the sampler, so that each of them is counted.
        for i in 0..1_000_000_u64 {
            let denied = u64::from(i % 10 == 0);
            top.add("api", &i.to_be_bytes(), [1, denied, denied], NOW.get());
        }
        top.add(&"l".repeat(1 << 20), &vec![b'k'; 1 << 20], [1; 3], NOW.get());
        assert_eq!(bytes(&top), before);
        assert!(before <= MEMORY_BYTES, "{before}");
        assert_eq!(keys(&top.to_json(Some("n=200"), NOW).unwrap(), "hottest").len(), 200);
    }

    #[test]
    fn it_takes_less_than_a_megabyte() {
        assert!((600_000..768 * 1024).contains(&MEMORY_BYTES), "{MEMORY_BYTES}");
    }
}
