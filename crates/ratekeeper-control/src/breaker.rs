//! A circuit breaker: stops calls to a dependency that fails or is slow, until it has recovered.
//!
//! ```text
//!            a threshold is reached              the wait is over
//!   closed ─────────────────────────▶ open ─────────────────────────▶ half-open
//!     ▲                                 ▲                               │    │
//!     │                                 └────── probes fail ────────────┘    │
//!     └───────────────────────── probes succeed ─────────────────────────────┘
//! ```

mod config;
mod window;

use std::time::Duration;

use ratekeeper_core::Micros;

use window::{Sample, Totals, Window};

pub use config::{BreakerConfig, BreakerConfigError, Probes, SlidingWindow};

/// The state of a circuit breaker.
///
/// ```
/// use ratekeeper_control::{Breaker, BreakerConfig, BreakerState};
///
/// let breaker = Breaker::new(BreakerConfig::DEFAULT)?;
/// assert_eq!(breaker.state(), BreakerState::Closed);
/// # Ok::<(), ratekeeper_control::BreakerConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Every call is permitted.
    Closed,
    /// No call is permitted.
    Open,
    /// A few calls are permitted, to find out whether the dependency has recovered.
    HalfOpen,
}

/// The result of a call, as far as it says whether the dependency works.
///
/// What is a failure is up to the caller. A response that says that the caller has sent too many
/// requests (429), or a wrong one (400), is a success: the dependency does its work.
///
/// ```
/// use ratekeeper_control::Outcome;
///
/// fn outcome(status: u16) -> Outcome {
///     if status >= 500 { Outcome::Failure } else { Outcome::Success }
/// }
/// assert_eq!(outcome(429), Outcome::Success);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The dependency works.
    Success,
    /// The dependency does not work: an error of the connection, a timeout, a status of 5xx.
    Failure,
    /// The call says nothing about the dependency, for example because it was cancelled. It counts
    /// neither for nor against it.
    Ignored,
}

/// Permission to make one call, whose outcome is to be recorded by [`Breaker::record`].
///
/// ```
/// use ratekeeper_control::{Breaker, BreakerConfig, CallPermit, Micros};
///
/// let mut breaker = Breaker::new(BreakerConfig::DEFAULT)?;
/// let permit = breaker.try_call(Micros::new(0), 0).expect("it is closed");
/// assert_eq!(permit, CallPermit::of_generation(breaker.generation()));
/// # Ok::<(), ratekeeper_control::BreakerConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the outcome of the call must be recorded"]
pub struct CallPermit {
    generation: u64,
}

impl CallPermit {
    /// Returns the permission of a generation: see [`Breaker::generation`].
    pub const fn of_generation(generation: u64) -> Self {
        Self { generation }
    }

    /// Returns the generation that permitted the call.
    #[must_use]
    pub const fn generation(self) -> u64 {
        self.generation
    }
}

/// A call that is not permitted.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{CallRejected, Micros};
///
/// fn retry_after(rejected: &CallRejected, now: Micros) -> Option<Duration> {
///     Some(rejected.until?.since(now))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRejected {
    /// The state of the breaker: open or half-open.
    pub state: BreakerState,
    /// When the wait of an open breaker is over. `None` if no time is known: the breaker is
    /// half-open, and its probes will decide; or it has no wait.
    pub until: Option<Micros>,
}

/// A circuit breaker, as a state machine.
///
/// Closed, it permits all calls and counts how many fail and how many are slow. When a threshold is
/// reached it opens, and permits none until a wait is over. Then it is half-open, and permits a few
/// calls as probes: if they succeed it closes, otherwise it opens again, for longer.
///
/// A success never opens it, unless it was slow. A call counts only in the state that permitted it:
/// what was called before the breaker opened says nothing about whether the dependency has
/// recovered since.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Breaker, BreakerConfig, BreakerState, Micros, Outcome};
///
/// let now = Micros::new(1_790_000_000_000_000);
/// let took = Duration::from_millis(20);
/// let random = 1 << 63; // from the caller's generator
///
/// let mut breaker = Breaker::new(BreakerConfig::DEFAULT.with_consecutive_failures(3))?;
/// for _call in 0..3 {
///     let permit = breaker.try_call(now, random).expect("it is closed");
///     breaker.record(permit, Outcome::Failure, took, now, random);
/// }
/// assert_eq!(breaker.state(), BreakerState::Open);
///
/// let rejected = breaker.try_call(now, random).unwrap_err();
/// let later = rejected.until.expect("it has a wait");
/// assert!(breaker.try_call(later, random).is_ok());
/// assert_eq!(breaker.state(), BreakerState::HalfOpen);
/// # Ok::<(), ratekeeper_control::BreakerConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    /// Counts the changes of the state.
    generation: u64,
    /// The calls while it is closed, if there is a rate to compute.
    window: Option<Window>,
    /// How often it has opened since it was closed, and the last wait.
    openings: u32,
    last_wait: Duration,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures_in_row: u32 },
    Open { until: Option<Micros> },
    HalfOpen(HalfOpen),
}

