//! Events in the order of their times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events that are to happen. Those of equal time happen in the order in which they were scheduled.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Scheduled<E>>,
    number: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at_us: u64,
    number: u64,
    event: E,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn schedule(&mut self, at_us: u64, event: E) {
        self.number += 1;
        self.heap.push(Scheduled { at_us, number: self.number, event });
    }

    pub(crate) fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|scheduled| scheduled.at_us)
    }

    pub(crate) fn pop(&mut self) -> Option<E> {
        self.heap.pop().map(|scheduled| scheduled.event)
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns the greatest, which is to be the earliest.
        (other.at_us, other.number).cmp(&(self.at_us, self.number))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Scheduled<E> {}
