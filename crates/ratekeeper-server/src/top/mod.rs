//! Who asks most, and who is denied most: found in a fixed amount of memory, whatever keys come.
//!
//! Decisions never wait for this. A thread looks at all of its decisions while there are few, and at a
//! sample of a flood; what it looks at is dropped if somebody else is just counting in the same place.

mod sampler;
mod sketch;
mod text;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ratekeeper::Micros;
use ratekeeper::telemetry::{DecisionEvent, Outcome};
use serde_json::{Value, json};

use sampler::Sampler;
use sketch::{Counted, KEYS, Sketch};

/// A key belongs to one of so many parts.
const PARTS: usize = 16;
/// Counts are halved so often, so that what was gives way to what is.
const HALVED_EVERY_US: u64 = 60_000_000;
/// How many keys are told unless somebody asks for another number, and at most.
const TOLD: usize = 20;
const TOLD_MAX: usize = 200;

/// What both lists take together, whatever keys come.
pub(crate) const MEMORY_BYTES: usize = 2 * PARTS * Sketch::bytes();

/// The keys that were asked about most, and those that were denied most.
pub(crate) struct Top {
    hasher: RandomState,
    asked: List,
    denied: List,
}

/// Keys by how often they were counted.
struct List {
    parts: [Mutex<Part>; PARTS],
    /// What was not counted because somebody else was counting.
    missed: AtomicU64,
}

struct Part {
    sketch: Sketch,
    halved_at_us: u64,
}

thread_local! {
    /// Of all decisions, and of denials.
    static SAMPLERS: (Sampler, Sampler) = const { (Sampler::new(), Sampler::new()) };
}

impl Default for Top {
    fn default() -> Self {
        Self { hasher: RandomState::new(), asked: List::new(), denied: List::new() }
    }
}

impl Top {
    /// Sees a decision of a policy's limit.
    pub(crate) fn see(&self, seen: &DecisionEvent<'_>) {
        self.count(seen.limit, seen.key, seen.outcome == Outcome::Denied, seen.at);
    }

    /// Counts a decision about a key.
    #[inline]
    pub(crate) fn count(&self, limit: &str, key: &[u8], is_denied: bool, now: Micros) {
        let now_us = now.get();
        let (asked, denied) = SAMPLERS.with(|(of_all, of_denials)| {
            let denied = if is_denied { of_denials.weight(now_us) } else { 0 };
            (of_all.weight(now_us), denied)
        });
        if asked + denied > 0 {
            self.add(limit, key, (asked, denied), now_us);
        }
    }

    #[cold]
    fn add(&self, limit: &str, key: &[u8], (asked, denied): (u64, u64), now_us: u64) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_usize(limit.len());
        hasher.write(limit.as_bytes());
        hasher.write(key);
        let hash = hasher.finish();
        for (list, times) in [(&self.asked, asked), (&self.denied, denied)] {
            if times > 0 {
                list.add(hash, limit, key, times, now_us);
            }
        }
    }

    /// The first of both lists, as many as a query such as `n=20` asks for.
    pub(crate) fn tell(&self, query: Option<&str>, now: Micros) -> Result<Value, String> {
        let many = told(query)?;
        Ok(json!({
            "about": "counts are estimates: over_by_at_most says by how much one may be too high; in \
                a flood one in 128 is counted, as 128; all are halved every minute",
            "halved_every_s": HALVED_EVERY_US / 1_000_000,
            "memory_bytes": MEMORY_BYTES,
            "hottest": self.asked.tell(many, now.get()),
            "most_denied": self.denied.tell(many, now.get()),
        }))
    }
}

fn told(query: Option<&str>) -> Result<usize, String> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(TOLD) };
    let many = query.strip_prefix("n=").and_then(|many| many.parse().ok());
    many.filter(|many| (1..=TOLD_MAX).contains(many))
        .ok_or_else(|| format!("ask for n=1 to n={TOLD_MAX}, such as /v1/top?n={TOLD}"))
}

impl List {
    fn new() -> Self {
        let part = |_| Mutex::new(Part { sketch: Sketch::new(), halved_at_us: 0 });
        Self { parts: std::array::from_fn(part), missed: AtomicU64::new(0) }
    }

    fn add(&self, hash: u64, limit: &str, key: &[u8], times: u64, now_us: u64) {
        let part = &self.parts[(hash >> 32) as usize % PARTS];
        match part.try_lock() {
            Ok(mut part) => part.at(now_us).add(hash, limit, key, times),
            Err(_) => {
                self.missed.fetch_add(times, Ordering::Relaxed);
            }
        }
    }

