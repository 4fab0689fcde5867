//! The newest entries of a log.

use std::collections::VecDeque;

/// Keeps at most a number of entries, and drops the oldest ones.
pub(crate) struct BoundedLog<T> {
    entries: VecDeque<T>,
    entries_max: usize,
}

impl<T: Clone> BoundedLog<T> {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self { entries: VecDeque::new(), entries_max }
    }

    pub(crate) fn push(&mut self, entry: T) {
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Returns the entries, oldest first.
    pub(crate) fn to_vec(&self) -> Vec<T> {
        self.entries.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_are_dropped() {
        let mut log = BoundedLog::new(3);
        (0..10).for_each(|n| log.push(n));
        assert_eq!(log.to_vec(), [7, 8, 9]);
    }
}
