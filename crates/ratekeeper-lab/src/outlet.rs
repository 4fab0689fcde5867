//! When held requests are let out, over time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::timeline::Timeline;

/// As many held requests as are remembered.
const HELD_MAX: usize = 8_000_000;

/// Keeps what is held until time has come to it, so that a queue that is years long does not
/// stretch the axis of a minute's traffic.
#[derive(Debug)]
pub(crate) struct Outlet {
    timeline: Timeline,
    held: BinaryHeap<Reverse<u64>>,
    is_lost: bool,
}

impl Outlet {
    pub(crate) fn new() -> Self {
        Self { timeline: Timeline::new(), held: BinaryHeap::new(), is_lost: false }
    }

    /// One request comes `now_us` from the start and is to be let out at `out_us`.
    pub(crate) fn hold(&mut self, now_us: u64, out_us: u64) {
        if self.is_lost {
            return;
        }
        self.held.push(Reverse(out_us));
        self.let_out(now_us);
        if self.held.len() > HELD_MAX {
            self.is_lost = true;
            self.held = BinaryHeap::new();
        }
    }

    /// Lets out all that is due up to and including `now_us`.
    pub(crate) fn let_out(&mut self, now_us: u64) {
        while let Some(Reverse(out_us)) = self.held.peek()
            && *out_us <= now_us
        {
            self.timeline.add(*out_us, true);
            self.held.pop();
        }
    }

    /// How many were let out in each column, or `None` if there was too much to remember.
    pub(crate) fn columns(&self, span_us: u64) -> Option<Vec<u64>> {
        (!self.is_lost).then(|| self.timeline.columns(span_us).admitted)
    }
}
