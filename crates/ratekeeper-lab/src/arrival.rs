//! The arrival of a request.

use ratekeeper_core::{Cost, Micros};

/// The arrival of a request, not yet decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of arrival.
    pub at: Micros,
    /// The key that the limit applies to.
    pub key: String,
    /// The cost to charge.
    pub cost: Cost,
}
