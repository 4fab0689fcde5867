//! What a server's own headers allow, so that a caller slows down before the first refusal.

use std::time::Duration;

use ratekeeper_core::Micros;

use crate::response_hints::QuotaHint;

/// What a server allows, as learned from its responses.
#[derive(Clone, Debug, Default)]
pub struct LearnedQuota {}

impl LearnedQuota {
    /// Takes in what a response says.
    ///
    /// `in_flight` is the units that were sent and whose response has not come yet.
    pub fn observe(&mut self, hint: &QuotaHint, in_flight: u64, now: Micros) {
        let _ = (hint, in_flight, now);
    }

    /// Returns how long to wait until a request of this cost may be sent; `None` if it may be sent
    /// now.
    #[must_use]
    pub fn wait(&self, cost: u64, now: Micros) -> Option<Duration> {
        let _ = (cost, now);
        None
    }

    /// Charges a request that is sent.
    pub fn charge(&mut self, cost: u64, now: Micros) {
        let _ = (cost, now);
    }
}
