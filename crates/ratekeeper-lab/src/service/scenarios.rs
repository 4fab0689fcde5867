//! The scenarios of the conformance suite for controllers.

use std::time::Duration;

use super::{Clients, Load, Scenario, ServiceTime};

const SECOND: Duration = Duration::from_secs(1);

/// 50 workers of 50 ms process 1000 requests per second.
const WORKERS: u32 = 50;
const SERVICE_TIME: ServiceTime = ServiceTime::Exponential(Duration::from_millis(50));

/// Returns the scenarios in which controllers are compared. Most of them have a capacity of 1000 requests
/// per second.
///
/// ```
/// let scenarios = ratekeeper_lab::service::scenarios();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "step overload ×10"));
/// ```
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    vec![
        step("step overload ×2", WORKERS, SERVICE_TIME, 2.0),
        step("step overload ×10", WORKERS, SERVICE_TIME, 10.0),
        slow_ramp(),
        slow_dependency(),
        cold_start(),
        idle_then_burst(),
        bimodal(),
        long_streams(),
        hung_requests(),
        noisy_neighbour(),
        modest_overload(),
        baseline_drift(),
        retry_storm(),
    ]
}

/// Returns a scenario with 0.6 of the capacity, then `times` the capacity for 40 s, then 0.6 again.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_lab::service::{ServiceTime, step};
///
/// let scenario = step("small", 4, ServiceTime::Constant(Duration::from_millis(4)), 2.0);
/// assert_eq!(scenario.capacity(), 1_000.0);
/// ```
#[must_use]
pub fn step(name: &'static str, workers: u32, service_time: ServiceTime, times: f64) -> Scenario {
    let capacity = f64::from(workers) / service_time.mean().as_secs_f64();
    let load = Load::constant(0.6 * capacity, 20 * SECOND)
        .then(times * capacity, 40 * SECOND)
        .then(0.6 * capacity, 20 * SECOND);
    Scenario::new(name, workers, service_time, load).with_overload(20 * SECOND..60 * SECOND)
}

fn with_load(name: &'static str, load: Load) -> Scenario {
    Scenario::new(name, WORKERS, SERVICE_TIME, load)
}

fn slow_ramp() -> Scenario {
    let load = Load::constant(300.0, 10 * SECOND)
        .ramp(2_000.0, 120 * SECOND)
        .ramp(300.0, 30 * SECOND)
        .then(300.0, 20 * SECOND);
    with_load("slow ramp", load).with_overload(59 * SECOND..148 * SECOND)
}

/// A dependency makes every request take five times as long for an hour, which leaves less than half of
/// the capacity that is needed.
fn slow_dependency() -> Scenario {
    let hour = 3_600 * SECOND;
    let slow = 30 * SECOND..30 * SECOND + hour;
    let load = Load::constant(100.0, hour + 60 * SECOND);
    Scenario::new("slow dependency for an hour", 10, SERVICE_TIME, load)
        .with_timeout(3 * SECOND)
        .with_slow(slow.clone(), 5.0)
        .with_overload(slow)
}

fn cold_start() -> Scenario {
    with_load("cold start", Load::constant(1_500.0, 60 * SECOND))
        .with_overload(Duration::ZERO..60 * SECOND)
}

fn idle_then_burst() -> Scenario {
    let load = Load::constant(600.0, 20 * SECOND)
        .then(1.0, 300 * SECOND)
        .then(2_000.0, 30 * SECOND)
        .then(600.0, 20 * SECOND);
    with_load("idle, then a burst", load).with_overload(320 * SECOND..350 * SECOND)
}

fn bimodal() -> Scenario {
    let ms = Duration::from_millis;
    let service_time = ServiceTime::Bimodal { fast: ms(20), slow: ms(320), slow_share: 0.1 };
    step("bimodal latencies", WORKERS, service_time, 2.0)
}

/// About as many streams are in flight as requests are processed in half a minute.
fn long_streams() -> Scenario {
    step("long streams", WORKERS, SERVICE_TIME, 1.5).with_streams(0.02, 15 * SECOND)
}

fn hung_requests() -> Scenario {
    step("hung requests", WORKERS, SERVICE_TIME, 1.5).with_hung(0.005).with_timeout(5 * SECOND)
}

/// Every five seconds, another tenant halves the speed for a second.
fn noisy_neighbour() -> Scenario {
    let scenario = step("noisy neighbour", WORKERS, SERVICE_TIME, 1.5);
    let begins = (0..80).step_by(5).map(|second| second * SECOND);
    begins.fold(scenario, |scenario, begin| scenario.with_slow(begin..begin + SECOND, 2.0))
}

fn modest_overload() -> Scenario {
    let load =
        Load::constant(600.0, 20 * SECOND).then(1_050.0, 200 * SECOND).then(600.0, 20 * SECOND);
    with_load("modest overload ×1.05", load).with_overload(20 * SECOND..220 * SECOND)
}

/// Overload from the begin, so that no controller sees the service without queueing, for five minutes.
fn baseline_drift() -> Scenario {
    let load = Load::constant(1_300.0, 300 * SECOND).then(600.0, 20 * SECOND);
    with_load("sustained overload ×1.3", load).with_overload(Duration::ZERO..300 * SECOND)
}

/// Clients that retry at once keep an overload going after its cause is gone.
fn retry_storm() -> Scenario {
    let load =
        Load::constant(700.0, 20 * SECOND).then(1_500.0, 20 * SECOND).then(700.0, 40 * SECOND);
    with_load("retry storm", load)
        .with_clients(Clients::Naive { retries: 3 })
        .with_overload(20 * SECOND..40 * SECOND)
}
