//! The public API of the in-memory limiter.

use std::time::Duration;

use ratekeeper::{
    ALGORITHMS, Charge, ConcurrencyLimit, Cost, Limit, LimitError, Limiter, ManualClock,
    MemoryStore,
};
use ratekeeper_testkit::wait_until;

fn manual(limit: Limit) -> (Limiter<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder(limit).unwrap().capacity(100).clock(clock.clone()).build(), clock)
}

#[test]
fn keys_are_strings_bytes_or_arrays_and_have_separate_quotas() {
    let limiter = Limiter::new("1/hour").unwrap();
    assert!(limiter.check("user:42").allowed());
    assert!(!limiter.check(&String::from("user:42")).allowed());
    assert!(!limiter.check(b"user:42").allowed());
    assert!(limiter.check(&[10, 0, 0, 1]).allowed());
    assert!(limiter.check("").allowed());
}

#[test]
fn a_reservation_has_no_maximum_debt_so_that_it_settles_exactly() {
    let (limiter, _) = manual(Limit::token_bucket("1000/hour").unwrap());
    let request = limiter.key("k").cost(Cost::of(5_000)).max_debt("100".parse().unwrap());
    let reservation = request.reserve(Duration::from_secs(5)).unwrap();
    assert!(!reservation.decision().is_cut());
    assert_eq!(reservation.settle(200).unwrap().remaining(), 800);
}

#[test]
fn the_error_of_an_invalid_rate_lists_valid_periods() {
    let error = Limiter::new("100/fortnight").unwrap_err();
    assert!(matches!(error, LimitError::Rate(_)));
    assert!(error.to_string().contains("use ms, s, m, h"), "{error}");
}

#[test]
fn a_decision_reports_remaining_reset_and_retry_after() {
    let (limiter, clock) = manual(Limit::token_bucket("5/s burst 10").unwrap());
    let decision = limiter.key("k").cost(Cost::of(10)).check();
    assert!(decision.allowed() && decision.remaining() == 0 && decision.limit() == 10);
    assert_eq!(decision.reset_after(), Duration::from_secs(2));
    assert_eq!((decision.retry_after(), decision.retry_after_secs()), (None, None));

    let denied = limiter.key("k").cost(Cost::of(7)).check();
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(1_400)));
    assert_eq!(denied.retry_after_secs(), Some(2));
    clock.advance(Duration::from_micros(1_399_999));
    assert!(!limiter.key("k").cost(Cost::of(7)).check().allowed());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.key("k").cost(Cost::of(7)).check().allowed());

    assert!(limiter.key("k").cost(Cost::of(11)).check().exceeds_capacity());
}

#[test]
fn limits_of_the_same_name_on_one_store_are_shared() {
    let store = std::sync::Arc::new(MemoryStore::with_capacity(100));
    let named = |rate, name| {
        let limit: Limit = Limit::fixed_window(rate).unwrap().named(name);
        Limiter::builder(limit).unwrap().store(store.clone()).build()
    };
    let (a, again, other) = (named("1/hour", "a"), named("1/hour", "a"), named("1/hour", "b"));
    assert!(a.check("k").allowed());
    assert!(!a.clone().check("k").allowed());
    assert!(!again.check("k").allowed());
    assert!(other.check("k").allowed());
}

#[test]
fn a_reservation_settles_only_within_its_deadline() {
    for algorithm in ALGORITHMS {
        let limit = Limit::new("10/minute".parse().unwrap(), *algorithm).unwrap();
        let (limiter, clock) = manual(limit);
        let reserve = |n| limiter.key("k").cost(Cost::of(n)).reserve(Duration::from_secs(5));

        assert_eq!(reserve(6).unwrap().settle(2).unwrap().remaining(), 8, "{algorithm}");
        assert_eq!(reserve(6).unwrap().cancel().unwrap().remaining(), 8, "{algorithm}");
        assert_eq!(reserve(1).unwrap().settle(1).unwrap().remaining(), 7, "{algorithm}");
        assert_eq!(reserve(1).unwrap().settle(20).unwrap().remaining(), 0, "{algorithm}: a debt");
        let denied = reserve(1).unwrap_err();
        assert!(denied.retry_after().is_some(), "{algorithm}");

        limiter.key("k").reset();
        let late = reserve(4).unwrap();
        clock.advance(Duration::from_micros(5_000_001));
        assert_eq!(late.settle(0).unwrap_err().charged, Cost::of(4), "{algorithm}");
        assert!(limiter.key("k").peek().remaining() < 10, "{algorithm}: the charge stays");
    }
}

#[test]
fn check_all_does_not_charge_the_limiters_own_limit() {
    let (limiter, _) = manual(Limit::token_bucket("1/hour").unwrap());
    let other = Limit::token_bucket("2/hour").unwrap();
    assert!(limiter.check("k").allowed());
    let verdict = limiter.check_all(&[Charge::new(&other, "k")]).unwrap();
    assert_eq!(verdict.remaining(), 1);
}

#[test]
fn a_permit_is_released_when_its_holder_panics() {
    let bulkhead = ConcurrencyLimit::new(1).unwrap();
    let panicked = std::thread::scope(|scope| {
        let bulkhead = &bulkhead;
        let holder = scope.spawn(move || {
            let _permit = bulkhead.try_acquire("db").unwrap();
            panic!("while holding a permit, on purpose");
        });
        holder.join().is_err()
    });
    assert!(panicked);
    assert!(bulkhead.try_acquire("db").is_some());
    assert!(ConcurrencyLimit::new(0).is_err());
}

#[test]
fn the_system_clock_drives_a_limiter() {
    let limiter = Limiter::builder("1/hour").unwrap().capacity(10).build();
    assert!(limiter.check("k").allowed());
    let first = limiter.check("k");
    assert!(!first.allowed());
    wait_until("the wait becomes shorter", || {
        let denied = limiter.check("k");
        assert!(!denied.allowed() && denied.retry_after() <= first.retry_after());
        denied.retry_after() < first.retry_after()
    });
    let stats = limiter.stats();
    assert_eq!((stats.live_keys, stats.evictions), (1, 0), "{stats:?}");
}
