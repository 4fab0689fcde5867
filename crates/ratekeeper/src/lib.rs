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
//! A check does not allocate (except when a sliding log grows), does not block, and needs no background thread.
//! Only waiting and shared stores need a runtime. A key is text or bytes. `100/minute` is a token bucket; see
//! [`Algorithm`] for the others.
//!
//! # One key
//!
//! ```
//! use ratekeeper::{Cost, Limit, Limiter};
//!
//! let limiter = Limiter::new(Limit::token_bucket("5/hour burst 10")?)?;
//! let exports = limiter.key("ann").cost(Cost::of(8));
//! assert_eq!(exports.check().remaining(), 2);
//! assert!(!exports.peek().allowed(), "2 are left; nothing is charged");
//! assert_eq!(exports.refund().remaining(), 10);
//! # Ok::<(), ratekeeper::LimitError>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | choose the algorithm | [`Limit::token_bucket`], [`Limit::fixed_window`], … ([`Algorithm`]) |
//! | charge more than 1 | [`KeyRequest::cost`] |
//! | count by the calendar, in a time zone | `Limiter::new("1000/calendar day in Europe/Berlin")` (feature `calendar`) |
//! | use another limit for one key | [`KeyRequest::limit`] |
//! | charge several limits, all or none | [`Limiter::check_all`] |
//! | read without charging | [`KeyRequest::peek`] |
//! | refund, reset | [`KeyRequest::refund`], [`KeyRequest::reset`] |
//! | charge an estimate, settle the actual cost later | [`KeyRequest::reserve`] |
//! | wait until a request is allowed, up to a deadline | `KeyRequest::wait` (feature `tokio`) |
//! | send evenly spaced | [`Limit::leaky_bucket`] with `KeyRequest::queue` (feature `tokio`) |
//! | limit what is in flight | [`ConcurrencyLimit`]; in a fleet `SharedConcurrencyLimit` (feature `redis`) |
//! | let requests wait for a dependency, up to a number and a time | [`Bulkhead`] |
//! | learn how many requests a service can process at once | [`AdaptiveLimit`] |
//! | under overload, shed what matters least | [`Shedder`] |
//! | stop calling what fails or is slow | [`CircuitBreaker`]; for services `tower::CircuitBreakerLayer` (feature `tower`) |
//! | limit HTTP requests by a policy file | `PolicyLimiter` (feature `policy`) |
//! | test code that uses a limiter | [`ManualClock`] |
//!
//! # A layer for axum, tonic and tower
//!
//! With the feature `axum`, `tonic` or `tower`. A denied request gets 429 with `Retry-After` and `RateLimit` headers,
//! a gRPC call `RESOURCE_EXHAUSTED`.
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, routing::get};
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(ratekeeper::layer("100/minute per ip")?);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # Ok(()) }
//! ```
//!
//! `RatekeeperLayer` enforces a policy file: limits per user, tier or route, costs, queues, refunds. The page
//! `docs/axum.md` of the repository shows each of them, and how to test them. `crates/ratekeeper/examples` has programs
//! to run.
//!
//! # A limiter that a fleet shares
//!
//! With the feature `redis`, over Redis or Valkey. If the store is slow or down there is still a decision, within 5 ms.
//!
#![cfg_attr(feature = "redis", doc = "```no_run")]
#![cfg_attr(not(feature = "redis"), doc = "```ignore")]
//! use ratekeeper::SharedLimiter;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = SharedLimiter::connect("100/minute", "redis://127.0.0.1:6379")?;
//! let applied = limiter.check("user:42").await;
//! if !applied.allowed() {
//!     // respond 429 with Retry-After: applied.retry_after_secs()
//! }
//! # Ok(()) }
//! ```
//!
//! # Calling other services
//!
//! With the feature `client`, a layer for HTTP clients keeps requests within the quotas of other services; with the
//! feature `reqwest` it is a middleware of reqwest. See the module `client`, and `docs/client.md` of the repository.
//!
#![cfg_attr(feature = "reqwest", doc = "```no_run")]
#![cfg_attr(not(feature = "reqwest"), doc = "```ignore")]
//! use ratekeeper::client::Outbound;
//!
//! # fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
//!     .with(Outbound::new("100/s per host")?)
//!     .build();
//! # Ok(()) }
//! ```
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | adds | and enables |
//! |---|---|---|
//! | `tokio` | waiting: `KeyRequest::wait`, `KeyRequest::queue`, `ConcurrencyLimit::acquire`, `Bulkhead::acquire` | |
//! | `policy` | `PolicyLimiter`: limits for HTTP requests, from a file | `tokio` |
//! | `jwt` | policies that identify clients by the claims of their tokens | `policy` |
//! | `tower` | `layer`, `RatekeeperLayer`: a tower layer that enforces a policy; `tower::CircuitBreakerLayer` | `policy` |
//! | `axum` | the client's address from axum | `tower` |
//! | `tonic` | the client's address from tonic | `tower` |
//! | `client` | `client::Outbound`: a tower layer for HTTP clients | `tower` |
//! | `reqwest` | `client::Outbound` as a middleware of reqwest | `client` |
//! | `redis` | `SharedLimiter`, `SharedConcurrencyLimit`, `LeasedStore`, and policies with a shared store | `tokio` |
#![deny(unsafe_code)]

