//! Events in the order of their times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::load::Clients;

/// What happens next. Those of equal time happen in the order in which they were scheduled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A worker finishes the work for a request.
    Done { request: usize },
    /// A stream ends.
    StreamEnd,
    /// A client repeats a request.
    Retry(Attempt),
}

/// One attempt of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// 0 for the first attempt.
    pub(super) retry: u32,
}

impl Attempt {
    pub(super) fn may_retry(self, clients: Clients) -> bool {
        match clients {
            Clients::OneShot => false,
            Clients::Naive { retries } => self.retry < retries,
            Clients::Budgeted => self.retry < 2,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Scheduled>,
    number: u64,
}

#[derive(Debug)]
struct Scheduled {
    at_us: u64,
    number: u64,
    event: Event,
}

impl Events {
    pub(super) fn schedule(&mut self, at_us: u64, event: Event) {
        self.number += 1;
        self.heap.push(Scheduled { at_us, number: self.number, event });
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|scheduled| scheduled.at_us)
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|scheduled| scheduled.event)
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns the greatest, which is to be the earliest.
        (other.at_us, other.number).cmp(&(self.at_us, self.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}
