//! Promises for any signals and any users.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{
    Class, Micros, Overload, ShedDecision, Shedder, ShedderConfig, ShedderError, user_hash,
};

const MS: u64 = 1_000;
const START: u64 = 1_790_000_000 * 1_000 * MS;
const INTERVAL: u64 = 100 * MS;
const CLASSES: u8 = 4;

fn shedder() -> Shedder {
    Shedder::new(ShedderConfig::DEFAULT).unwrap()
}

fn queue_time(ms: u64) -> Overload {
    Overload::QueueTime(Duration::from_millis(ms))
}

/// Observes a signal in each interval from `start`, and returns when the last one ends.
fn observe_each(shedder: &mut Shedder, start: u64, signals: &[Overload]) -> u64 {
    let mut now = start;
    for signal in signals {
        shedder.observe(*signal, Micros::new(now));
        now += INTERVAL;
    }
    now
}

/// Returns a shedder whose level is at least `level`, and the time.
fn shedding(config: ShedderConfig, interval: u64, level: f64) -> (Shedder, u64) {
    let config = config.with_interval(Duration::from_micros(interval));
    let mut shedder = Shedder::new(config).unwrap();
    let mut now = START;
    while shedder.level() < level {
        shedder.observe(queue_time(24), Micros::new(now));
        now += interval;
        assert!(now < START + 10_000 * interval, "the level is {}", shedder.level());
    }
    // Ends the last of these intervals.
    shedder.observe(queue_time(20), Micros::new(now));
    (shedder, now)
}

/// Keeps the level where it is: requests wait as long as the target.
fn hold(shedder: &mut Shedder, now: u64) {
    let level = shedder.level();
    shedder.observe(queue_time(20), Micros::new(now));
    assert_eq!(shedder.level(), level);
}

fn any_signal() -> impl Strategy<Value = Overload> {
    prop_oneof![
        (0..200u64).prop_map(queue_time),
        (0..300u64).prop_map(|in_flight| Overload::InFlight { in_flight, limit: 100 }),
        (0.0..1.0).prop_map(Overload::Utilization),
        Just(Overload::Utilization(f64::NAN)),
    ]
}

/// Signals with the time since the one before, in milliseconds.
fn any_history() -> impl Strategy<Value = Vec<(u64, Overload)>> {
    prop::collection::vec((0..400u64, any_signal()), 0..200)
}