mod adaptive_limit;
#[cfg(feature = "policy")]
mod admission;
mod breaker;
mod bulkhead;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
mod concurrency;
#[cfg(feature = "policy")]
mod dependency;
#[cfg(any(feature = "policy", feature = "redis"))]
mod engine;
#[cfg(feature = "policy")]
pub mod files;
pub mod histogram;
mod key_request;
mod limiter;
#[cfg(feature = "policy")]
mod near_limit;
mod padded;
mod permit_pool;
#[cfg(feature = "policy")]
mod policy_files;
#[cfg(feature = "policy")]
mod policy_handle;
#[cfg(feature = "policy")]
mod policy_limiter;
mod queued_permits;
mod random;
#[cfg(feature = "policy")]
pub mod refusals;
#[cfg(feature = "policy")]
mod request_id;
mod reservation;
#[cfg(feature = "redis")]
pub mod shared;
mod shedder;
#[cfg(feature = "policy")]
pub mod telemetry;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "tokio")]
mod wait;

pub use adaptive_limit::{AdaptiveLimit, AdaptiveLimitBuilder, AdaptivePermit, AdaptiveStats};
#[cfg(feature = "policy")]
pub use admission::{Admission, Admitted, BindingLimit, Refusal, RefusalReason, ShedRefusal};
pub use breaker::{
    BreakerStats, Call, CircuitBreaker, CircuitBreakerBuilder, CircuitOpen, OwnedCall, StateChange,
};
pub use bulkhead::{Bulkhead, BulkheadError, BulkheadStats};
pub use clock::{Clock, ManualClock, SystemClock};
pub use concurrency::{ConcurrencyLimit, Permit, ZeroPermits};
#[cfg(feature = "policy")]
pub use dependency::{
    CallOutcome, Dependency, DependencyError, DependencyPermit, DependencyRejected,
    DependencyRejection, DependencyStats, UnknownDependency,
};
#[cfg(any(feature = "policy", feature = "redis"))]
pub use engine::{
    Applied, Degraded, DegradedReason, HoldId, InvalidHoldId, PermitError, Receipt,
    ReservationError, ReserveError, Reserved, Settled, TooManyHeld,
};
#[cfg(feature = "policy")]
pub use engine::{ConcurrencyStats, Engine, MaybeReady};
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
#[cfg(feature = "tokio")]
pub use ratekeeper_control::QueueOrder;
pub use ratekeeper_control::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveError, Bounds, SampleOutcome, WindowConfig,
};
pub use ratekeeper_control::{
    Backoff, BreakerConfig, BreakerConfigError, BreakerState, Jitter, Outcome, Probes,
    SlidingWindow,
};
pub use ratekeeper_control::{Class, Overload, Shed, ShedderConfig, ShedderError};
pub use ratekeeper_core::{
    ALGORITHMS, Algorithm, CalendarError, CalendarPeriod, CalendarUnit, Cost, Decision,
    FailureMode, GuaranteedLimit, Guarantees, GuaranteesError, IntoCost, Key, Limit, LimitError,
    MaxDebt, MaxDebtError, Micros, Rate, RateError, Scope, TimeZone, Wait, ZeroCost,
};
/// Policies, and the attributes of requests that they read.
#[cfg(feature = "policy")]
pub use ratekeeper_policy as policy;
#[cfg(feature = "policy")]
pub use ratekeeper_policy::{Policy, PolicyErrors};
pub use ratekeeper_stores::{
    CHARGES_MAX, Charge, ChargeKind, ChargesError, DecisionInputs, MemoryStats, MemoryStore, Op,
    Snapshot, StateBefore, StoreError, StoreErrorCause, Verdict,
};
#[cfg(feature = "redis")]
pub use ratekeeper_stores::{
    LeaseStats, LeasedStore, PermitName, PermitReply, PermitStore, RedisConfig, RedisStore,
    RedisUrlError, ReservationRecord, ReservationStore, SettledReservation, SharedStore, Store,
};
#[cfg(feature = "policy")]
pub use request_id::RequestIds;
pub use reservation::{Reservation, ReservationExpired};
#[cfg(feature = "redis")]
pub use shared::{SharedConcurrencyLimit, SharedLimiter, SharedPermit};
pub use shedder::{ClassStats, Shedder};
#[cfg(feature = "tower")]
pub use tower::{RatekeeperLayer, layer};
#[cfg(feature = "tokio")]
pub use wait::{WAITERS_MAX, WaitError};

/// The examples of the documentation are compiled and run.
#[cfg(all(doctest, feature = "axum", feature = "tonic", feature = "redis", feature = "reqwest"))]
mod documentation {
    #[doc = include_str!("../../../docs/axum.md")]
    mod axum {}
    #[doc = include_str!("../../../docs/client.md")]
    mod client {}
    #[doc = include_str!("../../../docs/fleet.md")]
    mod fleet {}
    #[doc = include_str!("../../../docs/llm-tokens.md")]
    mod llm_tokens {}
    #[doc = include_str!("../../../docs/protection.md")]
    mod protection {}
}

/// Everything that a program shares between threads can be shared.
const _: () = {
    const fn is_shareable<T: Send + Sync>() {}
    is_shareable::<Limiter>();
    is_shareable::<ConcurrencyLimit>();
    is_shareable::<Permit>();
    is_shareable::<Bulkhead>();
    is_shareable::<AdaptiveLimit>();
    is_shareable::<AdaptivePermit<'static>>();
    is_shareable::<Shedder>();
    is_shareable::<CircuitBreaker>();
    is_shareable::<OwnedCall>();
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
    #[cfg(feature = "client")]
    {
        is_shareable::<client::Outbound>();
        is_shareable::<client::OutboundError<std::cell::Cell<()>>>();
    }
};