#[derive(Clone, Copy, Debug)]
struct HalfOpen {
    /// How many calls may be in flight or, if they are fixed, be made.
    permitted: u32,
    in_flight: u32,
    latest: Micros,
    results: Totals,
}

/// What changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    ThresholdReached,
    WaitOver,
    ProbesFailed,
    ProbesSucceeded,
}

impl Breaker {
    /// Returns a breaker that is closed.
    ///
    /// # Errors
    /// A number of the configuration is out of its range, or the breaker could never open.
    pub fn new(config: BreakerConfig) -> Result<Self, BreakerConfigError> {
        config.check()?;
        Ok(Self {
            config,
            state: State::Closed { failures_in_row: 0 },
            generation: 0,
            window: config.has_rate().then(|| Window::new(config.window)),
            openings: 0,
            last_wait: Duration::ZERO,
        })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &BreakerConfig {
        &self.config
    }

    /// Returns the state. An open breaker whose wait is over is open until the next call.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen(_) => BreakerState::HalfOpen,
        }
    }

    /// Returns when the wait is over, if it is open and has a wait.
    #[must_use]
    pub fn open_until(&self) -> Option<Micros> {
        match self.state {
            State::Open { until } => until,
            State::Closed { .. } | State::HalfOpen(_) => None,
        }
    }

    /// Returns how often the state has changed. All permissions of one generation are the same, so
    /// while the state is closed, a caller that keeps a copy of both need not ask.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns permission to make a call, or why it is not permitted. `random` is uniform.
    ///
    /// # Errors
    /// The breaker is open, or half-open with as many probes as it permits.
    pub fn try_call(&mut self, now: Micros, random: u64) -> Result<CallPermit, CallRejected> {
        if let State::Open { until: Some(until) } = self.state
            && now >= until
        {
            self.transition(Trigger::WaitOver, now, random);
        }
        let is_permitted = match &mut self.state {
            State::Closed { .. } => true,
            State::Open { .. } => false,
            State::HalfOpen(half_open) => half_open.try_probe(&self.config, now),
        };
        if is_permitted {
            return Ok(CallPermit { generation: self.generation });
        }
        if let State::HalfOpen(half_open) = &self.state
            && half_open.is_stuck(&self.config, now)
        {
            self.transition(Trigger::ProbesFailed, now, random);
        }
        Err(CallRejected { state: self.state(), until: self.open_until() })
    }

    /// Records the outcome of a call that took this long. `random` is uniform.
    pub fn record(
        &mut self,
        permit: CallPermit,
        outcome: Outcome,
        took: Duration,
        now: Micros,
        random: u64,
    ) {
        if permit.generation != self.generation {
            return;
        }
        let is_failure = outcome == Outcome::Failure;
        let is_ignored = outcome == Outcome::Ignored;
        let sample = Sample { is_failure, is_slow: self.config.is_slow(took) };
        let trigger = match &mut self.state {
            State::HalfOpen(half_open) if is_ignored => half_open.forget_probe(),
            State::HalfOpen(half_open) => half_open.record(&self.config, sample),
            State::Closed { .. } if is_ignored => None,
            State::Closed { .. } => self.record_closed(sample, now),
            // Nothing was permitted.
            State::Open { .. } => None,
        };
        if let Some(trigger) = trigger {
            self.transition(trigger, now, random);
        }
    }

    /// Records many successes at once, none of them slow, that were permitted while it was closed.
    ///
    /// Since a success never opens the breaker, they may be recorded late, if only before the next
    /// failure or slow call.
    pub fn record_successes(&mut self, permit: CallPermit, successes: u64, now: Micros) {
        let State::Closed { failures_in_row } = &mut self.state else { return };
        if permit.generation == self.generation && successes > 0 {
            *failures_in_row = 0;
            if let Some(window) = &mut self.window {
                window.add_successes(successes, now);
            }
        }
    }

    /// Makes an open breaker half-open, before its wait is over, because a probe of the caller has
    /// succeeded.
    pub fn probe_succeeded(&mut self, now: Micros) {
        if self.state() == BreakerState::Open {
            self.transition(Trigger::WaitOver, now, 0);
        }
    }

    fn record_closed(&mut self, sample: Sample, now: Micros) -> Option<Trigger> {
        let State::Closed { failures_in_row } = &mut self.state else { return None };
        *failures_in_row = if sample.is_failure { failures_in_row.saturating_add(1) } else { 0 };
        let in_row = *failures_in_row;
        let mut is_reached = self.config.consecutive_failures.is_some_and(|max| in_row >= max);
        if let Some(window) = &mut self.window {
            window.add(sample, now);
            if sample != Sample::default() {
                is_reached |= self.config.is_threshold_reached(window.totals(now));
            }
        }
        is_reached.then_some(Trigger::ThresholdReached)
    }

    /// Changes the state. This is the only place that does.
    fn transition(&mut self, trigger: Trigger, now: Micros, random: u64) {
        self.state = match (self.state, trigger) {
            (State::Closed { .. }, Trigger::ThresholdReached)
            | (State::HalfOpen(_), Trigger::ProbesFailed) => {
                State::Open { until: self.next_wait(random).map(|wait| now.after(wait)) }
            }
            (State::Open { .. }, Trigger::WaitOver) => {
                State::HalfOpen(HalfOpen::new(self.config.probes, now))
            }
            (State::HalfOpen(_), Trigger::ProbesSucceeded) => {
                (self.openings, self.last_wait) = (0, Duration::ZERO);
                if let Some(window) = &mut self.window {
                    window.clear();
                }
                State::Closed { failures_in_row: 0 }
            }
            (state, trigger) => unreachable!("{trigger:?} while the breaker is {state:?}"),
        };
        self.generation += 1;
    }

    /// Returns how long to stay open: longer each time, until the breaker has been closed.
    fn next_wait(&mut self, random: u64) -> Option<Duration> {
        self.openings = self.openings.saturating_add(1);
        let wait = self.config.wait?.delay(self.openings, self.last_wait, random);
        self.last_wait = wait;
        Some(wait)
    }
}

