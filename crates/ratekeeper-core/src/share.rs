//! The part of a limit that one of several nodes enforces by itself.

use core::time::Duration;

use crate::cost::Cost;
use crate::limit::{Limit, LimitError};
use crate::params::LimitParams;
use crate::rate::Rate;

impl Limit {
    /// Returns the limit that one of `nodes` enforces by itself, so that all of them together stay within this one.
    ///
    /// The rate and the burst of a bucket are divided by the number of nodes; the burst is at least 1. The count
    /// of a window is divided likewise; where that is less than 1, the period is longer instead.
    ///
    /// ```
    /// # use ratekeeper_core as ratekeeper;
    /// use ratekeeper::Limit;
    ///
    /// let limit = Limit::token_bucket("100/s burst 300")?;
    /// assert_eq!(limit.share_of_nodes(3).rate().to_string(), "100/3s burst 100");
    /// # Ok::<(), ratekeeper_core::LimitError>(())
    /// ```
    #[must_use]
    pub fn share_of_nodes(&self, nodes: u32) -> Self {
        if nodes <= 1 {
            return self.clone();
        }
        rate_share(self, u64::from(nodes))
            .and_then(|rate| Self::new(rate, self.algorithm()))
            .and_then(|share| match self.params(Cost::ONE) {
                LimitParams::SlidingLog { count_rejected: true, .. } => share.count_rejected(),
                _ => Ok(share),
            })
            .map_or_else(|_| self.clone(), |share| share.named(self.name()))
    }
}

fn rate_share(limit: &Limit, nodes: u64) -> Result<Rate, LimitError> {
    let (rate, count) = (limit.rate(), limit.rate().count());
    // Several windows of the calendar are not one. They are at most this long.
    let period = rate.calendar().map_or(rate.period(), |period| period.unit().greatest_length());
    let stretched = |by: u64| period.saturating_mul(u32::try_from(by).unwrap_or(u32::MAX));
    if limit.algorithm().has_burst() {
        let burst = (limit.quota() / nodes).max(1);
        let slower = Rate::new(count, stretched(nodes));
        // If the period becomes too long for a rate, the count is divided instead.
        let slower = slower.or_else(|_| Rate::new((count / nodes).max(1), rate.period()))?;
        return Ok(slower.with_burst(burst)?);
    }
    match count / nodes {
        0 => Ok(Rate::new(1, stretched(nodes.div_ceil(count)))
            .or_else(|_| Rate::new(1, Duration::from_secs(10 * 365 * 86_400)))?),
        part => Ok(rate.with_count(part)?),
    }
}