    fn tell(&self, many: usize, now_us: u64) -> Value {
        let (mut counted, mut unlisted) = (Vec::with_capacity(PARTS * KEYS), 0);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let sketch = part.at(now_us);
            counted.extend(sketch.counted());
            unlisted = unlisted.max(sketch.unlisted());
        }
        counted.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        json!({
            "keys": counted.iter().take(many).map(Counted::tell).collect::<Vec<_>>(),
            "others_at_most": counted.get(many).map_or(unlisted, |next| next.count.max(unlisted)),
            "missed": self.missed.load(Ordering::Relaxed),
        })
    }
}

impl Part {
    /// The sketch as it is at that time.
    fn at(&mut self, now_us: u64) -> &mut Sketch {
        if self.halved_at_us == 0 {
            self.halved_at_us = now_us;
        }
        let times = now_us.saturating_sub(self.halved_at_us) / HALVED_EVERY_US;
        self.halved_at_us += times * HALVED_EVERY_US;
        (0..times.min(64)).for_each(|_| self.sketch.halve());
        &mut self.sketch
    }
}

impl Counted {
    fn tell(&self) -> Value {
        let Self { limit, key, is_cut, count, error } = self;
        json!({
            "limit": limit, "key": key, "is_cut": is_cut, "count": count, "over_by_at_most": error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::new(1_000_000_000);

    fn keys(told: &Value, list: &str) -> Vec<(String, u64)> {
        let keys = told[list]["keys"].as_array().unwrap();
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
            top.count("api", b"ann", i >= 7, at);
            top.count("api", b"bob", false, at);
            top.count("search", b"ann", false, at);
        }
        let told = top.tell(Some("n=2"), NOW).unwrap();
        assert_eq!(keys(&told, "hottest"), [("ann".into(), 10), ("ann".into(), 10)]);
        assert_eq!(told["hottest"]["others_at_most"], 10);
        assert_eq!(keys(&told, "most_denied"), [("ann".into(), 3)]);
        assert_eq!(told["most_denied"]["others_at_most"], 0);
    }

    #[test]
    fn the_hot_are_found_in_a_flood_of_strangers() {
        let top = Top::default();
        for i in 0..400_000_u64 {
            let stranger = i.to_string();
            let key = if i % 10 == 0 { "ann" } else { stranger.as_str() };
            top.count("api", key.as_bytes(), true, Micros::new(NOW.get() + i / 1_000));
        }
        let told = top.tell(None, NOW).unwrap();
        for list in ["hottest", "most_denied"] {
            let (first, count) = keys(&told, list).swap_remove(0);
            assert_eq!(first, "ann");
            // A tenth of them, give or take what a sample may be off by and the stated error.
            assert!((25_000..60_000).contains(&count), "{count}");
        }
    }

    #[test]
    fn what_was_hot_gives_way() {
        let top = Top::default();
        (0..16).for_each(|_| top.count("api", b"ann", false, NOW));
        let later = |minutes: u64| Micros::new(NOW.get() + minutes * HALVED_EVERY_US);
        assert_eq!(keys(&top.tell(None, later(2)).unwrap(), "hottest"), [("ann".into(), 4)]);
        assert_eq!(keys(&top.tell(None, later(10)).unwrap(), "hottest"), []);
    }

    #[test]
    fn a_wrong_query_is_told_what_would_do() {
        let top = Top::default();
        for wrong in ["n=0", "n=201", "m=2", "n=x"] {
            assert!(top.tell(Some(wrong), NOW).unwrap_err().contains("n=20"), "{wrong}");
        }
    }

    #[test]
    fn a_million_distinct_keys_take_no_more_memory() {
        let top = Top::default();
        let bytes = |top: &Top| -> usize {
            let parts = top.asked.parts.iter().chain(&top.denied.parts);
            parts.map(|part| part.lock().unwrap().sketch.bytes_now()).sum()
        };
        let before = bytes(&top);
        // Past the sampler, so that each of them is counted.
        for i in 0..1_000_000_u64 {
            let denied = u64::from(i % 10 == 0);
            top.add("api", &i.to_be_bytes(), (1, denied), NOW.get());
        }
        top.add(&"l".repeat(1 << 20), &vec![b'k'; 1 << 20], (1, 1), NOW.get());
        assert_eq!(bytes(&top), before);
        assert!(before <= MEMORY_BYTES, "{before}");
        assert_eq!(keys(&top.tell(Some("n=200"), NOW).unwrap(), "hottest").len(), 200);
    }

    #[test]
    fn it_takes_half_a_megabyte() {
        assert!((400_000..512 * 1024).contains(&MEMORY_BYTES), "{MEMORY_BYTES}");
    }
}
