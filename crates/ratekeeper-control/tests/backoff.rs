//! The delays of a backoff.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{Backoff, Jitter};

fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop::sample::select(&[Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated][..])
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..100_000u64).prop_map(Duration::from_millis),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

/// The ceiling by a loop.
fn ceiling(base: Duration, max: Duration, retry: u32) -> Duration {
    let mut ceiling = base;
    for _ in 1..retry {
        ceiling = ceiling.saturating_mul(2).min(max);
    }
    ceiling.min(max)
}

proptest! {
    #[test]
    fn no_delay_exceeds_the_maximum(
        base in any_duration(), max in any_duration(), jitter in any_jitter(), retry: u32,
        previous in any_duration(), random: u64,
    ) {
        let backoff = Backoff::new(base, max).with_jitter(jitter);
        prop_assert!(backoff.delay(retry, previous, random) <= max);
    }

    #[test]
    fn the_ceiling_doubles(
        base_ms in 0..1_000u64, max_ms in 0..100_000u64, retry in 1..40u32, random: u64,
    ) {
        let (base, max) = (Duration::from_millis(base_ms), Duration::from_millis(max_ms));
        let ceiling = ceiling(base, max, retry);
        let delay = |jitter, random| {
            Backoff::new(base, max).with_jitter(jitter).delay(retry, Duration::ZERO, random)
        };
        prop_assert_eq!(delay(Jitter::None, random), ceiling);
        prop_assert!(delay(Jitter::Full, random) <= ceiling);
        prop_assert_eq!(delay(Jitter::Full, 0), Duration::ZERO);
        prop_assert_eq!(delay(Jitter::Full, u64::MAX), ceiling);
        prop_assert!((ceiling / 2..=ceiling).contains(&delay(Jitter::Equal, random)));
        prop_assert_eq!(delay(Jitter::Equal, u64::MAX), ceiling);
    }

    #[test]
    fn a_decorrelated_delay_is_between_the_base_and_three_times_the_previous(
        base_ms in 0..1_000u64, more_ms in 0..100_000u64, previous_ms in 0..100_000u64, random: u64,
    ) {
        let (base, previous) = (Duration::from_millis(base_ms), Duration::from_millis(previous_ms));
        let max = base + Duration::from_millis(more_ms);
        let backoff = Backoff::new(base, max).with_jitter(Jitter::Decorrelated);
        let delay = |random| backoff.delay(1, previous, random);
        let longest = (previous.max(base) * 3).min(max);
        prop_assert!((base..=longest).contains(&delay(random)));
        prop_assert_eq!((delay(0), delay(u64::MAX)), (base, longest));
    }
}

#[test]
fn the_first_retry_is_number_one_and_zero_means_the_same() {
    let backoff = Backoff::DEFAULT.with_jitter(Jitter::None);
    for (retry, ms) in [(0, 100), (1, 100), (2, 200), (3, 400), (8, 12_800), (9, 20_000)] {
        assert_eq!(backoff.delay(retry, Duration::ZERO, 0).as_millis(), ms, "{retry}");
    }
}
