//! One request, before it is decided.

use ratekeeper_core::{Cost, Micros};

/// A request that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Micros,
    /// Whose.
    pub key: String,
    /// How much it is charged.
    pub cost: Cost,
}
