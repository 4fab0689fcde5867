//! When a breaker opens, how long it stays open, and how it finds out that it may close.

use std::time::Duration;

use super::window::CALLS_MAX;
use crate::backoff::{Backoff, Jitter};
use crate::window_counter::{SLOTS, checked_window};

/// The calls over which the rates of a breaker are computed.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{BreakerConfig, SlidingWindow};
///
/// let window = SlidingWindow::Time(Duration::from_secs(30));
/// let config = BreakerConfig::DEFAULT.with_window(window).with_minimum_calls(50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingWindow {
    /// The last calls, up to this number; from 1 to 1024.
    Calls(u32),
    /// The calls of this time; from 1 ms to 24 hours, rounded up to whole milliseconds. It is
    /// counted in 40 slots: what is older than 39 to 40 of them is forgotten.
    Time(Duration),
}

/// The calls that a half-open breaker permits.
///
/// ```
/// use ratekeeper_control::{BreakerConfig, Probes};
///
/// let one_then_two_then_four = BreakerConfig::DEFAULT.with_probes(Probes::Ramp { max: 64 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    /// This many calls in all. When all of them have a result, the breaker closes, unless the
    /// failed or slow ones reach the rate at which it opens; it opens again as soon as they do.
    /// Without a failure rate, one failure is enough.
    Fixed(u32),
    /// One call at a time, then two, then four: the number doubles with each success, up to `max`.
    /// The next success closes the breaker; the first failed or slow call opens it again. So a
    /// dependency that has just started does not meet a thundering herd.
    Ramp {
        /// The most calls at a time.
        max: u32,
    },
}

/// When a [`Breaker`](crate::Breaker) opens, how long it stays open, and how many calls it permits
/// while it is half-open.
///
/// Thresholds that are set apply side by side: the first one that is reached opens the breaker.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Backoff, Breaker, BreakerConfig, Probes, SlidingWindow};
///
/// let config = BreakerConfig::DEFAULT
///     .with_window(SlidingWindow::Calls(200))
///     .with_minimum_calls(50)
///     .with_failure_rate(30)
///     .with_slow_calls(Duration::from_millis(800), 60)
///     .with_wait(Backoff::new(Duration::from_secs(2), Duration::from_secs(120)))
///     .with_probes(Probes::Fixed(10));
/// let breaker = Breaker::new(config)?;
/// # Ok::<(), ratekeeper_control::BreakerConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    pub(super) window: SlidingWindow,
    pub(super) minimum_calls: u32,
    pub(super) failure_rate: Option<u32>,
    pub(super) slow_calls: Option<SlowCalls>,
    pub(super) consecutive_failures: Option<u32>,
    pub(super) wait: Option<Backoff>,
    pub(super) probes: Probes,
    pub(super) probe_timeout: Duration,
}

/// How long a slow call takes, and the percentage of slow calls that opens the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowCalls {
    pub(super) duration: Duration,
    pub(super) rate: u32,
}

impl BreakerConfig {
    /// Opens if 50% of the last 100 calls have failed, once there are 20. Waits 5 s, doubling up
    /// to 60 s, with equal jitter; then permits 5 calls. Slow calls do not count, because only the
    /// caller knows what is slow.
    pub const DEFAULT: Self = Self {
        window: SlidingWindow::Calls(100),
        minimum_calls: 20,
        failure_rate: Some(50),
        slow_calls: None,
        consecutive_failures: None,
        wait: Some(
            Backoff::new(Duration::from_secs(5), Duration::from_secs(60))
                .with_jitter(Jitter::Equal),
        ),
        probes: Probes::Fixed(5),
        probe_timeout: Duration::from_secs(60),
    };

    /// Sets the calls over which rates are computed.
    #[must_use]
    pub const fn with_window(self, window: SlidingWindow) -> Self {
        Self { window, ..self }
    }

    /// Sets how many calls the window must have before a rate can open the breaker.
    #[must_use]
    pub const fn with_minimum_calls(self, minimum_calls: u32) -> Self {
        Self { minimum_calls, ..self }
    }

    /// Opens if this percentage of calls has failed; from 1 to 100.
    #[must_use]
    pub const fn with_failure_rate(self, percent: u32) -> Self {
        Self { failure_rate: Some(percent), ..self }
    }

    /// Does not open because of the percentage of calls that have failed.
    #[must_use]
    pub const fn without_failure_rate(self) -> Self {
        Self { failure_rate: None, ..self }
    }

    /// Opens if this percentage of calls, from 1 to 100, took `duration` or longer.
    #[must_use]
    pub const fn with_slow_calls(self, duration: Duration, percent: u32) -> Self {
        Self { slow_calls: Some(SlowCalls { duration, rate: percent }), ..self }
    }

    /// Opens after this many failures in a row, whatever the rates and the minimum of calls.
    #[must_use]
    pub const fn with_consecutive_failures(self, failures: u32) -> Self {
        Self { consecutive_failures: Some(failures), ..self }
    }

