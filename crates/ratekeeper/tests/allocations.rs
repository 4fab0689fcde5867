//! A check does not allocate.

#[path = "support/counting_allocator.rs"]
mod counting_allocator;

use std::cell::Cell;

use counting_allocator::ALLOCATIONS;
use ratekeeper::{ALGORITHMS, Algorithm, Charge, Cost, Limit, Limiter};

fn allocations_of(act: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    act();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn a_check_allocates_nothing() {
    let algorithms = ALGORITHMS.iter().filter(|algorithm| **algorithm != Algorithm::SlidingLog);
    let limits = algorithms.map(|one| Limit::new("5/s".parse().unwrap(), *one).unwrap());
    // An error without the feature `calendar`.
    let calendar = "5/calendar day in Europe/Berlin".parse::<Limit>();
    for limit in limits.chain(calendar) {
        let limiter = Limiter::builder(limit.clone()).unwrap().capacity(1_000).build();
        let _ = limiter.check("the clock is set up by the first one");
        let checks = allocations_of(|| {
            // New keys and old ones, allowed and denied, more keys than the capacity.
            for i in 0..20_000u32 {
                let _ = limiter.check(&(i % 5_000).to_be_bytes());
                let _ = limiter.key("k").cost(Cost::of(2)).check();
                let _ = limiter.key("k").peek();
                let _ = limiter.key("k").refund();
            }
        });
        assert_eq!(checks, 0, "{limit}");

        let several = [Charge::new(&limit, "a"), Charge::new(&limit, "b")];
        let checks = allocations_of(|| {
            for _ in 0..1_000 {
                let _ = limiter.check_all(&several).unwrap();
            }
        });
        assert_eq!(checks, 0, "{limit}, several limits");
    }
}

#[test]
fn a_log_allocates_only_to_grow() {
    let limiter =
        Limiter::builder(Limit::sliding_log("100/hour").unwrap()).unwrap().capacity(10).build();
    for _ in 0..100 {
        let _ = limiter.check("k");
    }
    let denials = allocations_of(|| {
        for _ in 0..1_000 {
            assert!(!limiter.check("k").allowed());
        }
    });
    assert_eq!(denials, 0);
}
