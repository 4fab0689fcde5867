//! The memory store: the conformance suite of all stores, and properties of its own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ratekeeper_core::{ALGORITHMS, Algorithm, Cost, Limit, Micros};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op, conformance};

ratekeeper_stores::conformance!(memory, MemoryStore::with_capacity(1_000), conformance::block_on);
// In a table this small, every key is outside its home line.
ratekeeper_stores::conformance!(crowded, MemoryStore::with_capacity(150), conformance::block_on);

const THREADS: u64 = 4;

fn limit(algorithm: Algorithm, rate: &str) -> Limit {
    Limit::new(rate.parse().unwrap(), algorithm).unwrap()
}

#[test]
fn threads_on_one_key_admit_exactly_the_limit() {
    for algorithm in ALGORITHMS {
        let (store, limit) = (MemoryStore::with_capacity(10), limit(*algorithm, "1000/hour"));
        let admitted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let charge = Charge::new(&limit, "hot");
                        let allowed = store.check(&charge, Micros::new(1)).allowed();
                        admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1_000, "{algorithm}");
    }
}

#[test]
fn single_checks_and_checks_of_several_limits_share_one_limit_exactly() {
    // Half of the threads check the key alone, which mostly needs no lock; the others charge two
    // limits at once.
    for algorithm in ALGORITHMS {
        let store = MemoryStore::with_capacity(10);
        let shared = limit(*algorithm, "1000/hour").named("shared");
        let wide = limit(*algorithm, "1000000/hour").named("wide");
        let now = Micros::new(1);
        let admitted = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, shared, wide, admitted) = (&store, &shared, &wide, &admitted);
                scope.spawn(move || {
                    for _ in 0..1_000 {
                        let charges = [Charge::new(wide, "hot"), Charge::new(shared, "hot")];
                        let allowed = match thread % 2 {
                            0 => store.check(&charges[1], now).allowed(),
                            _ => store.apply_now(Op::Check, &charges, now).unwrap().allowed(),
                        };
                        admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1_000, "{algorithm}");
    }
}

#[test]
fn threads_at_the_start_of_a_window_admit_exactly_its_limit() {
    const WINDOWS: u64 = 1_000;
    const KEYS: u64 = 50;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        let (store, limit) = (MemoryStore::with_capacity(100), limit(algorithm, "5/s"));
        let (admitted, begin) = (AtomicU64::new(0), Barrier::new(THREADS as usize));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for window in 1..=WINDOWS {
                        // Every third window, so that the previous count is zero.
                        let now = Micros::new(window * 3_000_000 + window);
                        begin.wait();
                        for key in (0..KEYS).flat_map(|key| [key, key]) {
                            let key = key.to_be_bytes();
                            let allowed = store.check(&Charge::new(&limit, &key), now).allowed();
                            admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), WINDOWS * KEYS * 5, "{algorithm}");
    }
}

