//! Properties of every algorithm, many of them against a slow but obvious model.

mod support;

use proptest::prelude::*;
use ratekeeper_core::{ALGORITHMS, Algorithm, Limit, Micros, Rate, Wait};
use support::{Key, Model};

const HOUR_US: u64 = 3_600_000_000;

/// Limits of common sizes, whose traces reach every branch. Some buckets have an emission interval
/// whose fraction is too fine for `ScaledGcra`, at nearly the same rate.
fn small_limit() -> impl Strategy<Value = Limit> {
    let algorithm = proptest::sample::select(ALGORITHMS);
    (algorithm, 1..20u64, 1..50u64, proptest::option::of(1..30u64), 0..3u8).prop_map(
        |(algorithm, count, period_ms, burst, kind)| {
            let is_fine = kind == 0 && algorithm.has_burst();
            let times = if is_fine { 1_009 } else { 1 };
            let period_us = period_ms * 1_000 * times + u64::from(is_fine);
            let period = std::time::Duration::from_micros(period_us);
            let rate = Rate::new(count * times, period).unwrap();
            let rate = match burst.or(is_fine.then_some(count)) {
                Some(burst) if algorithm.has_burst() => rate.with_burst(burst).unwrap(),
                _ => rate,
            };
            Limit::new(rate, algorithm).unwrap()
        },
    )
}

/// Any limit that can be constructed, up to the largest numbers.
fn any_limit() -> impl Strategy<Value = Result<Limit, ratekeeper_core::LimitError>> {
    let count =
        prop_oneof![1..100u64, 1..=u64::from(u32::MAX), Just(10_000_000), Just(999_999_937)];
    let period = prop_oneof![
        1..1_000_000u64,
        1..=315_360_000_000_000u64,
        proptest::sample::select(&[1_000_000u64, 60_000_000, 86_400_000_000, 31_536_000_000_000])
    ];
    let burst = proptest::option::of(prop_oneof![1..1_000u64, 1..=1_000_000_000u64]);
    (proptest::sample::select(ALGORITHMS), count, period, burst).prop_map(
        |(algorithm, count, period_us, burst)| {
            let mut rate = Rate::new(count, std::time::Duration::from_micros(period_us))?;
            if let Some(burst) = burst.filter(|_| algorithm.has_burst()) {
                rate = rate.with_burst(burst)?;
            }
            Limit::new(rate, algorithm)
        },
    )
}

/// Steps of time and costs: bursts, pauses of about a window, and exact multiples of one.
fn trace() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![3 => Just(0u64), 3 => 0..3_000u64, 2 => 0..60_000u64, 1 => (0..60u64).prop_map(|ms| ms * 1_000)];
    let cost = prop_oneof![4 => Just(1u64), 1 => 1..25u64];
    proptest::collection::vec((step, cost), 1..120)
}

/// Converts the steps of a trace to (time, cost), from `start` on.
fn requests(start: u64, trace: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut at = start;
    let step = |&(step, cost): &(u64, u64)| {
        at += step;
        (at, cost)
    };
    trace.iter().map(step).collect()
}

fn compare_with_model(
    mut key: Key,
    mut model: Model,
    trace: &[(u64, u64)],
) -> Result<(), TestCaseError> {
    for &(now, cost) in trace {
        let delay = model.delay(now);
        let admitted = model.check(cost, now);
        let decision = key.check(cost, now);
        prop_assert_eq!(decision.allowed(), admitted, "{} cost {} at {}", key.limit, cost, now);
        prop_assert_eq!(decision.remaining(), model.remaining(now), "{} at {}", key.limit, now);
        let expected_wait = match () {
            _ if admitted => Wait::None,
            _ if cost > key.limit.quota() => Wait::Never,
            _ => Wait::Micros(model.admits_from(cost, now) - now),
        };
        prop_assert_eq!(decision.wait(), expected_wait, "{} cost {} at {}", key.limit, cost, now);
        let expected_delay = if admitted { delay } else { 0 };
        prop_assert_eq!(decision.delay().as_micros(), u128::from(expected_delay));
    }
    Ok(())
}

