//! When a leaky bucket releases the requests that it delays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::timeline::Timeline;

/// Maximum number of delayed requests that are tracked.
const PENDING_MAX: usize = 8_000_000;

/// Counts releases over time. Pending releases are kept until virtual time reaches them, so that a queue
/// of years does not stretch the time axis of a minute of traffic.
#[derive(Debug)]
pub(crate) struct Releases {
    timeline: Timeline,
    pending: BinaryHeap<Reverse<u64>>,
    /// Whether there were too many pending releases to track.
    has_overflowed: bool,
}

impl Releases {
    pub(crate) fn new() -> Self {
        Self { timeline: Timeline::new(), pending: BinaryHeap::new(), has_overflowed: false }
    }

    /// Adds a request that arrives `now_us` after the start and is released at `release_us`.
    pub(crate) fn add(&mut self, now_us: u64, release_us: u64) {
        if self.has_overflowed {
            return;
        }
        self.pending.push(Reverse(release_us));
        self.advance(now_us);
        if self.pending.len() > PENDING_MAX {
            self.has_overflowed = true;
            self.pending = BinaryHeap::new();
        }
    }

    /// Counts all releases up to and including `now_us`.
    pub(crate) fn advance(&mut self, now_us: u64) {
        while let Some(Reverse(release_us)) = self.pending.peek()
            && *release_us <= now_us
        {
            self.timeline.add(*release_us, true);
            self.pending.pop();
        }
    }

    /// Returns the number of releases in each of at most `columns_max` columns, or `None` if there were too many to track.
    pub(crate) fn columns(&self, span_us: u64, columns_max: u64) -> Option<Vec<u64>> {
        (!self.has_overflowed).then(|| self.timeline.columns(span_us, columns_max).admitted)
    }
}
