//! The one path from charges to a verdict.
//!
//! Every listener, the gateway and the tower layer decide by `Engine::apply`. Whether the store is in memory
//! or shared, what happens when it is unavailable, and where a correction goes is known here only.

mod applied;
#[cfg(feature = "policy")]
mod apply;
#[cfg(all(feature = "policy", feature = "redis"))]
mod corrections;
#[cfg(feature = "redis")]
pub(crate) mod fallback;
#[cfg(all(feature = "policy", feature = "redis"))]
pub(crate) mod fleet_store;
mod hold_id;
mod hold_table;
#[cfg(feature = "policy")]
mod maybe_ready;
#[cfg(all(feature = "client", feature = "redis"))]
mod pause;
mod permit_error;
#[cfg(feature = "policy")]
mod permits;
mod reservations;
#[cfg(feature = "policy")]
mod service_permits;

pub use applied::{Applied, Degraded, DegradedReason, Receipt};
#[cfg(feature = "policy")]
pub use apply::Engine;
#[cfg(feature = "policy")]
pub(crate) use apply::EngineStore;
pub use hold_id::{HoldId, InvalidHoldId};
pub use hold_table::TooManyHeld;
#[cfg(feature = "policy")]
pub use maybe_ready::MaybeReady;
#[cfg(feature = "policy")]
pub(crate) use maybe_ready::ready_now;
pub use permit_error::PermitError;
#[cfg(feature = "policy")]
pub(crate) use permits::{InFlightPermit, PermitRequest};
#[cfg(feature = "redis")]
pub(crate) use reservations::in_full;
pub use reservations::{ReservationError, ReserveError, Reserved, Settled};
#[cfg(feature = "policy")]
pub use service_permits::ConcurrencyStats;
#[cfg(feature = "policy")]
pub(crate) use service_permits::ServicePermitRequest;