/// Two periods in milliseconds; in half of the cases, nearly the same.
fn two_periods() -> impl Strategy<Value = (u64, u64)> {
    let nearly = (100..100_000u64, 0..5u64).prop_map(|(period, more)| (period, period + more));
    prop_oneof![(1..100_000u64, 1..100_000u64), nearly]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_matches_the_model(limit in small_limit(), start in 0..10 * HOUR_US, trace in trace()) {
        compare_with_model(Key::new(&limit), Model::new(&limit, false), &requests(start, &trace))?;
    }

    #[test]
    fn every_decision_matches_the_model_when_denied_requests_count(
        count in 1..20u64, period_ms in 1..50u64, trace in trace(),
    ) {
        let rate = Rate::new(count, std::time::Duration::from_millis(period_ms)).unwrap();
        let limit = Limit::new(rate, Algorithm::SlidingLog).unwrap().count_rejected().unwrap();
        compare_with_model(Key::new(&limit), Model::new(&limit, true), &requests(0, &trace))?;
    }

    #[test]
    fn extreme_limits_are_exact_or_rejected(
        limit in any_limit(),
        steps in proptest::collection::vec((0..1_000u64, 1..=1_000u64), 1..30),
    ) {
        let Ok(limit) = limit else { return Ok(()) };
        // Steps and costs in thousandths of the period and of the quota.
        let period = limit.rate().period().as_micros() as u64;
        let scaled: Vec<_> = steps
            .iter()
            .map(|(step, cost)| (step * (period / 1_000) + step % 7, (limit.quota() * cost / 1_000).max(1)))
            .collect();
        let mut requests = requests(1_700_000_000_000_000, &scaled);
        requests.retain(|(at, _)| *at < Micros::MAX.get());
        compare_with_model(Key::new(&limit), Model::new(&limit, false), &requests)?;
    }

    #[test]
    fn retry_after_is_exact(limit in small_limit(), trace in trace()) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            if let Wait::Micros(wait) = key.check(cost, now).wait() {
                prop_assert!(key.peek(cost, now + wait).allowed(), "{limit}: waited, denied");
                prop_assert!(!key.peek(cost, now + wait - 1).allowed(), "{limit}: 1 µs too early, allowed");
            }
        }
    }

    #[test]
    fn remaining_is_admitted_and_one_more_is_denied(limit in small_limit(), trace in trace()) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            let remaining = key.check(cost, now).remaining();
            prop_assert!(remaining == 0 || key.peek(remaining, now).allowed());
            prop_assert!(!key.peek(remaining + 1, now).allowed());
        }
    }

    #[test]
    fn a_denial_charges_nothing(limit in small_limit(), trace in trace(), later in 0..100_000u64) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            let before = key.clone();
            if !key.check(cost, now).allowed() {
                prop_assert_eq!(key.cell, before.cell);
                prop_assert_eq!(key.peek(1, now + later), before.peek(1, now + later));
            }
        }
    }

    #[test]
    fn a_peek_predicts_the_check(limit in small_limit(), trace in trace()) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            let peeked = key.peek(cost, now);
            let checked = key.check(cost, now);
            prop_assert_eq!(peeked.wait(), checked.wait());
            prop_assert_eq!(peeked.delay(), checked.delay());
            let charged = if checked.allowed() { cost } else { 0 };
            prop_assert_eq!(peeked.remaining(), checked.remaining() + charged);
        }
    }

    #[test]
    fn an_immediate_refund_undoes_the_charge(limit in small_limit(), trace in trace(), n in 1..20u64, later in 0..100_000u64) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            let _ = key.check(cost, now);
            let before = key.clone();
            if key.check(n, now).allowed() {
                let _ = key.refund(n, now, now);
                prop_assert_eq!(key.peek(1, now), before.peek(1, now), "{}", limit);
                prop_assert_eq!(key.peek(1, now + later), before.peek(1, now + later), "{}", limit);
            }
        }
    }

    /// Also of a charge that is more than the limit can hold.
    #[test]
    fn an_immediate_refund_undoes_a_debt(limit in small_limit(), trace in trace(), n in 1..100u64, later in 0..100_000u64) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            let _ = key.check(cost, now);
            let before = key.clone();
            let _ = key.charge(n, now);
            let _ = key.refund(n, now, now);
            prop_assert_eq!(key.peek(1, now), before.peek(1, now), "{}", limit);
            prop_assert_eq!(key.peek(1, now + later), before.peek(1, now + later), "{}", limit);
        }
    }

    #[test]
    fn a_late_refund_of_a_debt_never_returns_more_than_was_charged(
        limit in small_limit(), trace in trace(), n in 1..100u64, part in 1..100u64, later in 0..300_000u64,
    ) {
        let (mut key, mut without) = (Key::new(&limit), Key::new(&limit));
        let mut now = 0;
        for (at, cost) in requests(0, &trace) {
            now = at;
            let _ = without.check(cost, now);
            key = without.clone();
        }
        let _ = key.charge(n, now);
        let refunded = key.refund(n.min(part), now, now + later);
        let untouched = without.peek(1, now + later);
        prop_assert!(refunded.remaining() <= untouched.remaining(), "{}", limit);
        let wait = |key: &Key| key.peek(1, now + later).retry_after();
        prop_assert!(wait(&key) >= wait(&without), "{}", limit);
    }

    #[test]
    fn a_late_refund_never_returns_more_than_was_charged(
        limit in small_limit(), trace in trace(), n in 1..20u64, later in 0..100_000u64,
    ) {
        let (mut key, mut without) = (Key::new(&limit), Key::new(&limit));
        let mut now = 0;
        for (at, cost) in requests(0, &trace) {
            now = at;
            let _ = without.check(cost, now);
            key = without.clone();
        }
        if key.check(n, now).allowed() {
            let refunded = key.refund(n, now, now + later);
            let untouched = without.peek(1, now + later);
            prop_assert!(refunded.remaining() <= untouched.remaining(), "{}", limit);
        }
    }

    #[test]
    fn a_debt_is_paid_back_exactly(limit in small_limit(), debt in 1..60u64, start in 0..HOUR_US) {
        let mut key = Key::new(&limit);
        let remaining = key.charge(debt, start).remaining();
        prop_assert_eq!(remaining, limit.quota().saturating_sub(debt));
        let denied = key.peek(1, start);
        if let Wait::Micros(wait) = denied.wait() {
            prop_assert!(key.peek(1, start + wait).allowed());
            prop_assert!(!key.peek(1, start + wait - 1).allowed());
        }
    }

    /// What is left may be a fraction more than `remaining`, so the debt is between two whole numbers.
    #[test]
    fn a_debt_never_exceeds_its_maximum(
        limit in small_limit(), trace in trace(), debt_max in 0..60u64, cost in 1..100u64,
    ) {
        let mut key = Key::new(&limit);
        for (now, earlier) in requests(HOUR_US, &trace) {
            let _ = key.check(earlier, now);
            let (mut capped, mut whole) = (key.clone(), key.clone());
            let is_cut = capped.charge_up_to(cost, debt_max, now).is_cut();
            let _ = whole.charge(cost, now);
            let wait = |key: &Key| key.peek(1, now).retry_after();
            let room = key.peek(1, now).remaining() + debt_max;
            prop_assert!(is_cut || wait(&capped) == wait(&whole), "uncut, it is charged in full");
            prop_assert!(!is_cut || cost > room, "{limit}: {cost} fits {room}");
            prop_assert!(is_cut || cost <= room + 1, "{limit}: {cost} exceeds {room}");
            let charged = |units: u64| {
                let mut key = key.clone();
                if units > 0 {
                    let _ = key.charge(units, now);
                }
                wait(&key)
            };
            if is_cut {
                let (least, most) = (charged(room), charged(room + 1));
                prop_assert!(least <= wait(&capped) && wait(&capped) <= most, "{limit}");
            }
        }
    }

    #[test]
    fn dropping_expired_state_changes_nothing(
        limit in small_limit(), trace in trace(), later in 0..100_000u64, n in 1..20u64,
    ) {
        let mut key = Key::new(&limit);
        for (now, cost) in requests(0, &trace) {
            let _ = key.check(cost, now);
            let at = key.expires_at().max(now) + later;
            let mut kept = key.clone();
            let mut dropped = Key::new(&limit);
            prop_assert_eq!(kept.check(n, at), dropped.check(n, at), "{}", limit);
            prop_assert_eq!(kept.check(1, at + later), dropped.check(1, at + later), "{}", limit);
        }
    }

    #[test]
    fn a_clock_that_goes_back_never_admits_more(limit in small_limit(), times in proptest::collection::vec((0..200_000u64, 1..6u64), 1..80)) {
        // Every request admitted under a clock that jumps is also admitted, in the same order,
        // under a clock that stands still instead of going back.
        let (mut key, mut model) = (Key::new(&limit), Model::new(&limit, false));
        let mut latest = 0;
        for (now, cost) in times {
            // A log keeps the latest time of all checks; the others, of admitted requests.
            let allowed = key.check(cost, now).allowed();
            if allowed || limit.algorithm() == Algorithm::SlidingLog {
                latest = latest.max(now);
            }
            if allowed {
                prop_assert!(model.check(cost, latest), "{limit}: cost {cost} at {now}, latest {latest}");
            }
        }
    }

    #[test]
    fn usage_carries_over_when_a_limit_changes(
        algorithm in proptest::sample::select(ALGORITHMS),
        count in 1..1_000u64, used in 1..1_000u64, new_count in 1..2_000u64,
        period in 1..100_000u64, start in 0..HOUR_US,
    ) {
        let limit = |count| {
            let rate = Rate::new(count, std::time::Duration::from_millis(period)).unwrap();
            Limit::new(rate, algorithm).unwrap()
        };
        let used = used.min(count);
        let mut key = Key::new(&limit(count));
        prop_assert!(key.check(used, start).allowed());

        let mut changed = key.with_limit(&limit(new_count));
        let now = changed.peek(1, start);
        // A higher limit takes effect at once; under a lower one, remaining is at least 0.
        prop_assert_eq!(now.remaining(), new_count.saturating_sub(used), "{}", algorithm);
        if let Wait::Micros(wait) = now.wait() {
            prop_assert_eq!(changed.check(1, start), now);
            prop_assert!(changed.peek(1, start + wait).allowed(), "{}", algorithm);
            prop_assert!(!changed.peek(1, start + wait - 1).allowed(), "{}", algorithm);
        }
    }

    #[test]
    fn retry_after_is_exact_after_the_limit_changed(
        algorithm in proptest::sample::select(ALGORITHMS),
        counts in (1..50u64, 1..50u64), periods in two_periods(), trace in trace(),
        later in 0..200_000u64, cost in 1..50u64,
    ) {
        let limit = |count, period| {
            let rate = Rate::new(count, std::time::Duration::from_millis(period)).unwrap();
            Limit::new(rate, algorithm).unwrap()
        };
        let mut key = Key::new(&limit(counts.0, periods.0));
        let mut now = HOUR_US;
        for (at, cost) in requests(HOUR_US, &trace) {
            let _ = key.check(cost, at);
            now = at;
        }
        let (now, mut key) = (now + later, key.with_limit(&limit(counts.1, periods.1)));
        if let Wait::Micros(wait) = key.check(cost, now).wait() {
            prop_assert!(key.peek(cost, now + wait).allowed(), "{}", algorithm);
            prop_assert!(!key.peek(cost, now + wait - 1).allowed(), "{}", algorithm);
        }
    }

    #[test]
    fn usage_is_unchanged_when_the_period_changes(
        algorithm in proptest::sample::select(ALGORITHMS),
        used in 1..100u64, (period, new_period) in two_periods(), start in 0..HOUR_US,
    ) {
        let limit = |period| {
            let rate = Rate::new(100, std::time::Duration::from_millis(period)).unwrap();
            Limit::new(rate, algorithm).unwrap()
        };
        let mut key = Key::new(&limit(period));
        let _ = key.check(used, start);
        let changed = key.with_limit(&limit(new_period)).peek(1, start);
        prop_assert_eq!(changed.remaining(), 100 - used, "{}", algorithm);
    }
}
