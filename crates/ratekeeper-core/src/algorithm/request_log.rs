//! A packed log of requests: their times and costs, oldest first, in a few bytes each.
//!
//! An entry is the time since the entry before it, and its cost unless that is 1, as
//! variable-length integers: four bytes for requests up to two minutes apart, seven for a month.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The state of one key under a sliding log: the requests it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLog {
    bytes: VecDeque<u8>,
    /// The time of the first entry. The distance stored with that entry is ignored.
    oldest: u64,
    newest: u64,
    /// The latest time passed to this log. It never decreases, so that what has expired stays
    /// expired when the clock goes back.
    latest_now: u64,
    /// The sum of all costs.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) cost: u64,
}

impl RequestLog {
    /// Returns the sum of all costs, including entries that have expired since the last update.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the time of the newest entry, in microseconds since the epoch; 0 if there was none.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub(super) fn latest_now(&self) -> u64 {
        self.latest_now
    }

    pub(super) fn advance_to(&mut self, now: u64) {
        self.latest_now = self.latest_now.max(now);
    }

    /// Returns whether the log has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the heap memory of the entries.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Serializes the log, for a store outside this process: four numbers, then the entries.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.bytes.len());
        for (n, len) in [self.oldest, self.newest, self.latest_now, self.total].iter().zip(HEADER) {
            bytes.extend(&n.to_be_bytes()[8 - len..]);
        }
        bytes.extend(&self.bytes);
        bytes
    }

    /// Deserializes what [`RequestLog::to_bytes`] returned. `None` if the bytes are inconsistent.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (mut header, entries) = bytes.split_at_checked(HEADER_LEN)?;
        let [oldest, newest, latest_now, total] = HEADER.map(|len| {
            let (number, rest) = header.split_at(len);
            header = rest;
            number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
        });
        let bytes = entries.iter().copied().collect();
        let log = Self { bytes, oldest, newest, latest_now, total };
        let sum = log.entries().map(|entry| entry.cost).fold(0, u64::saturating_add);
        let is_consistent =
            sum == total && log.entries().last().is_none_or(|last| last.at == newest);
        is_consistent.then_some(log)
    }

    /// Iterates over all entries, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut bytes = self.bytes.iter().copied();
        let mut at = None;
        core::iter::from_fn(move || {
            let (distance, cost, _) = decode(&mut bytes)?;
            let next = at.map_or(self.oldest, |before: u64| before + distance);
            at = Some(next);
            Some(Entry { at: next, cost })
        })
    }

    /// Appends an entry. `at` must not be before the newest entry.
    pub(super) fn push(&mut self, at: u64, cost: u64) {
        if self.is_empty() {
            (self.oldest, self.newest) = (at, at);
        }
        let (packed, len) = encode(at - self.newest, cost);
        if self.bytes.len() + len > self.bytes.capacity() {
            // Grows by an eighth instead of doubling, to waste less memory when the log is full.
            self.bytes.reserve_exact(len.max(self.bytes.len() / 8).max(16));
        }
        self.bytes.extend(&packed[..len]);
        self.newest = at;
        self.total += cost;
    }

    /// Drops entries from the front while `predicate` holds of the oldest entry and the total.
    pub(super) fn drop_while(&mut self, predicate: impl Fn(Entry, u64) -> bool) {
        while let Some((_, cost, len)) = decode(&mut self.bytes.iter().copied()) {
            if !predicate(Entry { at: self.oldest, cost }, self.total) {
                return;
            }
            self.bytes.drain(..len);
            self.total -= cost;
            if let Some((distance, ..)) = decode(&mut self.bytes.iter().copied()) {
                self.oldest += distance;
            }
            if self.bytes.len() < self.bytes.capacity() / 4 {
                self.bytes.shrink_to(self.bytes.len() * 2);
            }
        }
    }

    /// Removes `cost` from the entries at `charged_at` and later, since a charge is logged later if
    /// the log had a later time already. If they hold less, removes the rest from the newest
    /// entries before.
    pub(super) fn remove(&mut self, mut cost: u64, charged_at: u64) {
        let mut entries: Vec<Entry> = self.entries().collect();
        let split = entries.partition_point(|entry| entry.at < charged_at);
        let (before, since) = entries.split_at_mut(split);
        for entry in since.iter_mut().chain(before.iter_mut().rev()) {
            let removed = cost.min(entry.cost);
            entry.cost -= removed;
            cost -= removed;
        }
        let mut rebuilt = Self { latest_now: self.latest_now, ..Self::default() };
        for entry in entries.iter().filter(|entry| entry.cost > 0) {
            rebuilt.push(entry.at, entry.cost);
        }
        *self = rebuilt;
    }
}

/// The size in bytes of each number in the header: three times and the total.
const HEADER: [usize; 4] = [7, 7, 7, 4];
const HEADER_LEN: usize = 25;

const PACKED_MAX: usize = 20;

fn encode(distance: u64, cost: u64) -> ([u8; PACKED_MAX], usize) {
    let (mut packed, mut len) = ([0; PACKED_MAX], 0);
    let mut put = |mut n: u64| {
        while n >= 0x80 {
            packed[len] = n as u8 | 0x80;
            (n, len) = (n >> 7, len + 1);
        }
        packed[len] = n as u8;
        len += 1;
    };
    put(distance << 1 | u64::from(cost != 1));
    if cost != 1 {
        put(cost);
    }
    (packed, len)
}

/// Decodes the next entry: distance, cost and length in bytes.
fn decode(bytes: &mut impl Iterator<Item = u8>) -> Option<(u64, u64, usize)> {
    let mut len = 0;
    let mut take = || {
        let (mut n, mut shift) = (0, 0);
        loop {
            let byte = bytes.next()?;
            len += 1;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(n);
            }
            shift += 7;
        }
    };
    let tagged_distance = take()?;
    let cost = if tagged_distance & 1 == 1 { take()? } else { 1 };
    Some((tagged_distance >> 1, cost, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let mut log = RequestLog::default();
        let entries = [(5, 1), (5, 3), (200, 1), (9_000_000, 70_000), (1 << 50, 1)];
        for (at, cost) in entries {
            log.push(at, cost);
        }
        let unpacked: Vec<_> = log.entries().map(|entry| (entry.at, entry.cost)).collect();
        assert_eq!(unpacked, entries);
        assert_eq!(log.total(), 70_006);

        assert_eq!(RequestLog::from_bytes(&log.to_bytes()), Some(log.clone()));
        assert_eq!(RequestLog::from_bytes(&log.to_bytes()[1..]), None);

        log.drop_while(|entry, _| entry.at < 200);
        assert_eq!(log.entries().next(), Some(Entry { at: 200, cost: 1 }));
        assert_eq!(log.total(), 70_002);
    }

    #[test]
    fn dropping_entries_frees_memory() {
        let mut log = RequestLog::default();
        (0..10_000).for_each(|i| log.push(i * 60_000, 1));
        let full = log.heap_bytes();
        log.drop_while(|entry, _| entry.at < 9_990 * 60_000);
        assert_eq!(log.entries().count(), 10);
        assert!(log.heap_bytes() < full / 100, "{} of {full} bytes", log.heap_bytes());
    }

    #[test]
    fn a_thousand_requests_a_minute_take_under_five_bytes_each() {
        let mut log = RequestLog::default();
        for i in 0..1_000 {
            log.push(1_700_000_000_000_000 + i * 60_000, 1);
        }
        assert!(log.heap_bytes() < 5_000, "{} bytes", log.heap_bytes());
    }
}
