//! A budget that keeps retries a small share of all requests.

use std::time::Duration;

use ratekeeper_core::Micros;

use crate::window_counter::{WindowCounter, checked_window};

/// How many retries a [`RetryBudget`] admits: a share of the requests, and a floor for callers with
/// few requests.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{RetryBudget, RetryBudgetConfig};
///
/// let config = RetryBudgetConfig::DEFAULT
///     .with_percent(10)
///     .with_floor_per_sec(2)
///     .with_window(Duration::from_secs(30));
/// let budget = RetryBudget::new(config)?;
/// # Ok::<(), ratekeeper_control::RetryBudgetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudgetConfig {
    percent: u32,
    floor_per_sec: u32,
    window: Duration,
}

impl RetryBudgetConfig {
    /// 20% of the requests and three retries per second, over 10 seconds.
    pub const DEFAULT: Self =
        Self { percent: 20, floor_per_sec: 3, window: Duration::from_secs(10) };

    /// The largest share of retries: ten for each request.
    pub const PERCENT_MAX: u32 = 1_000;

    /// Sets how many retries are admitted for 100 requests; at most [`Self::PERCENT_MAX`].
    #[must_use]
    pub const fn with_percent(self, percent: u32) -> Self {
        Self { percent, ..self }
    }

    /// Sets how many retries per second are admitted however few requests there are.
    #[must_use]
    pub const fn with_floor_per_sec(self, floor_per_sec: u32) -> Self {
        Self { floor_per_sec, ..self }
    }

    /// Sets over how long requests and retries are counted; from 1 ms to 24 hours, rounded up to
    /// whole milliseconds.
    #[must_use]
    pub const fn with_window(self, window: Duration) -> Self {
        Self { window, ..self }
    }
}

impl Default for RetryBudgetConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a [`RetryBudgetConfig`] is rejected.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{RetryBudget, RetryBudgetConfig, RetryBudgetError};
///
/// let config = RetryBudgetConfig::DEFAULT.with_window(Duration::ZERO);
/// assert!(matches!(RetryBudget::new(config), Err(RetryBudgetError::Window(_))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RetryBudgetError {
    /// The share of retries is too large.
    #[error("{0} retries for 100 requests are too many; use at most 1000")]
    Percent(u32),
    /// The window is too short or too long.
    #[error("{0:?} is no window of a retry budget; use 1 ms to 24 h")]
    Window(Duration),
}

/// Admits retries as a share of the requests of a sliding window, against retry storms.
///
/// When a retry is admitted, the retries of the window before it, this one included, are at most
/// the share of the requests of that same window plus the floor times the window. This holds for
/// every window, not only for aligned ones. The window is counted in 40 slots, and a slot that is
/// partly in the window counts for retries but not for requests. So up to one fortieth fewer
/// retries are admitted than the share, never more.
///
/// Its time never goes backwards: what comes with an earlier time counts at the latest time so
/// far.
///
/// ```
/// use ratekeeper_control::{Micros, RetryBudget, RetryBudgetConfig};
///
/// let now = Micros::new(1_790_000_000_000_000);
/// let mut budget = RetryBudget::new(RetryBudgetConfig::DEFAULT.with_floor_per_sec(0))?;
/// for _request in 0..10 {
///     budget.deposit(now);
/// }
/// assert_eq!(budget.balance(now), 2); // 20% of 10
/// assert!(budget.try_withdraw(now));
/// assert!(budget.try_withdraw(now));
/// assert!(!budget.try_withdraw(now));
/// # Ok::<(), ratekeeper_control::RetryBudgetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget {
    percent: u32,
    /// The retries that need no request, in millionths.
    floor_millionths: u128,
    requests: WindowCounter,
    retries: WindowCounter,
}

/// Parts of a per cent share in one retry.
const PERCENT: u128 = 100;
const MILLION: u128 = 1_000_000;

impl RetryBudget {
    /// Returns a budget without requests: only the floor is available.
    ///
    /// # Errors
    /// The share is over [`RetryBudgetConfig::PERCENT_MAX`], or the window is not 1 ms to 24 hours.
    pub fn new(config: RetryBudgetConfig) -> Result<Self, RetryBudgetError> {
        if config.percent > RetryBudgetConfig::PERCENT_MAX {
            return Err(RetryBudgetError::Percent(config.percent));
        }
        let window =
            checked_window(config.window).ok_or(RetryBudgetError::Window(config.window))?;
        Ok(Self {
            percent: config.percent,
            floor_millionths: u128::from(config.floor_per_sec) * window.as_micros(),
            requests: WindowCounter::new(window),
            retries: WindowCounter::new(window),
        })
    }

    /// Counts a request: its first attempt, not its retries.
    pub fn deposit(&mut self, now: Micros) {
        self.requests.add(1, self.at_latest(now));
    }

    /// Returns whether a retry is admitted, and counts it if so.
    #[must_use = "a retry may be sent only if the budget admits it"]
    pub fn try_withdraw(&mut self, now: Micros) -> bool {
        let now = self.at_latest(now);
        let is_admitted = self.balance(now) > 0;
        if is_admitted {
            self.retries.add(1, now);
        }
        is_admitted
    }

    /// Returns how many retries would be admitted now.
    #[must_use]
    pub fn balance(&self, now: Micros) -> u64 {
        let now = self.at_latest(now);
        let share = u128::from(self.requests.at_most_window(now)) * u128::from(self.percent);
        let earned = (share * MILLION + self.floor_millionths * PERCENT) / (PERCENT * MILLION);
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        earned.saturating_sub(self.retries.at_least_window(now))
    }

    /// Returns the time by which both counters go: never before the latest one of either.
    fn at_latest(&self, now: Micros) -> Micros {
        now.max(self.requests.latest_time()).max(self.retries.latest_time())
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new(RetryBudgetConfig::DEFAULT).expect("the default is valid")
    }
}
