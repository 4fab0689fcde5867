//! The promises of adaptive concurrency limits.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::Micros;
use ratekeeper_control::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveError, Aimd, Bounds, ConcurrencyController,
    Gradient2, Knee, LimitAlgorithm, SampleOutcome, Vegas, Window, WindowAggregator, WindowConfig,
};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND;

/// Proposes these limits, one after the other.
struct Reckless(Vec<f64>);

impl LimitAlgorithm for Reckless {
    fn name(&self) -> &'static str {
        "reckless"
    }

    fn next_limit(&mut self, limit: f64, _: &Window) -> f64 {
        self.0.pop().map_or(limit, |factor| limit * factor)
    }
}

fn algorithms() -> [Box<dyn LimitAlgorithm>; 5] {
    [
        Box::<Knee>::default(),
        Box::<Gradient2>::default(),
        Box::<Vegas>::default(),
        Box::<Aimd>::default(),
        Box::new(Reckless(vec![f64::NAN, 100.0, 0.0, -5.0, f64::INFINITY, 1.1, 3.0, 0.9])),
    ]
}

fn any_window() -> impl Strategy<Value = Window> {
    let latency = 0..10_000_000u64;
    (0..5_000_000u64, latency, 0..5_000u64, 0..50u64, 0..2_000u32, 0.0..1.0f64).prop_map(
        |(duration_us, latency_us, successes, overloads, in_flight_peak, share)| Window {
            duration: Duration::from_micros(duration_us),
            samples: successes,
            latency_min: Duration::from_micros(latency_us / 4),
            latency_typical: Duration::from_micros(latency_us / 2),
            latency_mean: Duration::from_micros(latency_us),
            latency_p90: Duration::from_micros(latency_us * 2),
            successes,
            overloads,
            in_flight_peak,
            in_flight_mean: f64::from(in_flight_peak) * share,
            ..Window::default()
        },
    )
}

/// Returns a window of a service with so many workers of 10 ms, at a limit that is always reached.
fn saturated(workers: u32, limit: u32, second: u64) -> Window {
    let latency =
        Duration::from_micros(u64::from(limit.max(workers)) * 10_000 / u64::from(workers));
    let successes = u64::from(limit.min(workers)) * 100;
    Window {
        now: Micros::new(START + second * SECOND),
        duration: Duration::from_secs(1),
        samples: successes,
        latency_min: latency,
        latency_typical: latency,
        latency_mean: latency,
        latency_p90: latency,
        successes,
        in_flight_peak: limit,
        in_flight_mean: f64::from(limit),
        ..Window::default()
    }
}

