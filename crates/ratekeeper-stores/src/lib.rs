//! The stores of Ratekeeper's state.
//!
//! [`MemoryStore`] keeps it in this process: synchronous, exact under contention, in a fixed amount
//! of memory. `RedisStore` (feature `redis`) keeps it in Redis or Valkey, for a fleet. Every store
//! gives the same [`Charge`]s the same decisions; `conformance`
//! (behind a feature of that name) is the suite that holds them to it.
#![deny(unsafe_code)]

mod charge;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod decision_inputs;
#[cfg(feature = "leased")]
pub mod leased;
pub mod memory;
mod permit;
#[cfg(feature = "redis")]
pub mod redis;
mod reservation;
mod snapshot;
mod store;
mod verdict;

pub use charge::{CHARGES_MAX, Charge, ChargeKind, ChargesError, OwnedCharge};
pub use decision_inputs::{DecisionInputs, StateBefore};
#[cfg(feature = "leased")]
pub use leased::{LeaseStats, LeasedStore};
pub use memory::{MemoryStats, MemoryStore};
pub use permit::{PermitName, PermitReply, PermitStore};
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisStore, RedisUrlError};
pub use reservation::{ReservationRecord, ReservationStore, SettledReservation};
pub use snapshot::Snapshot;
pub use store::{ApplyFailure, LateReply, Op, SharedStore, Store, StoreError, StoreErrorCause};
pub use verdict::Verdict;
