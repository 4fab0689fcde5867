//! An exact rate limiter: keyed, thread-safe, in a fixed amount of memory.
//!
//! ```
//! use ratekeeper::Limiter;
//!
//! let limiter = Limiter::new("100/minute")?;
//! let decision = limiter.check("user:42");
//! if decision.allowed() {
//!     // serve it; decision.remaining() more may come at once
//! } else {
//!     // answer 429 with Retry-After: decision.retry_after_secs()
//! }
//! # Ok::<(), ratekeeper::LimitError>(())
//! ```
//!
//! What else there is:
//!
//! | to | use |
//! |---|---|
//! | choose the algorithm | [`Limit::token_bucket`], [`Limit::fixed_window`], … ([`Algorithm`]) |
//! | charge more than 1 | [`Request::cost`] |
//! | give one key another limit | [`Request::limit`] |
//! | check several limits, all or none | [`Limiter::check_all`] |
//! | look without charging | [`Request::peek`] |
//! | give back, start afresh | [`Request::refund`], [`Request::reset`] |
//! | charge an estimate, correct it later | [`Request::reserve`] |
//! | wait for a turn, up to a deadline | `Request::wait` (feature `tokio`) |
//! | send evenly spaced | [`Limit::leaky_bucket`] with `Request::queue` (feature `tokio`) |
//! | share limits with a fleet, over Redis or Valkey | `SharedLimiter` (feature `redis`) |
//! | bound what is in flight | [`Concurrency`]; in a fleet `SharedConcurrency` (feature `redis`) |
//! | test code that uses a limiter | [`ManualClock`] |
//!
//! A check takes no allocation, no system call and no background thread. Only waiting needs a
//! runtime.
#![deny(unsafe_code)]

pub mod clock;
mod concurrency;
#[cfg(feature = "policy")]
pub mod files;
#[cfg(feature = "policy")]
pub mod gate;
pub mod histogram;
#[cfg(feature = "tower")]
pub mod http;
mod limiter;
mod request;
mod reservation;
#[cfg(feature = "redis")]
pub mod shared;
#[cfg(feature = "tokio")]
mod wait;

pub use clock::{Clock, ManualClock, SystemClock};
pub use concurrency::{Concurrency, NoPermits, Permit};
#[cfg(feature = "policy")]
pub use gate::{Gate, GateError};
#[cfg(feature = "tower")]
pub use http::{RatekeeperLayer, layer};
pub use limiter::Limiter;
pub use ratekeeper_core::{
    ALGORITHMS, Algorithm, Cost, Decision, FailureMode, Limit, LimitError, Micros, Rate, RateError,
    Scope, Wait, ZeroCost,
};
/// Policies, and what they look at.
#[cfg(feature = "policy")]
pub use ratekeeper_policy as policy;
#[cfg(feature = "policy")]
pub use ratekeeper_policy::{Policy, PolicyErrors};
pub use ratekeeper_stores::{
    CHARGES_MAX, Charge, ChargesError, MemoryStats, MemoryStore, Op, StoreError, Verdict,
};
#[cfg(feature = "redis")]
pub use ratekeeper_stores::{
    LeaseStats, LeasedStore, RedisConfig, RedisStore, RedisUrlError, SharedStore, Store,
};
pub use request::Request;
pub use reservation::{Reservation, TooLate};
#[cfg(feature = "redis")]
pub use shared::{Answer, SharedConcurrency, SharedLimiter, SharedPermit};
#[cfg(feature = "tokio")]
pub use wait::{WAITERS_MAX, WaitError};
