//! Controllers for clients of rate-limited services: how long to back off, whether a retry is
//! worth it, what the headers of a response say, and when to slow down before a refusal. And for
//! services under overload: how many requests to have in flight, and which to shed.
//!
//! All of them are pure. Time is an argument ([`Micros`]), and so are random bits (a uniform
//! `u64`). Nothing here reads a clock, does I/O or spawns a task, and nothing allocates after it was
//! made. The caller sends the requests and waits.
//!
//! | type | what it decides |
//! |---|---|
//! | [`Backoff`] | the delay before a retry: exponential, with jitter |
//! | [`RetryBudget`] | whether the retries of all requests together stay a small share of them |
//! | [`Throttle`] | which requests to reject locally while the server rejects most of them |
//! | [`ResponseHints`] | what `Retry-After`, `RateLimit` and the headers of providers say |
//! | [`LearnedQuota`] | how long to wait so that the server's own quota is not exceeded |
//! | [`RetryRules`] | whether and when to repeat a request that failed |
//! | [`Shedder`] | which requests to reject under overload: by class, and within a class by user |
//! | [`adaptive`] | how many requests a service should have in flight |
//! | [`Breaker`] | whether to call a dependency that has failed or was slow (circuit breaker) |
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper_control::{
//!     AttemptState, Failure, Micros, NextStep, ResponseHints, RetryBudget, RetryRules,
//! };
//!
//! let now = Micros::new(1_790_000_000_000_000);
//! let rules = RetryRules::default();
//! let mut budget = RetryBudget::default();
//! budget.deposit(now);
//!
//! let headers = [("retry-after", b"2".as_slice())];
//! let hints = ResponseHints::read(429, headers, now, Duration::from_secs(3600));
//! let attempt = AttemptState { is_safe: true, is_replayable: true, ..AttemptState::default() };
//!
//! let random = 0x9e37_79b9_7f4a_7c15; // from the caller's generator
//! match rules.next(&Failure::Status(429), &hints, &attempt, &mut budget, now, random) {
//!     NextStep::Retry { after } => assert!(after >= Duration::from_secs(2)),
//!     NextStep::Stop(reason) => panic!("{reason}"),
//! }
//! ```
#![forbid(unsafe_code)]

pub mod adaptive;
mod backoff;
mod breaker;
mod learned_quota;
mod queue_order;
mod response_hints;
mod retry;
mod retry_budget;
mod shed;
mod throttle;
mod uniform;
mod window_counter;

pub use backoff::{Backoff, Jitter};
pub use breaker::{
    Breaker, BreakerConfig, BreakerConfigError, BreakerState, CallPermit, CallRejected, Outcome,
    Probes, SlidingWindow,
};
pub use learned_quota::LearnedQuota;
pub use queue_order::QueueOrder;
pub use ratekeeper_core::Micros;
pub use response_hints::{Pushback, QuotaHint, ResponseHints};
pub use retry::{AttemptState, Failure, NextStep, RetryRules, StopReason};
pub use retry_budget::{RetryBudget, RetryBudgetConfig, RetryBudgetError};
pub use shed::{
    Class, Overload, Shed, ShedDecision, Shedder, ShedderConfig, ShedderError, user_hash,
};
pub use throttle::{Throttle, ThrottleError};
