//! What the log keeps, and what it drops.

use std::sync::Arc;

use super::*;

const SECOND: u64 = 1 << 20;

fn details() -> Details {
    Details::new(RecordedReason::InFlight { max: 1 }, false)
}

fn refuse(log: &RefusalLog, limit: &str, key: &str, at: u64) {
    let decided = Decided::new(limit, key.as_bytes(), Outcome::Denied, Micros::new(at));
    log.record(&decided, details);
}

fn of_limit<'a>(limit: &'a str) -> RefusalFilter<'a> {
    RefusalFilter { limit: Some(limit), ..RefusalFilter::default() }
}

#[test]
fn the_latest_refusals_of_a_key_are_found() {
    let log = RefusalLog::default();
    for second in 1..4 {
        refuse(&log, "api", "ann", second * SECOND);
        refuse(&log, "login", "bob", second * SECOND);
    }
    let filter = RefusalFilter { key: Some(b"ann"), ..RefusalFilter::default() };
    let found = log.recent(&RefusalFilter { since: Micros::new(2 * SECOND), ..filter });
    let times: Vec<_> = found.iter().map(|record| record.at.get() / SECOND).collect();
    assert_eq!(times, [3, 2]);
    assert!(found.iter().all(|record| &*record.limit == "api"));
    assert_eq!(log.find(&found[0].request_id).len(), 1);
    assert_eq!(log.recent(&of_limit("login")).len(), 3);
    refuse(&log, "api", "user=ann", 5 * SECOND);
    refuse(&log, "api", "user=mary-ann", 5 * SECOND);
    assert_eq!(log.recent(&filter).len(), 4, "also a key that names what it is");
}

#[test]
fn an_attacker_does_not_push_out_the_refusals_of_others() {
    let log = RefusalLog::new(RefusalSettings { capacity: 256, ..RefusalSettings::default() });
    for user in ["ann", "bob", "eve"] {
        refuse(&log, "login", user, SECOND);
    }
    for i in 0..200_000_u64 {
        refuse(&log, "api", &i.to_string(), SECOND + i * 1_000);
        refuse(&log, "api", "attacker", SECOND + i * 1_000);
    }
    let stats = log.stats();
    assert_eq!(log.recent(&of_limit("login")).len(), 3);
    assert!(stats.records <= stats.capacity && stats.capacity < 300, "{stats:?}");
    assert!(stats.sampled_out > 100_000, "{stats:?}");
    assert_eq!((stats.recorded + stats.sampled_out, stats.dropped), (400_003, 0));
}

#[test]
fn a_thread_that_finds_the_log_locked_drops_the_record_and_counts_it() {
    let log = RefusalLog::default();
    let locks: Vec<_> = log.refused.iter().map(|part| part.lock().unwrap()).collect();
    refuse(&log, "api", "ann", SECOND);
    drop(locks);
    assert_eq!((log.stats().dropped, log.stats().records), (1, 0));
}

#[test]
fn keys_are_kept_as_the_policy_says() {
    let log = RefusalLog::default();
    let with = |keys| RefusalSettings { keys, ..RefusalSettings::default() };
    let shown = |at| {
        refuse(&log, "api", "ann", at);
        log.recent(&RefusalFilter::default())[0].key.to_string()
    };
    assert_eq!(shown(SECOND), "ann");
    log.configure(with(RefusalKeys::Hashed));
    let hash = shown(2 * SECOND);
    assert!(hash.len() == 17 && hash.starts_with('#'), "{hash}");
    let of_key = |key| RefusalFilter { key: Some(key), ..RefusalFilter::default() };
    assert_eq!(log.recent(&of_key(b"ann")).len(), 2, "also by a hash");
    assert_eq!(log.recent(&of_key(b"bob")).len(), 0);
    log.configure(with(RefusalKeys::Off));
    assert_eq!(shown(3 * SECOND), "");
}

#[test]
fn a_smaller_capacity_keeps_the_latest_and_none_disables_the_log() {
    let log = RefusalLog::default();
    (0..500_u64).for_each(|i| refuse(&log, "api", &i.to_string(), i * SECOND));
    log.configure(RefusalSettings { capacity: 32, ..RefusalSettings::default() });
    assert!(log.stats().records <= log.stats().capacity);
    log.configure(RefusalSettings { capacity: 0, ..RefusalSettings::default() });
    refuse(&log, "api", "ann", 1_000 * SECOND);
    assert_eq!(log.stats().records, 0);
}

#[test]
fn long_keys_and_names_are_truncated() {
    let log = RefusalLog::default();
    refuse(&log, &"ö".repeat(1_000), &"k".repeat(1_000), SECOND);
    let record = log.recent(&RefusalFilter::default()).swap_remove(0);
    assert_eq!((record.limit.len(), record.key.to_string().len()), (128, 128));
    assert!(matches!(record.key, RecordedKey::Plain { is_truncated: true, .. }));
}

#[test]
fn the_id_of_the_request_is_kept() {
    let log = RefusalLog::default();
    let id: Arc<str> = Arc::from("abc-1");
    let decided = Decided::new("api", b"ann", Outcome::ShadowDenied, Micros::new(1));
    log.record(&decided.by(Some(&id), "gateway"), details);
    let found = log.find("abc-1");
    assert_eq!((found.len(), found[0].protocol), (1, "gateway"));
    assert!(log.find("abc-2").is_empty());
}

#[test]
fn admissions_are_sampled_apart_from_refusals() {
    let log = RefusalLog::default();
    let decided = Decided::new("api", b"ann", Outcome::Allowed, Micros::new(SECOND));
    (0..5_000).for_each(|_| log.sample(&decided, details));
    assert!(log.recent(&RefusalFilter::default()).is_empty());
    let allowed = RefusalFilter { outcome: Some(Outcome::Allowed), ..RefusalFilter::default() };
    assert!((4..=5).contains(&log.recent(&allowed).len()));
}
