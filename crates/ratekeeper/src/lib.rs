//! An exact rate limiter: keyed, thread-safe, in a fixed amount of memory.
//!
//! ```
//! use ratekeeper::Limiter;
//!
//! let limiter = Limiter::new("100/minute")?;
//! let decision = limiter.check("user:42");
//! if decision.allowed() {
//!     // serve it; decision.remaining() more are allowed right now
//! } else {
//!     // respond 429 with Retry-After: decision.retry_after_secs()
//! }
//! # Ok::<(), ratekeeper::LimitError>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | choose the algorithm | [`Limit::token_bucket`], [`Limit::fixed_window`], … ([`Algorithm`]) |
//! | charge more than 1 | [`KeyRequest::cost`] |
//! | use another limit for one key | [`KeyRequest::limit`] |
//! | charge several limits, all or none | [`Limiter::check_all`] |
//! | read without charging | [`KeyRequest::peek`] |
//! | refund, reset | [`KeyRequest::refund`], [`KeyRequest::reset`] |
//! | charge an estimate, settle the actual cost later | [`KeyRequest::reserve`] |
//! | wait until a request is allowed, up to a deadline | `KeyRequest::wait` (feature `tokio`) |
//! | send evenly spaced | [`Limit::leaky_bucket`] with `KeyRequest::queue` (feature `tokio`) |
//! | limit what is in flight | [`ConcurrencyLimit`]; in a fleet `SharedConcurrencyLimit` (feature `redis`) |
//! | share limits in a fleet, over Redis or Valkey | `SharedLimiter` (feature `redis`) |
//! | limit HTTP requests by a policy file | `PolicyLimiter` (feature `policy`) |
//! | the same as tower middleware | `layer`, `RatekeeperLayer` (feature `tower`) |
//! | test code that uses a limiter | [`ManualClock`] |
//!
//! A check does not allocate (except when a sliding log grows), does not block, and needs no background thread.
//! Only waiting and shared stores need a runtime.
#![deny(unsafe_code)]

#[cfg(feature = "policy")]
mod admission;
pub mod clock;
mod concurrency;
#[cfg(any(feature = "policy", feature = "redis"))]
mod engine;
#[cfg(feature = "policy")]
pub mod files;
pub mod histogram;
mod key_request;
mod limiter;
#[cfg(feature = "policy")]
mod near_limit;
#[cfg(feature = "policy")]
mod policy_files;
#[cfg(feature = "policy")]
mod policy_handle;
#[cfg(feature = "policy")]
mod policy_limiter;
#[cfg(feature = "redis")]
mod random;
mod reservation;
#[cfg(feature = "redis")]
pub mod shared;
#[cfg(feature = "policy")]
pub mod telemetry;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "tokio")]
mod wait;

#[cfg(feature = "policy")]
pub use admission::{Admission, Admitted, BindingLimit, Refusal, RefusalReason};
pub use clock::{Clock, ManualClock, SystemClock};
pub use concurrency::{ConcurrencyLimit, Permit, ZeroPermits};
#[cfg(any(feature = "policy", feature = "redis"))]
pub use engine::{Applied, Degraded, DegradedReason, Receipt};
#[cfg(feature = "policy")]
pub use engine::{Engine, HeldPermit, MaybeReady};
pub use key_request::KeyRequest;
pub use limiter::{Limiter, LimiterBuilder};
#[cfg(feature = "policy")]
pub use near_limit::{InvalidRatio, NearLimit};
#[cfg(feature = "policy")]
pub use policy_files::{PolicyFiles, read_policy};
#[cfg(feature = "policy")]
pub use policy_handle::{ActivePolicy, LoadStatus, PolicyHandle, PolicyLoadError};
#[cfg(feature = "policy")]
pub use policy_limiter::PolicyLimiter;
pub use ratekeeper_core::{
    ALGORITHMS, Algorithm, Cost, Decision, FailureMode, Limit, LimitError, Micros, Rate, RateError,
    Scope, Wait, ZeroCost,
};
/// Policies, and the attributes of requests that they read.
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
pub use reservation::{Reservation, ReservationExpired};
#[cfg(feature = "redis")]
pub use shared::{SharedConcurrencyLimit, SharedLimiter, SharedPermit};
#[cfg(feature = "tower")]
pub use tower::{RatekeeperLayer, layer};
#[cfg(feature = "tokio")]
pub use wait::{WAITERS_MAX, WaitError};

/// Everything that a program shares between threads can be shared.
const _: () = {
    const fn is_shareable<T: Send + Sync>() {}
    is_shareable::<Limiter>();
    is_shareable::<ConcurrencyLimit>();
    is_shareable::<Permit>();
    is_shareable::<Reservation<SystemClock>>();
    #[cfg(feature = "policy")]
    {
        is_shareable::<PolicyLimiter>();
        is_shareable::<Engine>();
        is_shareable::<PolicyHandle>();
        is_shareable::<Admission>();
        is_shareable::<PolicyLoadError>();
    }
    #[cfg(feature = "redis")]
    {
        is_shareable::<SharedLimiter>();
        is_shareable::<SharedConcurrencyLimit>();
        is_shareable::<Applied>();
    }
    #[cfg(feature = "tower")]
    is_shareable::<RatekeeperLayer>();
};