proptest! {
    #[test]
    fn a_higher_class_is_never_shed_before_a_lower_one(
        history in any_history(), users in prop::collection::vec(any::<u64>(), 1..20),
    ) {
        let (mut shedder, mut now) = (shedder(), START);
        for (ms, signal) in history {
            now += ms * MS;
            shedder.observe(signal, Micros::new(now));
            let shares: Vec<_> = (0..CLASSES).map(|n| shedder.shed_share(Class::new(n))).collect();
            for pair in shares.windows(2) {
                prop_assert!(pair[0] == 0.0 || pair[1] == 1.0, "{:?}", shares);
            }
            for user in &users {
                let admits = |class| shedder.clone().admit(class, *user, Micros::new(now)).is_admitted();
                for higher in 0..CLASSES - 1 {
                    let is_in_order = admits(Class::new(higher)) || !admits(Class::new(higher + 1));
                    prop_assert!(is_in_order);
                }
            }
        }
    }

    #[test]
    fn without_overload_nothing_is_shed(
        signals in prop::collection::vec((0..400u64, prop_oneof![
            (0..20u64).prop_map(queue_time),
            (0..=100u64).prop_map(|in_flight| Overload::InFlight { in_flight, limit: 100 }),
            (0.0..0.8).prop_map(Overload::Utilization),
        ]), 0..200),
        user: u64, class in 0..CLASSES,
    ) {
        let (mut shedder, mut now) = (shedder(), START);
        for (ms, signal) in signals {
            now += ms * MS;
            shedder.observe(signal, Micros::new(now));
            prop_assert!(shedder.admit(Class::new(class), user, Micros::new(now)).is_admitted());
        }
        prop_assert!(shedder.is_idle());
    }

    #[test]
    fn the_level_does_not_flap(
        history in prop::collection::vec((0..100u64, any_signal()), 0..500),
    ) {
        let (mut shedder, mut now) = (shedder(), START);
        let mut last_rise = None;
        for (ms, signal) in history {
            let before = shedder.level();
            now += ms * MS;
            shedder.observe(signal, Micros::new(now));
            let after = shedder.level();
            prop_assert!((after - before).abs() <= 0.401);
            if after > before {
                last_rise = Some(now);
            } else if after < before {
                let since = now - last_rise.expect("it rose before it falls");
                prop_assert!(since >= 10 * INTERVAL, "it fell {since} us after it rose");
            }
        }
    }

    #[test]
    fn the_same_users_are_served_within_a_rotation(
        level in 0.05..3.0f64, user: u64, class in 0..CLASSES,
    ) {
        let (mut shedder, start) = shedding(ShedderConfig::DEFAULT, 10_000 * MS, level);
        let class = Class::new(class);
        let (mut changes, mut last) = (0, None);
        for secs in (0..3_600).step_by(10) {
            let now = start + secs * 1_000 * MS;
            hold(&mut shedder, now);
            let is_admitted = shedder.admit(class, user, Micros::new(now)).is_admitted();
            changes += u32::from(last.is_some_and(|last| last != is_admitted));
            last = Some(is_admitted);
        }
        prop_assert!(changes <= 1, "a user rotates once in an hour, and changed {changes} times");
    }

    #[test]
    fn nobody_is_starved_for_ever(level in 0.3..0.99f64, user: u64) {
        const HOUR: u64 = 3_600_000 * MS;
        let (mut shedder, mut now) = shedding(ShedderConfig::DEFAULT, HOUR, level);
        let admitted = 1.0 - shedder.shed_share(Class::SHEDDABLE);
        prop_assume!(admitted > 0.001);
        let rotations = (3.0 / admitted).ceil() as u64;
        let is_served = (0..rotations).any(|_| {
            hold(&mut shedder, now);
            now += HOUR;
            shedder.admit(Class::SHEDDABLE, user, Micros::new(now - 1)).is_admitted()
        });
        prop_assert!(is_served, "{admitted} are admitted, but never this user in {rotations} hours");
    }

    #[test]
    fn a_reserved_share_is_kept(
        percent in 1..=40u8, seed: u64, bulk_per_critical in 1..20u64,
    ) {
        let config = ShedderConfig::DEFAULT.with_reserved_percent(Class::SHEDDABLE, percent);
        let (mut shedder, start) = shedding(config, INTERVAL, 1.0);
        prop_assert_eq!(shedder.shed_share(Class::SHEDDABLE), 1.0);
        let (mut critical, mut sheddable) = (0u64, 0u64);
        for ms in 0..3_000 {
            let now = Micros::new(start + ms * MS);
            hold(&mut shedder, now.get());
            critical += u64::from(shedder.admit(Class::CRITICAL_PLUS, seed, now).is_admitted());
            for user in 0..bulk_per_critical {
                let user = seed.wrapping_add(user);
                sheddable += u64::from(shedder.admit(Class::SHEDDABLE, user, now).is_admitted());
            }
        }
        prop_assert_eq!(critical, 3_000);
        let share = sheddable as f64 / (critical + sheddable) as f64;
        // A class cannot have more than it sends.
        let sent = bulk_per_critical as f64 / (1 + bulk_per_critical) as f64;
        let expected = (f64::from(percent) / 100.0).min(sent);
        prop_assert!((share - expected).abs() < 0.01, "{share} instead of {expected}");
    }

    #[test]
    fn times_in_any_order_are_taken(times in prop::collection::vec(any::<u64>(), 0..100)) {
        let mut shedder = shedder();
        for (index, at) in times.iter().enumerate() {
            let now = Micros::new(*at);
            shedder.observe(queue_time(500), now);
            let _ = shedder.admit(Class::new(index as u8), *at, now);
            prop_assert!((0.0..=4.0).contains(&shedder.level()));
        }
    }
}

#[test]
fn the_level_rises_while_overload_lasts_and_falls_after_it() {
    let mut shedder = shedder();
    let now = observe_each(&mut shedder, START, &[queue_time(100); 200]);
    assert_eq!(shedder.level(), 4.0);
    let mut last = 4.0;
    for n in 1..200 {
        shedder.observe(queue_time(0), Micros::new(now + n * INTERVAL));
        assert!(shedder.level() <= last);
        last = shedder.level();
    }
    assert!(shedder.is_idle());
}