impl HalfOpen {
    fn new(probes: Probes, now: Micros) -> Self {
        let permitted = match probes {
            Probes::Fixed(calls) => calls,
            Probes::Ramp { .. } => 1,
        };
        Self { permitted, in_flight: 0, latest: now, results: Totals::default() }
    }

    /// Counts a probe, if another one is permitted.
    fn try_probe(&mut self, config: &BreakerConfig, now: Micros) -> bool {
        let counted = match config.probes {
            Probes::Fixed(_) => self.results.calls + u64::from(self.in_flight),
            Probes::Ramp { .. } => u64::from(self.in_flight),
        };
        let is_permitted = counted < u64::from(self.permitted);
        if is_permitted {
            self.in_flight += 1;
            self.latest = self.latest.max(now);
        }
        is_permitted
    }

    /// Returns whether all probes that are permitted have been in flight for too long.
    fn is_stuck(&self, config: &BreakerConfig, now: Micros) -> bool {
        now >= self.latest.after(config.probe_timeout)
    }

    /// Makes room for another probe instead of one that said nothing.
    fn forget_probe(&mut self) -> Option<Trigger> {
        self.in_flight = self.in_flight.saturating_sub(1);
        None
    }

    fn record(&mut self, config: &BreakerConfig, sample: Sample) -> Option<Trigger> {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.results.calls += 1;
        self.results.failures += u64::from(sample.is_failure);
        self.results.slow += u64::from(sample.is_slow);
        match config.probes {
            Probes::Fixed(calls) => {
                let of_all = Totals { calls: u64::from(calls), ..self.results };
                let is_failed = match config.failure_rate {
                    None => sample.is_failure || config.is_rate_reached(of_all),
                    Some(_) => config.is_rate_reached(of_all),
                };
                let is_done = self.results.calls == u64::from(calls);
                match (is_failed, is_done) {
                    (true, _) => Some(Trigger::ProbesFailed),
                    (false, true) => Some(Trigger::ProbesSucceeded),
                    (false, false) => None,
                }
            }
            Probes::Ramp { .. } if sample != Sample::default() => Some(Trigger::ProbesFailed),
            Probes::Ramp { max } if self.permitted >= max => Some(Trigger::ProbesSucceeded),
            Probes::Ramp { max } => {
                self.permitted = self.permitted.saturating_mul(2).min(max);
                None
            }
        }
    }
}

impl BreakerConfig {
    /// Returns whether there are enough calls, and a rate has reached its threshold.
    fn is_threshold_reached(&self, totals: Totals) -> bool {
        totals.calls >= u64::from(self.minimum_calls) && self.is_rate_reached(totals)
    }

    /// Returns whether a rate has reached its threshold, however few calls there are.
    fn is_rate_reached(&self, totals: Totals) -> bool {
        let reaches = |events: u64, percent: u32| events * 100 >= u64::from(percent) * totals.calls;
        self.failure_rate.is_some_and(|rate| reaches(totals.failures, rate))
            || self.slow_calls.is_some_and(|slow| reaches(totals.slow, slow.rate))
    }
}
