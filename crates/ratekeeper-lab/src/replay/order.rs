//! Puts the requests of one log in order: within a window of time, and a maximum number of requests.

use std::collections::VecDeque;

use super::request::Batch;

/// Requests that are kept in memory at most to put them in order.
const PENDING_MAX: usize = 200_000;

/// Requests in the order of their times; those of the same time in the order of the log.
#[derive(Debug)]
pub(super) struct Order {
    window_us: u64,
    pending: VecDeque<Pending>,
    batches: VecDeque<(Batch, usize)>,
    /// How many batches were dropped.
    dropped: usize,
    latest_us: u64,
    /// The time of the request that was taken last.
    taken_us: u64,
    is_complete: bool,
    pub(super) late: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    at_us: u64,
    batch: usize,
    index: u32,
}

impl Order {
    pub(super) fn new(window_us: u64) -> Self {
        Self {
            window_us,
            pending: VecDeque::new(),
            batches: VecDeque::new(),
            dropped: 0,
            latest_us: 0,
            taken_us: 0,
            is_complete: false,
            late: 0,
        }
    }

    pub(super) fn add(&mut self, batch: Batch) {
        let number = self.dropped + self.batches.len();
        let mut is_sorted = true;
        let before = self.pending.len();
        let mut last_us = self.pending.back().map_or(0, |last| last.at_us);
        let mut earliest_us = u64::MAX;
        for (index, request) in batch.requests.iter().enumerate() {
            let at_us = match request.at_us < self.taken_us {
                true => {
                    self.late += 1;
                    self.taken_us
                }
                false => request.at_us,
            };
            is_sorted &= at_us >= last_us;
            last_us = at_us;
            earliest_us = earliest_us.min(at_us);
            self.latest_us = self.latest_us.max(at_us);
            self.pending.push_back(Pending { at_us, batch: number, index: index as u32 });
        }
        if !batch.requests.is_empty() {
            let requests = batch.requests.len();
            self.batches.push_back((batch, requests));
        }
        if !is_sorted {
            let pending = self.pending.make_contiguous();
            let from = pending[..before].partition_point(|pending| pending.at_us <= earliest_us);
            // Stable, and fast where runs are in order.
            pending[from..].sort_by_key(|pending| pending.at_us);
        }
    }

    /// Says that there are no more batches.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the time of the next request, if no earlier one can follow.
    pub(super) fn next_at_us(&self) -> Option<u64> {
        let at_us = self.pending.front()?.at_us;
        let is_due = self.is_complete
            || at_us <= self.latest_us.saturating_sub(self.window_us)
            || self.pending.len() > PENDING_MAX;
        is_due.then_some(at_us)
    }

    /// Takes the next request, and calls `visit` with its time, its batch and its index there.
    pub(super) fn take(&mut self, visit: impl FnOnce(u64, &Batch, usize)) {
        let Some(Pending { at_us, batch, index }) = self.pending.pop_front() else { return };
        self.taken_us = at_us;
        let (of, left) = &mut self.batches[batch - self.dropped];
        visit(at_us, of, index as usize);
        *left -= 1;
        while self.batches.front().is_some_and(|(_, left)| *left == 0) {
            self.batches.pop_front();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::request::BatchRequest;

    fn batch(times: &[u64]) -> Batch {
        let request = |at_us: &u64| BatchRequest { at_us: *at_us, duration_us: 0 };
        Batch { requests: times.iter().map(request).collect(), ..Batch::default() }
    }

    fn due(order: &mut Order) -> Vec<u64> {
        let mut times = Vec::new();
        while order.next_at_us().is_some() {
            order.take(|at_us, _, _| times.push(at_us));
        }
        times
    }

    #[test]
    fn requests_are_in_order_within_the_window() {
        let mut order = Order::new(10);
        order.add(batch(&[100, 103, 101]));
        assert!(due(&mut order).is_empty());
        order.add(batch(&[99, 112]));
        assert_eq!(due(&mut order), [99, 100, 101]);
        order.add(batch(&[98, 102]));
        assert_eq!(order.late, 1, "99 was taken before 98 came");
        order.complete();
        assert_eq!(due(&mut order), [101, 102, 103, 112]);
        assert!(order.batches.is_empty());
    }

    #[test]
    fn a_window_of_nothing_keeps_nothing() {
        let mut order = Order::new(0);
        order.add(batch(&[1, 2, 3]));
        assert_eq!(due(&mut order), [1, 2, 3]);
        order.add(batch(&[2, 4]));
        assert_eq!((due(&mut order), order.late), (vec![3, 4], 1));
    }

    #[test]
    fn too_many_requests_for_memory_are_taken_before_the_window_ends() {
        let mut order = Order::new(u64::MAX / 2);
        order.add(batch(&vec![5; PENDING_MAX + 3]));
        assert_eq!(due(&mut order).len(), 3);
    }
}
