//! The decision after a failed attempt: whether and when to repeat the request.

use std::time::Duration;

use ratekeeper_core::Micros;

use crate::backoff::Backoff;
use crate::response_hints::{GRPC_RESOURCE_EXHAUSTED, Pushback, ResponseHints};
use crate::retry_budget::RetryBudget;
use crate::uniform::{duration_up_to, second};

/// How an attempt failed.
///
/// ```
/// use ratekeeper_control::Failure;
///
/// fn of_status(status: u16) -> Option<Failure> {
///     (status >= 400).then_some(Failure::Status(status))
/// }
/// # assert_eq!(of_status(200), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No connection could be made, so the server has not seen the request. It may be repeated
    /// whatever its method.
    NotSent,
    /// The connection failed after the request was sent, at least in part. Whether the server has
    /// processed it is unknown.
    Broken,
    /// The response has this HTTP status.
    Status(u16),
    /// The response has this gRPC status.
    Grpc(u16),
}

/// The state of a request that is attempted several times.
///
/// ```
/// use ratekeeper_control::AttemptState;
///
/// let first = AttemptState { is_safe: true, is_replayable: true, ..AttemptState::default() };
/// assert_eq!(first.number, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptState {
    /// The number of the attempt that failed; 1 is the first.
    pub number: u32,
    /// The time since the first attempt began.
    pub elapsed: Duration,
    /// The delay before this attempt; zero for the first.
    pub previous_delay: Duration,
    /// The time until the deadline of the request; `None` if it has none.
    pub time_left: Option<Duration>,
    /// Whether the request may be processed twice: its method is idempotent, or it has an
    /// idempotency key. A caller that knows that a refused request has no effect sets it for
    /// refusals too.
    pub is_safe: bool,
    /// Whether the request, with its body, can be sent again.
    pub is_replayable: bool,
}

impl Default for AttemptState {
    /// Returns the state of a first attempt without a deadline, of a request that is neither safe
    /// to repeat nor replayable.
    fn default() -> Self {
        Self {
            number: 1,
            elapsed: Duration::ZERO,
            previous_delay: Duration::ZERO,
            time_left: None,
            is_safe: false,
            is_replayable: false,
        }
    }
}

/// What to do after an attempt failed.
///
/// ```
/// use ratekeeper_control::NextStep;
///
/// fn describe(step: NextStep) -> String {
///     match step {
///         NextStep::Retry { after } => format!("retry in {after:?}"),
///         NextStep::Stop(reason) => format!("no retry: {reason}"),
///     }
/// }
/// # assert!(describe(NextStep::Retry { after: Default::default() }).contains("retry in"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether the request is to be repeated"]
pub enum NextStep {
    /// Repeat the request after this delay.
    Retry {
        /// How long to wait before the next attempt.
        after: Duration,
    },
    /// Do not repeat it: the caller gets the failure.
    Stop(StopReason),
}

/// Why a request is not repeated. Its text says what would help.
///
/// ```
/// use ratekeeper_control::StopReason;
///
/// assert!(StopReason::NotSafe.to_string().contains("idempotency key"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// The failure is not a temporary one.
    #[error("this failure is not retryable: repeating the same request would fail again")]
    NotRetryable,
    /// The server may have processed the request, and processing it twice is not safe.
    #[error(
        "the server may have processed the request; an idempotent method or an idempotency key would allow a retry"
    )]
    NotSafe,
    /// The body of the request is gone.
    #[error("the request cannot be sent again; a body that is buffered would allow a retry")]
    NotReplayable,
    /// All attempts were made.
    #[error("all attempts were made; a higher maximum of attempts would allow a retry")]
    Attempts,
    /// The next attempt would begin after the maximum of the total time.
    #[error(
        "the next attempt would begin after the maximum total time; a longer one would allow a retry"
    )]
    TotalTime,
    /// The next attempt would begin after the deadline of the request.
    #[error(
        "the next attempt would begin after the deadline of the request; a later deadline would allow a retry"
    )]
    Deadline,
    /// The server asks for a longer wait than the rules allow.
    #[error(
        "the server asks to wait {retry_after:?}, but the maximum is {max:?}; try again later or raise the maximum"
    )]
    RetryAfterTooLong {
        /// How long the server asks to wait.
        retry_after: Duration,
        /// The longest wait that the rules allow.
        max: Duration,
    },
    /// The server says that the request is not to be repeated.
    #[error("the server says not to retry (x-should-retry or grpc-retry-pushback-ms)")]
    ServerSaysNo,
    /// The retries of all requests together are too many.
    #[error(
        "the retry budget is spent: too many requests fail; it recovers with requests that need no retry"
    )]
    BudgetSpent,
}

/// When to repeat a request that failed: a maximum of attempts and of time, and the backoff.
///
/// A failure is retryable if no connection could be made, if the connection failed, for the
/// statuses 429, 502, 503 and 504, for every other status that is a refusal
/// ([`ResponseHints::is_refusal`]), and for the gRPC statuses 14 (`UNAVAILABLE`) and 8
/// (`RESOURCE_EXHAUSTED`). `x-should-retry: true` makes each status from 400 on retryable.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{
///     AttemptState, Failure, Micros, NextStep, ResponseHints, RetryBudget, RetryRules, StopReason,
/// };
///
/// let rules = RetryRules::default().with_attempts_max(2);
/// let (mut budget, now, random) = (RetryBudget::default(), Micros::new(0), 42);
/// let mut next = |attempt: &AttemptState| {
///     let hints = ResponseHints::default(); // there was no response
///     rules.next(&Failure::NotSent, &hints, attempt, &mut budget, now, random)
/// };
///
/// let first = AttemptState { is_replayable: true, ..AttemptState::default() };
/// assert!(matches!(next(&first), NextStep::Retry { .. }));
/// let second = AttemptState { number: 2, ..first };
/// assert_eq!(next(&second), NextStep::Stop(StopReason::Attempts));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRules {
    attempts_max: u32,
    total_max: Duration,
    retry_after_max: Duration,
    backoff: Backoff,
}