    /// Sets how long the breaker stays open: the first time, and each time that it opens again
    /// without having closed.
    ///
    /// With [`Jitter::Full`] the wait can be zero; [`Jitter::Equal`] waits at least half of it.
    #[must_use]
    pub const fn with_wait(self, wait: Backoff) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Stays open until [`Breaker::probe_succeeded`](crate::Breaker::probe_succeeded) is called, for
    /// a dependency that is probed in the background.
    #[must_use]
    pub const fn without_wait(self) -> Self {
        Self { wait: None, ..self }
    }

    /// Sets how many calls are permitted while the breaker is half-open.
    #[must_use]
    pub const fn with_probes(self, probes: Probes) -> Self {
        Self { probes, ..self }
    }

    /// Sets after which time calls of a half-open breaker that have no result count as failed: the
    /// breaker opens again, if all that it permits are in flight for that long.
    #[must_use]
    pub const fn with_probe_timeout(self, timeout: Duration) -> Self {
        Self { probe_timeout: timeout, ..self }
    }

    /// Returns how long a slow call takes; `None` if slow calls do not count.
    #[must_use]
    pub fn slow_call_duration(&self) -> Option<Duration> {
        self.slow_calls.map(|slow| slow.duration)
    }

    /// Returns the length of a slot, if rates are computed over a time: calls of one slot, of which
    /// the first starts at the epoch, count as if they were made at the same time.
    #[must_use]
    pub fn slot(&self) -> Option<Duration> {
        match self.window {
            SlidingWindow::Calls(_) => None,
            SlidingWindow::Time(window) => Some(checked_window(window)? / SLOTS as u32),
        }
    }

    /// Returns whether a call that took this long is slow.
    pub(super) fn is_slow(&self, took: Duration) -> bool {
        self.slow_calls.is_some_and(|slow| took >= slow.duration)
    }

    /// Returns whether there is a rate to compute.
    pub(super) fn has_rate(&self) -> bool {
        self.failure_rate.is_some() || self.slow_calls.is_some()
    }

    pub(super) fn check(&self) -> Result<(), BreakerConfigError> {
        type E = BreakerConfigError;
        match self.window {
            SlidingWindow::Calls(calls) if !(1..=CALLS_MAX).contains(&calls) => {
                return Err(E::WindowCalls(calls));
            }
            SlidingWindow::Calls(calls) if self.has_rate() && self.minimum_calls > calls => {
                return Err(E::MinimumCalls { minimum: self.minimum_calls, window: calls });
            }
            SlidingWindow::Time(window) if checked_window(window).is_none() => {
                return Err(E::WindowTime(window));
            }
            _ => {}
        }
        let rates = [self.failure_rate, self.slow_calls.map(|slow| slow.rate)];
        if let Some(rate) = rates.into_iter().flatten().find(|rate| !(1..=100).contains(rate)) {
            return Err(E::Rate(rate));
        }
        if self.slow_call_duration().is_some_and(|duration| duration.is_zero()) {
            return Err(E::SlowCallDuration);
        }
        if let Probes::Fixed(0) | Probes::Ramp { max: 0 } = self.probes {
            return Err(E::Probes);
        }
        if self.probe_timeout.is_zero() {
            return Err(E::ProbeTimeout);
        }
        match self.consecutive_failures {
            Some(0) => Err(E::ConsecutiveFailures),
            None if !self.has_rate() => Err(E::NeverOpens),
            _ => Ok(()),
        }
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a [`BreakerConfig`] is rejected.
///
/// ```
/// use ratekeeper_control::{Breaker, BreakerConfig, BreakerConfigError};
///
/// let error = Breaker::new(BreakerConfig::DEFAULT.with_failure_rate(0)).unwrap_err();
/// assert_eq!(error, BreakerConfigError::Rate(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BreakerConfigError {
    /// The window has no calls, or too many.
    #[error("{0} calls are no window of a breaker; use 1 to 1024, or a window of time")]
    WindowCalls(u32),
    /// The window is too short or too long.
    #[error("{0:?} is no window of a breaker; use 1 ms to 24 h")]
    WindowTime(Duration),
    /// The window can never have the minimum of calls.
    #[error("a window of {window} calls never has a minimum of {minimum}; use at most {window}")]
    MinimumCalls {
        /// The minimum of calls.
        minimum: u32,
        /// The calls of the window.
        window: u32,
    },
    /// A rate is no percentage, or every call would reach it.
    #[error("{0}% is no threshold of a breaker; use 1 to 100")]
    Rate(u32),
    /// Every call would be slow.
    #[error("a slow call must take longer than nothing; use the longest time that is acceptable")]
    SlowCallDuration,
    /// The breaker would open without a failure.
    #[error("0 failures in a row open every breaker; use at least 1")]
    ConsecutiveFailures,
    /// The breaker could never close again.
    #[error("a half-open breaker must permit at least 1 call")]
    Probes,
    /// Calls would count as failed before they can have a result.
    #[error("the timeout of probes must be longer than nothing; use the longest that a call takes")]
    ProbeTimeout,
    /// No threshold is set.
    #[error("the breaker never opens; set a failure rate, slow calls or consecutive failures")]
    NeverOpens,
}
