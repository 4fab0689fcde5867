//! The promises of a circuit breaker, and a model that it agrees with.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{
    Backoff, Breaker, BreakerConfig, BreakerConfigError, BreakerState, CallPermit, Jitter, Micros,
    Outcome, Probes, SlidingWindow,
};

const NOW: Micros = Micros::new_unchecked(1_790_000_000_000_000);
const FAST: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_millis(500);
const WAIT: Backoff =
    Backoff::new(Duration::from_secs(5), Duration::from_secs(60)).with_jitter(Jitter::Equal);
const RANDOM: u64 = 1 << 63;

/// Opens at 50% failures or 80% slow calls of the last 20, once there are 10.
const CONFIG: BreakerConfig = BreakerConfig::DEFAULT
    .with_window(SlidingWindow::Calls(20))
    .with_minimum_calls(10)
    .with_failure_rate(50)
    .with_slow_calls(SLOW, 80)
    .with_wait(WAIT)
    .with_probes(Probes::Fixed(4));

fn call(breaker: &mut Breaker, outcome: Outcome, took: Duration, now: Micros) {
    let permit = breaker.try_call(now, RANDOM).expect("permitted");
    breaker.record(permit, outcome, took, now, RANDOM);
}

fn calls(breaker: &mut Breaker, calls: u32, outcome: Outcome, now: Micros) {
    (0..calls).for_each(|_| call(breaker, outcome, FAST, now));
}

/// A breaker that has just opened.
fn opened(config: BreakerConfig) -> Breaker {
    let mut breaker = Breaker::new(config).unwrap();
    while breaker.state() == BreakerState::Closed {
        call(&mut breaker, Outcome::Failure, FAST, NOW);
    }
    breaker
}

/// A breaker that is half-open, and the time at which it is.
fn half_open(config: BreakerConfig) -> (Breaker, Micros) {
    let mut breaker = opened(config);
    let now = breaker.open_until().expect("it has a wait");
    let first = breaker.try_call(now, RANDOM).expect("the wait is over");
    breaker.record(first, Outcome::Ignored, FAST, now, RANDOM);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    (breaker, now)
}

fn permits(breaker: &mut Breaker, now: Micros) -> Vec<CallPermit> {
    std::iter::from_fn(|| breaker.try_call(now, RANDOM).ok()).take(1_000).collect()
}

proptest! {
    #[test]
    fn an_open_breaker_admits_nothing_until_its_wait_is_over(
        passed_us in prop::collection::vec(0..3_000_000u64, 1..50), random: u64,
    ) {
        let mut breaker = opened(CONFIG);
        let until = breaker.open_until().unwrap();
        prop_assert!(until >= NOW.after(Duration::from_millis(2_500)), "at least half of 5 s");
        prop_assert!(until <= NOW.after(Duration::from_secs(5)));
        let mut now = NOW;
        for us in passed_us {
            now = now.after(Duration::from_micros(us));
            let permit = breaker.try_call(now, random);
            prop_assert_eq!(permit.is_ok(), now >= until);
            match permit {
                Ok(_) => return Ok(()),
                Err(rejected) => prop_assert_eq!(rejected.until, Some(until)),
            }
        }
    }

    #[test]
    fn half_open_admits_at_most_its_probes(
        probes in 1..50u32, outcomes in prop::collection::vec(any_outcome(), 1..200),
    ) {
        let (mut breaker, now) = half_open(CONFIG.with_probes(Probes::Fixed(probes)));
        let (mut in_flight, mut completed) = (Vec::new(), 0);
        for outcome in outcomes {
            in_flight.extend(permits(&mut breaker, now));
            prop_assert_eq!(in_flight.len() + completed, probes as usize);
            let Some(permit) = in_flight.pop() else { break };
            breaker.record(permit, outcome, FAST, now, RANDOM);
            completed += usize::from(outcome != Outcome::Ignored);
            if breaker.state() != BreakerState::HalfOpen {
                break;
            }
        }
    }

    #[test]
    fn a_success_never_opens_it(
        outcomes in prop::collection::vec(any_outcome(), 0..100), numbers in any_numbers(),
    ) {
        let mut breaker = Breaker::new(numbers.config()).unwrap();
        for outcome in outcomes {
            let Ok(permit) = breaker.try_call(NOW, RANDOM) else { break };
            let before = breaker.state();
            breaker.record(permit, outcome, FAST, NOW, RANDOM);
            if outcome != Outcome::Failure {
                prop_assert!(before == breaker.state() || breaker.state() == BreakerState::Closed);
            }
        }
    }

    #[test]
    fn successes_may_be_recorded_together(
        batches in prop::collection::vec((0..40u64, any::<bool>()), 1..60), numbers in any_numbers(),
    ) {
        let (mut one_by_one, mut together) =
            (Breaker::new(numbers.config()).unwrap(), Breaker::new(numbers.config()).unwrap());
        let permit = CallPermit::of_generation(0);
        let mut now = NOW;
        for (successes, is_slow) in batches {
            let took = if is_slow { SLOW } else { FAST };
            now = now.after(Duration::from_millis(50));
            (0..successes)
                .for_each(|_| one_by_one.record(permit, Outcome::Success, FAST, now, RANDOM));
            together.record_successes(permit, successes, now);
            for breaker in [&mut one_by_one, &mut together] {
                breaker.record(permit, Outcome::Failure, took, now, RANDOM);
            }
            prop_assert_eq!(one_by_one.state(), together.state());
        }
    }

    #[test]
    fn it_agrees_with_the_model(
        numbers in any_numbers(), steps in prop::collection::vec(any_step(), 1..400),
    ) {
        let mut breaker = Breaker::new(numbers.config()).unwrap();
        let mut model = Model::new(numbers);
        let (mut now, mut in_flight) = (NOW, Vec::new());
        for step in steps {
            match step {
                Step::Pass(time) => now = now.after(time),
                Step::Call => {
                    let permit = breaker.try_call(now, RANDOM);
                    let admitted = model.try_call(now);
                    prop_assert_eq!(permit.is_ok(), admitted.is_some());
                    in_flight.extend(permit.ok().zip(admitted));
                }
                Step::Record(index, outcome, took) if !in_flight.is_empty() => {
                    let index = index.index(in_flight.len());
                    let (permit, admitted) = in_flight.swap_remove(index);
                    breaker.record(permit, outcome, took, now, RANDOM);
                    model.record(admitted, outcome, took, now);
                }
                Step::Record(..) => {}
            }
            prop_assert_eq!(breaker.state(), model.state());
        }
    }
}