proptest! {
    #[test]
    fn a_limit_is_within_its_bounds_and_a_multiple_of_what_is_in_flight(
        windows in prop::collection::vec(any_window(), 1..60),
        min in 1..20u32, more in 0..50u32, most in 0..2_000u32,
    ) {
        let bounds = Bounds::new(min, min + more, min + more + most).unwrap();
        for algorithm in algorithms() {
            let mut controller = ConcurrencyController::new(algorithm, bounds);
            let mut highest_peak = 0;
            for (second, window) in windows.iter().enumerate() {
                let now = Micros::new(START + second as u64 * SECOND);
                let limit = controller.update(&Window { now, ..*window });
                highest_peak = highest_peak.max(window.in_flight_peak);
                prop_assert!((bounds.min()..=bounds.max()).contains(&limit), "{limit}");
                prop_assert!(limit <= (5 * highest_peak).max(bounds.initial()), "{limit}");
                prop_assert_eq!(limit, controller.limit());
            }
        }
    }

    #[test]
    fn a_limit_that_is_not_reached_does_not_grow(
        windows in prop::collection::vec(any_window(), 1..60),
    ) {
        for algorithm in algorithms() {
            let mut controller = ConcurrencyController::new(algorithm, Bounds::DEFAULT);
            for (second, window) in windows.iter().enumerate() {
                let before = controller.limit();
                let now = Micros::new(START + second as u64 * SECOND);
                let in_flight_peak = window.in_flight_peak.min(before - 1);
                let in_flight_mean = window.in_flight_mean.min(f64::from(in_flight_peak));
                let window = Window { now, in_flight_peak, in_flight_mean, ..*window };
                prop_assert!(controller.update(&window) <= before);
            }
        }
    }

    #[test]
    fn the_knee_is_found_from_any_begin(workers in 1..300u32, initial in 1..1_000u32) {
        let bounds = Bounds::new(1, initial, 1_000).unwrap();
        let mut controller = ConcurrencyController::new(Knee::default(), bounds);
        for second in 0..60 {
            controller.update(&saturated(workers, controller.limit(), second));
        }
        let limits = (60..160).map(|second| {
            controller.update(&saturated(workers, controller.limit(), second))
        });
        let limits: Vec<_> = limits.collect();
        let mean = f64::from(limits.iter().sum::<u32>()) / limits.len() as f64;
        prop_assert!(mean >= f64::from(workers), "{mean} for {workers}: {limits:?}");
        prop_assert!(mean <= f64::from(workers) * 2.0 + 3.0, "{mean} for {workers}: {limits:?}");
    }

    #[test]
    fn only_successes_in_time_are_latency_samples(
        requests in prop::collection::vec((0..3u8, 1..20_000u64, 1..100u32), 100..400),
    ) {
        let config = WindowConfig::DEFAULT.with_sample_timeout(Duration::from_secs(10));
        let mut aggregator = WindowAggregator::new(config).unwrap();
        let (mut samples, mut successes, mut overloads) = (vec![], 0, 0);
        for (n, (outcome, ms, in_flight)) in requests.iter().enumerate() {
            let now = Micros::new(START + n as u64 * 10);
            let outcome = [SampleOutcome::Success, SampleOutcome::Overload, SampleOutcome::Ignored][usize::from(*outcome)];
            aggregator.record(outcome, Duration::from_millis(*ms), *in_flight, now);
            successes += u64::from(outcome == SampleOutcome::Success);
            overloads += u64::from(outcome == SampleOutcome::Overload);
            if outcome == SampleOutcome::Success && *ms <= 10_000 {
                samples.push(ms * 1_000);
            }
        }
        prop_assume!(successes + overloads > 0);
        let window = aggregator.try_close(Micros::new(START + 60 * SECOND)).unwrap();
        prop_assert_eq!(window.samples, samples.len() as u64);
        prop_assert_eq!((window.successes, window.overloads), (successes, overloads));
        prop_assert_eq!(Some(window.in_flight_peak), requests.iter().map(|r| r.2).max());
        samples.sort_unstable();
        if let Some(shortest) = samples.first() {
            prop_assert_eq!(window.latency_min.as_micros() as u64, *shortest);
            let mean = samples.iter().sum::<u64>() / samples.len() as u64;
            prop_assert_eq!(window.latency_mean.as_micros() as u64, mean);
            let typical = &samples[..(samples.len() * 75).div_ceil(100)];
            let typical = typical.iter().sum::<u64>() as f64 / typical.len() as f64;
            let error = window.latency_typical.as_micros() as f64 / typical - 1.0;
            prop_assert!(error.abs() < 0.04, "{error}");
            let p90 = samples[(samples.len() * 90).div_ceil(100) - 1] as f64;
            let error = window.latency_p90.as_micros() as f64 / p90 - 1.0;
            prop_assert!(error.abs() < 0.04, "{error}");
        }
    }

    #[test]
    fn merged_aggregators_are_one(
        requests in prop::collection::vec((any::<bool>(), 1..2_000u64, 1..100u32), 150..300),
    ) {
        let mut whole = WindowAggregator::default();
        let mut parts = [WindowAggregator::default(), WindowAggregator::default()];
        for (n, (first, ms, in_flight)) in requests.iter().enumerate() {
            let now = Micros::new(START + n as u64 * 1_000);
            let latency = Duration::from_millis(*ms);
            whole.record(SampleOutcome::Success, latency, *in_flight, now);
            parts[usize::from(*first)].record(SampleOutcome::Success, latency, *in_flight, now);
        }
        let [mut one, mut two] = parts;
        one.merge(&mut two);
        let end = Micros::new(START + 60 * SECOND);
        let (whole, merged) = (whole.try_close(end).unwrap(), one.try_close(end).unwrap());
        // Each part sees the requests in flight at other times.
        prop_assert_eq!(Window { in_flight_mean: 0.0, ..whole }, Window { in_flight_mean: 0.0, ..merged });
        prop_assert!(two.try_close(end).is_none(), "it is empty");
    }
}

#[test]
fn growth_that_brings_no_throughput_stops() {
    let always = Reckless(vec![1.2; 1_000]);
    let mut controller = ConcurrencyController::new(always, Bounds::DEFAULT);
    let mut highest = 0;
    for second in 0..300 {
        highest = highest.max(controller.update(&saturated(20, controller.limit(), second)));
    }
    assert!(highest <= 20 * 5, "{highest}");
}