impl RetryRules {
    /// Three attempts within 60 s, waits of at most 60 s, and [`Backoff::DEFAULT`].
    pub const DEFAULT: Self = Self {
        attempts_max: 3,
        total_max: Duration::from_secs(60),
        retry_after_max: Duration::from_secs(60),
        backoff: Backoff::DEFAULT,
    };

    /// Returns the maximum number of attempts, the first included.
    #[must_use]
    pub const fn attempts_max(&self) -> u32 {
        self.attempts_max
    }

    /// Sets the maximum of attempts, the first one included. 0 and 1 both mean no retry.
    #[must_use]
    pub const fn with_attempts_max(self, attempts_max: u32) -> Self {
        Self { attempts_max, ..self }
    }

    /// Sets how long after the first attempt the last one may begin.
    #[must_use]
    pub const fn with_total_max(self, total_max: Duration) -> Self {
        Self { total_max, ..self }
    }

    /// Sets the longest wait that a server may ask for. If it asks for a longer one, the caller
    /// gets the refusal at once.
    ///
    /// [`ResponseHints::read`] must get a larger `max_wait`: otherwise a longer wait is cut to it,
    /// and seems to be allowed.
    #[must_use]
    pub const fn with_retry_after_max(self, retry_after_max: Duration) -> Self {
        Self { retry_after_max, ..self }
    }

    /// Sets the backoff between attempts.
    #[must_use]
    pub const fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Returns whether and when to repeat the request.
    ///
    /// A retry never comes before the time that the server asks to wait: the delay is that wait, up
    /// to a tenth of it on top, and the backoff. A gRPC pushback is the delay itself. `hints` is
    /// [`ResponseHints::default`] if there was no response; `random` is uniform. The budget is
    /// charged only if the result is a retry.
    pub fn next(
        &self,
        failure: &Failure,
        hints: &ResponseHints,
        attempt: &AttemptState,
        budget: &mut RetryBudget,
        now: Micros,
        random: u64,
    ) -> NextStep {
        match self.delay(failure, hints, attempt, random) {
            Err(reason) => NextStep::Stop(reason),
            Ok(_) if !budget.try_withdraw(now) => NextStep::Stop(StopReason::BudgetSpent),
            Ok(after) => NextStep::Retry { after },
        }
    }

    /// Returns the delay before the next attempt, or why there is none. The budget is not asked.
    fn delay(
        &self,
        failure: &Failure,
        hints: &ResponseHints,
        attempt: &AttemptState,
        random: u64,
    ) -> Result<Duration, StopReason> {
        check_failure(failure, hints)?;
        check_request(failure, attempt)?;
        if attempt.number >= self.attempts_max {
            return Err(StopReason::Attempts);
        }
        let after = self.spread(hints, attempt, random)?;
        self.check_time(after, attempt)?;
        Ok(after)
    }

    /// Returns what the server asks to wait, and jitter and backoff on top.
    fn spread(
        &self,
        hints: &ResponseHints,
        attempt: &AttemptState,
        random: u64,
    ) -> Result<Duration, StopReason> {
        if let Some(Pushback::After(pushback)) = hints.pushback {
            return self.check_wait(pushback);
        }
        let asked = self.check_wait(hints.wait().unwrap_or_default())?;
        let jitter = duration_up_to(asked / 10, second(random));
        let backoff = self.backoff.delay(attempt.number, attempt.previous_delay, random);
        Ok(asked.saturating_add(jitter).saturating_add(backoff))
    }

    fn check_wait(&self, retry_after: Duration) -> Result<Duration, StopReason> {
        let max = self.retry_after_max;
        if retry_after > max {
            return Err(StopReason::RetryAfterTooLong { retry_after, max });
        }
        Ok(retry_after)
    }

    fn check_time(&self, after: Duration, attempt: &AttemptState) -> Result<(), StopReason> {
        if attempt.elapsed.saturating_add(after) > self.total_max {
            return Err(StopReason::TotalTime);
        }
        if attempt.time_left.is_some_and(|left| after >= left) {
            return Err(StopReason::Deadline);
        }
        Ok(())
    }
}

impl Default for RetryRules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Returns an error if the failure is not retryable, or if the server says not to retry.
fn check_failure(failure: &Failure, hints: &ResponseHints) -> Result<(), StopReason> {
    if hints.should_retry == Some(false) || hints.pushback == Some(Pushback::DoNotRetry) {
        return Err(StopReason::ServerSaysNo);
    }
    let is_retryable = match *failure {
        Failure::NotSent | Failure::Broken => true,
        Failure::Status(429 | 502 | 503 | 504) => true,
        Failure::Status(_) if hints.is_refusal() => true,
        Failure::Status(status) => status >= 400 && hints.should_retry == Some(true),
        Failure::Grpc(status) => matches!(status, GRPC_UNAVAILABLE | GRPC_RESOURCE_EXHAUSTED),
    };
    if is_retryable { Ok(()) } else { Err(StopReason::NotRetryable) }
}

const GRPC_UNAVAILABLE: u16 = 14;

/// Returns an error if this request must not or cannot be sent again.
fn check_request(failure: &Failure, attempt: &AttemptState) -> Result<(), StopReason> {
    if !attempt.is_safe && *failure != Failure::NotSent {
        return Err(StopReason::NotSafe);
    }
    if !attempt.is_replayable {
        return Err(StopReason::NotReplayable);
    }
    Ok(())
}