#[test]
fn threads_on_many_new_keys_admit_exactly_the_limit_of_each_key() {
    // All threads insert each key at about the same time.
    for algorithm in ALGORITHMS {
        let (store, limit) = (MemoryStore::with_capacity(20_000), limit(*algorithm, "3/hour"));
        let admitted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for key in 0..20_000u64 {
                        for _ in 0..2 {
                            let key = key.to_be_bytes();
                            let allowed =
                                store.check(&Charge::new(&limit, &key), Micros::new(1)).allowed();
                            admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 3 * 20_000, "{algorithm}");
        assert_eq!(store.stats(Micros::new(1)).evictions, 0);
    }
}

#[test]
fn several_limits_are_all_or_none_under_contention() {
    // Threads charge pairs of keys in either order. Each key belongs to two pairs, so that charges
    // are often denied by one limit alone; every charge must still be on both keys or on neither.
    let store = MemoryStore::with_capacity(100);
    let per_key = limit(Algorithm::TokenBucket, "500/hour").named("key");
    let log = limit(Algorithm::SlidingLog, "500/hour").named("log");
    let now = Micros::new(1);
    let pairs = [(0u8, 1u8), (1, 2), (2, 3), (3, 0)];
    let admitted: [AtomicU64; 4] = Default::default();
    thread::scope(|scope| {
        for thread in 0..THREADS as usize {
            let (store, per_key, log, admitted) = (&store, &per_key, &log, &admitted);
            scope.spawn(move || {
                for i in 0..2_000 {
                    let pair = (i + thread) % pairs.len();
                    let (a, b) =
                        if thread % 2 == 0 { pairs[pair] } else { (pairs[pair].1, pairs[pair].0) };
                    let (a, b) = ([a], [b]);
                    let charges = [
                        Charge::new(per_key, &a),
                        Charge::new(per_key, &b),
                        Charge::new(log, &a),
                        Charge::new(log, &b),
                    ];
                    let allowed = store.apply_now(Op::Check, &charges, now).unwrap().allowed();
                    admitted[pair].fetch_add(u64::from(allowed), Ordering::Relaxed);
                }
            });
        }
    });
    for key in 0..4u8 {
        let on_key = |pair: &(u8, u8)| pair.0 == key || pair.1 == key;
        let charged: u64 = pairs
            .iter()
            .zip(&admitted)
            .filter(|(pair, _)| on_key(pair))
            .map(|(_, n)| n.load(Ordering::Relaxed))
            .sum();
        for limit in [&per_key, &log] {
            let left = store.apply_one(Op::Peek, &Charge::new(limit, &[key]), now).remaining();
            assert_eq!(left, 500 - charged, "{limit}: key {key}");
        }
        assert!(charged > 0);
    }
}

#[test]
fn charges_max_charges_are_all_or_none_under_contention() {
    // Each thread charges all keys, in an order of its own, of a table in which lines are shared.
    let store = MemoryStore::with_capacity(CHARGES_MAX);
    let limit = limit(Algorithm::SlidingCounter, "100/hour");
    let keys: Vec<[u8; 2]> = (0..CHARGES_MAX as u16).map(u16::to_be_bytes).collect();
    let (now, admitted) = (Micros::new(1), AtomicU64::new(0));
    thread::scope(|scope| {
        for shift in 0..THREADS as usize {
            let (store, limit, keys, admitted) = (&store, &limit, &keys, &admitted);
            scope.spawn(move || {
                let mut charges: Vec<_> = keys.iter().map(|key| Charge::new(limit, key)).collect();
                charges.rotate_left(shift * 61);
                for _ in 0..40 {
                    let verdict = store.apply_now(Op::Check, &charges, now).unwrap();
                    admitted.fetch_add(verdict.allowed().into(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 100);
    for key in &keys {
        let left = store.apply_one(Op::Peek, &Charge::new(&limit, key), now).remaining();
        assert_eq!(left, 0, "key {key:?}");
    }
}

#[test]
fn keys_up_to_the_capacity_are_never_evicted() {
    let (store, limit) =
        (MemoryStore::with_capacity(50_000), limit(Algorithm::FixedWindow, "1/hour"));
    let now = Micros::new(1);
    for round in 0..2 {
        for key in 0..50_000u64 {
            let allowed = store.check(&Charge::new(&limit, &key.to_be_bytes()), now).allowed();
            assert_eq!(allowed, round == 0, "key {key}");
        }
    }
    let stats = store.stats(now);
    assert_eq!((stats.live_keys, stats.evictions), (50_000, 0));
}

#[test]
fn a_flood_of_new_keys_keeps_memory_bounded_and_busy_keys_limited() {
    for algorithm in ALGORITHMS {
        let (store, limit) = (MemoryStore::with_capacity(1_000), limit(*algorithm, "100/minute"));
        let at = |i: u64| Micros::new(1_000_000 + i * 10);
        let table = store.stats(at(0)).memory_bytes;
        // One key is busy for a second, and mostly denied, while new keys are inserted.
        let mut admitted = 0;
        for i in 0..100_000u64 {
            let _ = store.check(&Charge::new(&limit, &i.to_be_bytes()), at(i));
            if i % 50 == 0 {
                admitted += u64::from(store.check(&Charge::new(&limit, "busy"), at(i)).allowed());
            }
        }
        assert!((100..=102).contains(&admitted), "{algorithm}: {admitted} of 100");
        let stats = store.stats(at(100_000));
        assert!(stats.evictions > 90_000, "{algorithm}: {stats:?}");
        let logs = if *algorithm == Algorithm::SlidingLog { 500_000 } else { 0 };
        assert!(stats.memory_bytes <= table + logs, "{algorithm}: {stats:?}");
    }
}

#[test]
fn expired_keys_are_replaced_without_evictions() {
    let (store, limit) =
        (MemoryStore::with_capacity(1_000), limit(Algorithm::SlidingCounter, "5/s"));
    for second in 0..200u64 {
        for key in 0..400u64 {
            let key = (second * 400 + key).to_be_bytes();
            let _ = store.check(&Charge::new(&limit, &key), Micros::new(second * 1_000_000));
        }
    }
    let stats = store.stats(Micros::new(199_000_000));
    assert_eq!(stats.evictions, 0);
    assert!(stats.live_keys <= 1_600, "{stats:?}");
}

#[test]
fn a_clock_that_goes_back_after_expiry_admits_no_more() {
    for algorithm in ALGORITHMS {
        let (store, limit) = (MemoryStore::with_capacity(1), limit(*algorithm, "10/10s"));
        let charge = |key| Charge::new(&limit, key);
        let second = |s: u64| Micros::new(s * 1_000_000);
        assert!(store.check(&charge("k").cost(Cost::new(10).unwrap()), second(100)).allowed());
        // Its slot is reused by other keys after it has expired.
        for other in 0..5_000u64 {
            let _ = store.check(&Charge::new(&limit, &other.to_be_bytes()), second(1_000));
        }
        // The clock goes back to before its expiry. A key without state would admit ten here, and ten
        // more in the next window.
        let back = (0..20).filter(|_| store.check(&charge("k"), second(105)).allowed()).count();
        let later = (0..20).filter(|_| store.check(&charge("k"), second(110)).allowed()).count();
        assert!(back + later <= 10, "{algorithm}: {back} and {later}");
    }
}

#[test]
fn the_memory_of_logs_is_bounded() {
    let store = MemoryStore::with_capacity(10_000).with_log_bytes_max(1 << 20);
    let limit = limit(Algorithm::SlidingLog, "1000/hour");
    for key in 0..2_000u64 {
        for i in 0..1_000 {
            let _ = store.check(&Charge::new(&limit, &key.to_be_bytes()), Micros::new(1_000 * i));
        }
    }
    let stats = store.stats(Micros::new(1_000_000));
    assert!(stats.evictions > 0);
    let table = MemoryStore::with_capacity(10_000).stats(Micros::new(0)).memory_bytes;
    assert!(stats.memory_bytes - table < (1 << 20) + 2_000 * 200, "{stats:?}");
}

#[test]
fn a_million_keys_do_not_collide() {
    let (store, limit) = (MemoryStore::new(), limit(Algorithm::FixedWindow, "1/hour"));
    let check = |key: u64| store.check(&Charge::new(&limit, &key.to_be_bytes()), Micros::new(1));
    let shared = (0..1_000_000).filter(|key| !check(*key).allowed()).count();
    // Expected hash collisions: one pair in 5,000 such runs, two pairs in 50 million.
    assert!(shared <= 1, "{shared} keys share a slot with another");
}