#[test]
fn growth_that_brings_throughput_goes_on() {
    let always = Reckless(vec![1.2; 1_000]);
    let mut controller = ConcurrencyController::new(always, Bounds::DEFAULT);
    for second in 0..30 {
        controller.update(&saturated(900, controller.limit(), second));
    }
    assert_eq!(controller.limit(), 1_000);
}

#[test]
fn a_cold_start_takes_seconds() {
    let mut controller = ConcurrencyController::new(Knee::default(), Bounds::DEFAULT);
    // Windows of 200 ms.
    let windows = (0..)
        .take_while(|second| controller.update(&saturated(500, controller.limit(), *second)) < 500);
    assert!(windows.count() < 25);
}

#[test]
fn an_idle_service_closes_no_window() {
    let mut aggregator = WindowAggregator::default();
    assert_eq!(aggregator.try_close(Micros::new(START)), None);
    aggregator.record(SampleOutcome::Ignored, Duration::ZERO, 1, Micros::new(START));
    assert_eq!(aggregator.try_close(Micros::MAX), None);
}

#[test]
fn requests_of_the_previous_limit_are_not_recorded() {
    let mut aggregator = WindowAggregator::default();
    let at = |ms: u64| Micros::new(START + ms * 1_000);
    for ms in 0..=300 {
        aggregator.record(SampleOutcome::Success, Duration::from_millis(50), 5, at(ms));
    }
    assert!(aggregator.try_close(at(300)).is_some());
    for ms in 301..=700 {
        aggregator.record(SampleOutcome::Success, Duration::from_millis(50), 5, at(ms));
    }
    let window = aggregator.try_close(at(700)).unwrap();
    assert_eq!(window.successes, 301, "twice 50 ms are skipped");
    assert_eq!(window.duration, Duration::from_millis(300));
}

#[test]
fn what_is_out_of_range_is_rejected() {
    for (min, initial, max) in [(0, 1, 2), (3, 2, 4), (1, 5, 4)] {
        let error = AdaptiveError::Bounds { min, initial, max };
        assert_eq!(Bounds::new(min, initial, max), Err(error));
    }
    let config = WindowConfig::DEFAULT.with_samples_min(0);
    assert_eq!(WindowAggregator::new(config).unwrap_err(), AdaptiveError::Samples);
    let second = Duration::from_secs(1);
    for (min, max) in [(Duration::ZERO, second), (2 * second, second)] {
        let config = WindowConfig::DEFAULT.with_duration(min, max);
        let error = WindowAggregator::new(config).unwrap_err();
        assert_eq!(error, AdaptiveError::Duration(min, max));
    }
}

#[test]
fn a_target_latency_bounds_the_limit_of_every_algorithm() {
    // 100 workers of 10 ms, in whole milliseconds.
    let window = |limit: u32, second: u64| {
        let latency = Duration::from_millis(u64::from(limit.max(100)) / 10);
        Window { latency_p90: latency, ..saturated(100, limit, second) }
    };
    for algorithm in AdaptiveAlgorithm::ALL {
        let bounds = Bounds::new(1, 400, 1_000).unwrap();
        let config = AdaptiveConfig::DEFAULT.with_algorithm(algorithm).with_bounds(bounds);
        let mut bounded =
            config.with_target(Duration::from_millis(12)).controller().expect("a target");
        for second in 0..60 {
            bounded.update(&window(bounded.limit(), second));
        }
        let name = bounded.name();
        assert_eq!(name, algorithm.name());
        assert!((60..=130).contains(&bounded.limit()), "{name}: {}", bounded.limit());
    }
    let zero = AdaptiveConfig::DEFAULT.with_target(Duration::ZERO);
    assert_eq!(zero.controller().err(), Some(AdaptiveError::Target));
}

#[test]
fn what_is_in_flight_is_known_even_if_aggregators_are_merged_often() {
    let mut parts = [WindowAggregator::default(), WindowAggregator::default()];
    let mut whole = WindowAggregator::default();
    for n in 0..200u64 {
        let now = Micros::new(START + n * 10_000);
        let latency = Duration::from_millis(20);
        parts[n as usize % 2].record(SampleOutcome::Success, latency, 7, now);
        parts.iter_mut().for_each(|part| whole.merge(part));
    }
    let window = whole.try_close(Micros::new(START + 2 * SECOND)).unwrap();
    assert!((6.0..=7.0).contains(&window.in_flight_mean), "{}", window.in_flight_mean);
}