#[test]
fn a_429_is_no_failure() {
    // What a status means is up to the caller; too many requests is a success.
    let outcome = |status: u16| match status {
        500.. => Outcome::Failure,
        _ => Outcome::Success,
    };
    let mut breaker = Breaker::new(CONFIG.with_consecutive_failures(3)).unwrap();
    calls(&mut breaker, 1_000, outcome(429), NOW);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&mut breaker, 3, outcome(503), NOW);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn a_slow_dependency_opens_it() {
    let mut breaker = Breaker::new(CONFIG).unwrap();
    for n in 1..=10 {
        assert_eq!(breaker.state(), BreakerState::Closed, "call {n}");
        let took = if n % 5 == 0 { FAST } else { SLOW };
        call(&mut breaker, Outcome::Success, took, NOW);
    }
    assert_eq!(breaker.state(), BreakerState::Closed, "a fast success does not open it");
    call(&mut breaker, Outcome::Success, SLOW, NOW);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn slow_calls_do_not_count_unless_a_threshold_is_set() {
    let mut breaker = Breaker::new(BreakerConfig::DEFAULT).unwrap();
    (0..200).for_each(|_| call(&mut breaker, Outcome::Success, Duration::from_secs(60), NOW));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_breaker_closes_after_its_probes_succeed() {
    let (mut breaker, now) = half_open(CONFIG);
    calls(&mut breaker, 4, Outcome::Success, now);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&mut breaker, 9, Outcome::Failure, now);
    assert_eq!(breaker.state(), BreakerState::Closed, "its window has started anew");
    calls(&mut breaker, 1, Outcome::Failure, now);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn a_few_probes_may_fail() {
    let (mut breaker, now) = half_open(CONFIG);
    calls(&mut breaker, 1, Outcome::Failure, now);
    calls(&mut breaker, 3, Outcome::Success, now);
    assert_eq!(breaker.state(), BreakerState::Closed);

    let (mut breaker, now) = half_open(CONFIG);
    calls(&mut breaker, 2, Outcome::Failure, now);
    assert_eq!(breaker.state(), BreakerState::Open, "two of four are 50%");
}

#[test]
fn without_a_failure_rate_one_failed_probe_is_enough() {
    let config = CONFIG.without_failure_rate().with_consecutive_failures(2);
    let (mut breaker, now) = half_open(config);
    calls(&mut breaker, 3, Outcome::Success, now);
    calls(&mut breaker, 1, Outcome::Failure, now);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn slow_probes_open_it_again() {
    let (mut breaker, now) = half_open(CONFIG);
    for _ in 0..3 {
        call(&mut breaker, Outcome::Success, SLOW, now);
    }
    assert_eq!(breaker.state(), BreakerState::HalfOpen, "three of four are 75%");
    call(&mut breaker, Outcome::Success, SLOW, now);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn each_wait_is_longer_until_it_has_closed() {
    let mut breaker = opened(CONFIG.with_wait(WAIT.with_jitter(Jitter::None)));
    let mut now = NOW;
    for secs in [5, 10, 20, 40, 60, 60] {
        let until = breaker.open_until().unwrap();
        assert_eq!(until.since(now), Duration::from_secs(secs));
        now = until;
        calls(&mut breaker, 2, Outcome::Failure, now);
    }
    now = breaker.open_until().unwrap();
    calls(&mut breaker, 4, Outcome::Success, now);
    calls(&mut breaker, 10, Outcome::Failure, now);
    assert_eq!(breaker.open_until().unwrap().since(now), Duration::from_secs(5));
}

#[test]
fn a_call_counts_only_in_the_state_that_permitted_it() {
    let mut breaker = Breaker::new(CONFIG.with_consecutive_failures(1)).unwrap();
    let early: Vec<_> = (0..100).map(|_| breaker.try_call(NOW, RANDOM).unwrap()).collect();
    call(&mut breaker, Outcome::Failure, FAST, NOW);
    let now = breaker.open_until().unwrap();
    let probe = breaker.try_call(now, RANDOM).unwrap();
    for permit in early {
        breaker.record(permit, Outcome::Failure, FAST, now, RANDOM);
        breaker.record(permit, Outcome::Success, FAST, now, RANDOM);
    }
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.record(probe, Outcome::Success, FAST, now, RANDOM);
    calls(&mut breaker, 3, Outcome::Success, now);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn probes_without_a_result_open_it_again() {
    let (mut breaker, now) = half_open(CONFIG.with_probe_timeout(Duration::from_secs(30)));
    let hung = permits(&mut breaker, now);
    let before = now.after(Duration::from_micros(29_999_999));
    assert!(breaker.try_call(before, RANDOM).is_err());
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let after = now.after(Duration::from_secs(30));
    assert!(breaker.try_call(after, RANDOM).is_err());
    assert_eq!(breaker.state(), BreakerState::Open);
    for permit in hung {
        breaker.record(permit, Outcome::Success, SLOW, after, RANDOM);
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn a_ramp_admits_one_call_then_two_then_four() {
    let (mut breaker, now) = half_open(CONFIG.with_probes(Probes::Ramp { max: 64 }));
    let mut in_flight = Vec::new();
    while breaker.state() != BreakerState::Closed {
        let permits = permits(&mut breaker, now);
        in_flight.push(permits.len());
        let (first, rest) = permits.split_first().unwrap();
        for permit in rest {
            breaker.record(*permit, Outcome::Ignored, FAST, now, RANDOM);
        }
        breaker.record(*first, Outcome::Success, FAST, now, RANDOM);
    }
    assert_eq!(in_flight, [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn a_failure_on_the_ramp_opens_it_at_once() {
    let (mut breaker, now) = half_open(CONFIG.with_probes(Probes::Ramp { max: 64 }));
    calls(&mut breaker, 5, Outcome::Success, now);
    calls(&mut breaker, 1, Outcome::Failure, now);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn without_a_wait_it_stays_open_until_a_probe_succeeds() {
    let mut breaker = opened(CONFIG.without_wait());
    assert_eq!(breaker.open_until(), None);
    assert!(breaker.try_call(Micros::MAX, RANDOM).is_err());
    breaker.probe_succeeded(NOW);
    assert!(breaker.try_call(NOW, RANDOM).is_ok());
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let generation = breaker.generation();
    breaker.probe_succeeded(NOW);
    assert_eq!(breaker.generation(), generation, "only an open one changes");
}

#[test]
fn what_is_older_than_the_window_is_forgotten() {
    let window = SlidingWindow::Time(Duration::from_secs(10));
    let mut breaker = Breaker::new(CONFIG.with_window(window)).unwrap();
    calls(&mut breaker, 9, Outcome::Failure, NOW);
    let later = NOW.after(Duration::from_secs(10));
    calls(&mut breaker, 9, Outcome::Failure, later);
    assert_eq!(breaker.state(), BreakerState::Closed);
    calls(&mut breaker, 1, Outcome::Failure, later);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn configurations_that_cannot_work_are_rejected() {
    type E = BreakerConfigError;
    let check = |config| Breaker::new(config).err();
    let calls = SlidingWindow::Calls;
    let time = SlidingWindow::Time;
    assert_eq!(check(CONFIG), None);
    assert_eq!(check(CONFIG.with_window(calls(0))), Some(E::WindowCalls(0)));
    assert_eq!(check(CONFIG.with_window(calls(1_025))), Some(E::WindowCalls(1_025)));
    let few = E::MinimumCalls { minimum: 10, window: 9 };
    assert_eq!(check(CONFIG.with_window(calls(9))), Some(few));
    assert_eq!(
        check(CONFIG.with_window(time(Duration::ZERO))),
        Some(E::WindowTime(Duration::ZERO))
    );
    assert_eq!(check(CONFIG.with_failure_rate(101)), Some(E::Rate(101)));
    assert_eq!(check(CONFIG.with_slow_calls(SLOW, 0)), Some(E::Rate(0)));
    assert_eq!(check(CONFIG.with_slow_calls(Duration::ZERO, 1)), Some(E::SlowCallDuration));
    assert_eq!(check(CONFIG.with_consecutive_failures(0)), Some(E::ConsecutiveFailures));
    assert_eq!(check(CONFIG.with_probes(Probes::Fixed(0))), Some(E::Probes));
    assert_eq!(check(CONFIG.with_probes(Probes::Ramp { max: 0 })), Some(E::Probes));
    assert_eq!(check(CONFIG.with_probe_timeout(Duration::ZERO)), Some(E::ProbeTimeout));
    assert_eq!(check(BreakerConfig::DEFAULT.without_failure_rate()), Some(E::NeverOpens));
}

#[derive(Clone, Debug)]
enum Step {
    Pass(Duration),
    Call,
    Record(prop::sample::Index, Outcome, Duration),
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Success),
        4 => Just(Outcome::Failure),
        1 => Just(Outcome::Ignored),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let took = prop_oneof![Just(FAST), Just(SLOW)];
    prop_oneof![
        1 => (0..4_000u64).prop_map(|ms| Step::Pass(Duration::from_millis(ms))),
        4 => Just(Step::Call),
        4 => (any::<prop::sample::Index>(), any_outcome(), took)
            .prop_map(|(index, outcome, took)| Step::Record(index, outcome, took)),
    ]
}

/// The numbers of a configuration.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    window: SlidingWindow,
    minimum: u32,
    failure_rate: Option<u32>,
    slow_rate: u32,
    in_row: u32,
    probes: Probes,
}

impl Numbers {
    fn config(self) -> BreakerConfig {
        let config = BreakerConfig::DEFAULT
            .without_failure_rate()
            .with_window(self.window)
            .with_minimum_calls(self.minimum)
            .with_slow_calls(SLOW, self.slow_rate)
            .with_consecutive_failures(self.in_row)
            .with_wait(WAIT.with_jitter(Jitter::None))
            .with_probes(self.probes)
            .with_probe_timeout(PROBE_TIMEOUT);
        self.failure_rate.map_or(config, |percent| config.with_failure_rate(percent))
    }
}

const PROBE_TIMEOUT: Duration = Duration::from_secs(7);

fn any_numbers() -> impl Strategy<Value = Numbers> {
    let window = prop_oneof![
        (1..100u32).prop_map(SlidingWindow::Calls),
        (400..20_000u64).prop_map(|ms| SlidingWindow::Time(Duration::from_millis(ms))),
    ];
    let probes = prop_oneof![
        (1..6u32).prop_map(Probes::Fixed),
        (1..20u32).prop_map(|max| Probes::Ramp { max })
    ];
    let rates = (prop::option::of(1..=100u32), 1..=100u32);
    (window, 1..20u32, rates, 1..8u32, probes).prop_map(
        |(window, minimum, (failure_rate, slow_rate), in_row, probes)| {
            let minimum = match window {
                SlidingWindow::Calls(calls) => minimum.min(calls),
                SlidingWindow::Time(_) => minimum,
            };
            Numbers { window, minimum, failure_rate, slow_rate, in_row, probes }
        },
    )
}

/// A breaker that keeps every call and computes everything anew.
struct Model {
    numbers: Numbers,
    state: ModelState,
    /// Counts the states.
    nth: usize,
    openings: u32,
}

/// A call that has a result.
#[derive(Clone, Copy)]
struct Done {
    at: Micros,
    is_failure: bool,
    is_slow: bool,
}

enum ModelState {
    Closed { done: Vec<Done> },
    Open { until: Micros },
    HalfOpen { in_flight: usize, latest: Micros, done: Vec<Done> },
}

impl Model {
    fn new(numbers: Numbers) -> Self {
        Self { numbers, state: ModelState::Closed { done: Vec::new() }, nth: 0, openings: 0 }
    }

    fn state(&self) -> BreakerState {
        match self.state {
            ModelState::Closed { .. } => BreakerState::Closed,
            ModelState::Open { .. } => BreakerState::Open,
            ModelState::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn change(&mut self, state: ModelState) {
        self.state = state;
        self.nth += 1;
    }

    fn open(&mut self, now: Micros) {
        let secs = [5, 10, 20, 40].get(self.openings as usize).copied().unwrap_or(60);
        self.openings += 1;
        self.change(ModelState::Open { until: now.after(Duration::from_secs(secs)) });
    }

    /// Returns the number of the state that permits the call.
    fn try_call(&mut self, now: Micros) -> Option<usize> {
        if let ModelState::Open { until } = self.state
            && now >= until
        {
            self.change(ModelState::HalfOpen { in_flight: 0, latest: now, done: Vec::new() });
        }
        let (is_permitted, is_stuck) = match &mut self.state {
            ModelState::Closed { .. } => (true, false),
            ModelState::Open { .. } => (false, false),
            ModelState::HalfOpen { in_flight, latest, done } => {
                let is_permitted = match self.numbers.probes {
                    Probes::Fixed(probes) => done.len() + *in_flight < probes as usize,
                    Probes::Ramp { max } => {
                        *in_flight < (1usize << done.len().min(20)).min(max as usize)
                    }
                };
                let is_stuck = now.since(*latest) >= PROBE_TIMEOUT;
                if is_permitted {
                    (*in_flight, *latest) = (*in_flight + 1, now);
                }
                (is_permitted, is_stuck)
            }
        };
        if !is_permitted && is_stuck {
            self.open(now);
        }
        is_permitted.then_some(self.nth)
    }

    fn record(&mut self, nth: usize, outcome: Outcome, took: Duration, now: Micros) {
        if nth != self.nth {
            return;
        }
        let is_failure = outcome == Outcome::Failure;
        let sample = Done { at: now, is_failure, is_slow: took >= SLOW };
        let numbers = self.numbers;
        match &mut self.state {
            ModelState::Open { .. } => unreachable!("it permits no call"),
            ModelState::Closed { .. } if outcome == Outcome::Ignored => {}
            ModelState::Closed { done } => {
                done.push(sample);
                let in_row = done.iter().rev().take_while(|call| call.is_failure).count();
                let window: Vec<Done> = match numbers.window {
                    SlidingWindow::Calls(calls) => {
                        done.iter().rev().take(calls as usize).copied().collect()
                    }
                    SlidingWindow::Time(time) => {
                        let slot = |at: Micros| at.get() / (time.as_micros() as u64 / 40);
                        let is_new = |call: &&Done| slot(call.at) + 40 > slot(now);
                        done.iter().filter(is_new).copied().collect()
                    }
                };
                let is_rate_reached = window.len() >= numbers.minimum as usize
                    && (sample.is_failure || sample.is_slow)
                    && numbers.is_rate_reached(&window, window.len());
                if in_row >= numbers.in_row as usize || is_rate_reached {
                    self.open(now);
                }
            }
            ModelState::HalfOpen { in_flight, done, .. } => {
                *in_flight -= 1;
                if outcome == Outcome::Ignored {
                    return;
                }
                done.push(sample);
                let any_failed = done.iter().any(|call| call.is_failure);
                let (has_failed, has_succeeded) = match numbers.probes {
                    Probes::Fixed(probes) => (
                        numbers.is_rate_reached(done, probes as usize)
                            || (numbers.failure_rate.is_none() && any_failed),
                        done.len() == probes as usize,
                    ),
                    Probes::Ramp { max } => (
                        sample.is_failure || sample.is_slow,
                        1usize << (done.len() - 1).min(20) >= max as usize,
                    ),
                };
                if has_failed {
                    self.open(now);
                } else if has_succeeded {
                    self.openings = 0;
                    self.change(ModelState::Closed { done: Vec::new() });
                }
            }
        }
    }
}

impl Numbers {
    fn is_rate_reached(&self, calls: &[Done], of: usize) -> bool {
        let share = |count: usize| count as f64 * 100.0 / of as f64;
        let failed = share(calls.iter().filter(|call| call.is_failure).count());
        let slow = share(calls.iter().filter(|call| call.is_slow).count());
        self.failure_rate.is_some_and(|rate| failed >= f64::from(rate))
            || slow >= f64::from(self.slow_rate)
    }
}