#[test]
fn a_burst_is_no_overload() {
    let mut shedder = shedder();
    for n in 0..1_000 {
        // In each interval, one request did not wait.
        let waited = if n % 10 == 0 { 0 } else { 500 };
        shedder.observe(queue_time(waited), Micros::new(START + n * 10 * MS));
    }
    assert!(shedder.is_idle());
}

#[test]
fn every_signal_can_be_overload() {
    let signals = [
        queue_time(21),
        Overload::InFlight { in_flight: 101, limit: 100 },
        Overload::InFlight { in_flight: 1, limit: 0 },
        Overload::Utilization(0.81),
        Overload::Utilization(f64::INFINITY),
    ];
    for signal in signals {
        let mut shedder = shedder();
        observe_each(&mut shedder, START, &[signal; 3]);
        let is_overload = !matches!(signal, Overload::InFlight { limit: 0, .. });
        assert_eq!(!shedder.is_idle(), is_overload, "{signal:?}");
    }
}

#[test]
fn without_signals_the_level_falls_to_zero() {
    let (mut shedder, now) = shedding(ShedderConfig::DEFAULT, INTERVAL, 4.0);
    let at = |intervals: u64| Micros::new(now + intervals * INTERVAL);
    assert!(!shedder.clone().admit(Class::CRITICAL_PLUS, 0, at(9)).is_admitted());
    assert!(shedder.admit(Class::CRITICAL_PLUS, 0, at(1_000)).is_admitted());
    assert!(shedder.is_idle());
}

#[test]
fn a_shed_request_is_not_admitted_before_its_time() {
    let (shedder, now) = shedding(ShedderConfig::DEFAULT, INTERVAL, 1.5);
    for user in 0..500u64 {
        let user = user_hash(&user.to_le_bytes());
        let class = Class::new((user % 4) as u8);
        let ShedDecision::Shed(shed) = shedder.clone().admit(class, user, Micros::new(now)) else {
            continue;
        };
        assert_eq!(shed.class, class);
        let before = Micros::new(now + shed.retry_after.as_micros() as u64 - INTERVAL);
        assert!(!shedder.clone().admit(class, user, before).is_admitted(), "{shed}");
    }
}

#[test]
fn a_class_below_the_lowest_is_the_lowest() {
    let (mut shedder, now) = shedding(ShedderConfig::DEFAULT, INTERVAL, 0.5);
    for user in 0..100 {
        let lowest = shedder.admit(Class::SHEDDABLE, user, Micros::new(now));
        assert_eq!(shedder.admit(Class::new(200), user, Micros::new(now)), lowest);
    }
    assert_eq!(shedder.shed_share(Class::new(200)), shedder.shed_share(Class::SHEDDABLE));
}

#[test]
fn a_seed_changes_who_is_served() {
    let served = |seed| {
        let config = ShedderConfig::DEFAULT.with_seed(seed);
        let (shedder, now) = shedding(config, INTERVAL, 0.5);
        let admits = move |user| {
            shedder.clone().admit(Class::SHEDDABLE, user, Micros::new(now)).is_admitted()
        };
        (0..200).map(admits).collect::<Vec<_>>()
    };
    assert_eq!(served(1), served(1));
    assert_ne!(served(1), served(2));
}

#[test]
fn what_is_out_of_range_is_rejected() {
    let base = ShedderConfig::DEFAULT;
    let class = Class::new(4);
    let configs = [
        (base.with_classes(0), ShedderError::Classes(0)),
        (base.with_classes(17), ShedderError::Classes(17)),
        (
            base.with_reserved_percent(class, 1),
            ShedderError::UnknownClass { class, classes: CLASSES },
        ),
        (base.with_reserved_percent(Class::CRITICAL, 101), ShedderError::Reserved(101)),
        (base.with_queue_target(Duration::ZERO), ShedderError::QueueTarget(Duration::ZERO)),
        (base.with_utilization_target_percent(100), ShedderError::UtilizationTarget(100)),
        (base.with_interval(Duration::MAX), ShedderError::Interval(Duration::MAX)),
        (base.with_rotation(Duration::ZERO), ShedderError::Rotation(Duration::ZERO)),
    ];
    for (config, error) in configs {
        assert_eq!(Shedder::new(config).unwrap_err(), error);
    }
    assert!(Shedder::new(base.with_classes(16).with_rotation(Duration::MAX)).is_ok());
}
