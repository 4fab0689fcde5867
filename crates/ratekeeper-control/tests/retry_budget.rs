//! The promises of a retry budget.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{Micros, RetryBudget, RetryBudgetConfig, RetryBudgetError};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND;

#[derive(Clone, Copy, Debug)]
enum Event {
    Request,
    Retry,
}

fn any_events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![3 => Just(Event::Request), 2 => Just(Event::Retry)];
    let step = prop_oneof![0..10_000u64, 0..2 * SECOND, 0..30 * SECOND];
    prop::collection::vec((step, event), 0..300)
}

fn any_config() -> impl Strategy<Value = (u32, u32, u64)> {
    (0..200u32, 0..4u32, 1..20_000u64)
}

fn budget((percent, floor, window_ms): (u32, u32, u64)) -> RetryBudget {
    let config = RetryBudgetConfig::DEFAULT
        .with_percent(percent)
        .with_floor_per_sec(floor)
        .with_window(Duration::from_millis(window_ms));
    RetryBudget::new(config).unwrap()
}

fn within(times: &[u64], window_us: u64, now: u64) -> u64 {
    times.iter().filter(|at| **at + window_us > now).count() as u64
}

proptest! {
    #[test]
    fn in_each_window_retries_are_at_most_the_share_and_the_floor(
        config in any_config(), events in any_events(),
    ) {
        let (percent, floor, window_ms) = config;
        let window_us = window_ms * 1_000;
        let mut budget = budget(config);
        let (mut now, mut requests, mut retries) = (START, vec![], vec![]);
        for (step, event) in events {
            now += step;
            match event {
                Event::Request => {
                    budget.deposit(Micros::new(now));
                    requests.push(now);
                }
                Event::Retry if budget.try_withdraw(Micros::new(now)) => {
                    retries.push(now);
                    // In parts of a hundred million.
                    let made = within(&retries, window_us, now) * 100 * SECOND;
                    let share = within(&requests, window_us, now) * u64::from(percent) * SECOND;
                    let floor = u64::from(floor) * window_us * 100;
                    prop_assert!(made <= share + floor, "{made} > {share} + {floor}");
                }
                Event::Retry => {}
            }
        }
    }

    #[test]
    fn at_most_a_fortieth_of_the_share_is_lost(percent in 1..200u32, step_us in 500..5_000u64) {
        let mut budget = budget((percent, 0, 1_000));
        let (mut now, mut retries) = (START, 0);
        let requests = 20 * SECOND / step_us;
        for _ in 0..requests {
            now += step_us;
            budget.deposit(Micros::new(now));
            while budget.try_withdraw(Micros::new(now)) {
                retries += 1;
            }
        }
        // Whole retries of each of the 20 windows are rounded down too, and slots do not have equally many requests.
        let share = requests * u64::from(percent) / 100;
        prop_assert!(retries + 40 >= share * 39 / 40, "{retries} of {share}");
    }

    #[test]
    fn a_clock_that_is_set_back_admits_no_more(
        config in any_config(), events in any_events(), back in prop::collection::vec(0..60 * SECOND, 300),
    ) {
        let (mut steady, mut wrong) = (budget(config), budget(config));
        let mut now = START;
        for ((step, event), back) in events.into_iter().zip(back) {
            now += step;
            // The steady one stays at the latest time.
            steady.deposit(Micros::new(now));
            wrong.deposit(Micros::new(now));
            if matches!(event, Event::Retry) {
                let admitted = wrong.try_withdraw(Micros::new(now - back));
                prop_assert_eq!(admitted, steady.try_withdraw(Micros::new(now)));
            }
        }
    }

    #[test]
    fn the_balance_is_what_is_admitted(config in any_config(), requests in 0..200u64) {
        let mut budget = budget(config);
        let now = Micros::new(START);
        for _ in 0..requests {
            budget.deposit(now);
        }
        let balance = budget.balance(now);
        let admitted = (0..1_000).filter(|_| budget.try_withdraw(now)).count() as u64;
        prop_assert_eq!(admitted, balance.min(1_000));
    }
}

#[test]
fn what_is_older_than_the_window_is_forgotten() {
    let mut budget = RetryBudget::default();
    let at = |secs: u64| Micros::new(START + secs * SECOND);
    for _ in 0..100 {
        budget.deposit(at(0));
    }
    assert_eq!(budget.balance(at(0)), 50);
    assert_eq!(budget.balance(at(10)), 30);
    for _ in 0..30 {
        assert!(budget.try_withdraw(at(10)));
    }
    assert!(!budget.try_withdraw(at(20)));
    assert_eq!(budget.balance(at(21)), 30);
    assert_eq!(budget.balance(Micros::MAX), 30);
}

#[test]
fn what_is_out_of_range_is_rejected() {
    let day = Duration::from_secs(24 * 60 * 60);
    for window in [Duration::ZERO, Duration::from_micros(999), day + Duration::from_nanos(1)] {
        let config = RetryBudgetConfig::DEFAULT.with_window(window);
        assert_eq!(RetryBudget::new(config).unwrap_err(), RetryBudgetError::Window(window));
    }
    let config = RetryBudgetConfig::DEFAULT.with_percent(1_001);
    assert_eq!(RetryBudget::new(config).unwrap_err(), RetryBudgetError::Percent(1_001));
    let config = RetryBudgetConfig::DEFAULT.with_floor_per_sec(u32::MAX).with_window(day);
    assert!(RetryBudget::new(config).unwrap().balance(Micros::MAX) > 0);
}
