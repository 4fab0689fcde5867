//! The packed log: (time, cost) of requests, oldest first, in a few bytes each.
//!
//! An entry is the time since the entry before it, and its cost if that is not 1, as variable-length
//! integers: four bytes for requests up to two minutes apart, seven for a month.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The state of one key under a sliding log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    bytes: VecDeque<u8>,
    /// The time of the first entry. Its own distance in `bytes` is not read.
    oldest: u64,
    newest: u64,
    /// The latest time that this log was told. It never goes back: what has expired stays so.
    seen: u64,
    /// The sum of all costs.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) cost: u64,
}

impl Log {
    /// The sum of all costs in it, also of those that have expired since it was last told the time.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The time of the newest entry, in microseconds since the epoch; 0 if there never was one.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn see(&mut self, now: u64) {
        self.seen = self.seen.max(now);
    }

    /// Does it hold nothing at all?
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The memory that the entries take, beside the log itself.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The log as bytes, for a store that keeps it elsewhere: four numbers, then the entries.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_LEN + self.bytes.len());
        for (n, len) in [self.oldest, self.newest, self.seen, self.total].iter().zip(HEAD) {
            bytes.extend(&n.to_be_bytes()[8 - len..]);
        }
        bytes.extend(&self.bytes);
        bytes
    }

    /// The log that [`Log::to_bytes`] gave. `None` if it did not.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (mut head, entries) = bytes.split_at_checked(HEAD_LEN)?;
        let [oldest, newest, seen, total] = HEAD.map(|len| {
            let (number, rest) = head.split_at(len);
            head = rest;
            number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
        });
        let log = Self { bytes: entries.iter().copied().collect(), oldest, newest, seen, total };
        let sum = log.entries().map(|entry| entry.cost).fold(0, u64::saturating_add);
        let is_whole = sum == total && log.entries().last().is_none_or(|last| last.at == newest);
        is_whole.then_some(log)
    }

    /// All entries, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut bytes = self.bytes.iter().copied();
        let mut at = None;
        core::iter::from_fn(move || {
            let (distance, cost, _) = decode(&mut bytes)?;
            let this = at.map_or(self.oldest, |before: u64| before + distance);
            at = Some(this);
            Some(Entry { at: this, cost })
        })
    }

    /// Adds to the end. `at` must not be before the newest entry.
    pub(super) fn push(&mut self, at: u64, cost: u64) {
        if self.is_empty() {
            (self.oldest, self.newest) = (at, at);
        }
        let (packed, len) = encode(at - self.newest, cost);
        if self.bytes.len() + len > self.bytes.capacity() {
            // An eighth more instead of twice as much: a full log is then nearly all entries.
            self.bytes.reserve_exact(len.max(self.bytes.len() / 8).max(16));
        }
        self.bytes.extend(&packed[..len]);
        self.newest = at;
        self.total += cost;
    }

    /// Drops entries from the front while `is_done` says so.
    pub(super) fn drop_while(&mut self, is_done: impl Fn(Entry, u64) -> bool) {
        while let Some((_, cost, len)) = decode(&mut self.bytes.iter().copied()) {
            if !is_done(Entry { at: self.oldest, cost }, self.total) {
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

    /// Takes out `cost` that was charged at `charged_at`, or later if the log had been told a later
    /// time before; and if there is not that much, from the newest before it.
    pub(super) fn take_out(&mut self, mut cost: u64, charged_at: u64) {
        let mut entries: Vec<Entry> = self.entries().collect();
        let later = entries.partition_point(|entry| entry.at < charged_at);
        let (before, since) = entries.split_at_mut(later);
        for entry in since.iter_mut().chain(before.iter_mut().rev()) {
            let taken = cost.min(entry.cost);
            entry.cost -= taken;
            cost -= taken;
        }
        let mut rebuilt = Log { seen: self.seen, ..Log::default() };
        for entry in entries.iter().filter(|entry| entry.cost > 0) {
            rebuilt.push(entry.at, entry.cost);
        }
        *self = rebuilt;
    }
}

/// How many bytes each number takes before the entries: three times and the sum.
const HEAD: [usize; 4] = [7, 7, 7, 4];
const HEAD_LEN: usize = 25;

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

/// Distance, cost and length of the next entry.
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
    let head = take()?;
    let cost = if head & 1 == 1 { take()? } else { 1 };
    Some((head >> 1, cost, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_packing() {
        let mut log = Log::default();
        let entries = [(5, 1), (5, 3), (200, 1), (9_000_000, 70_000), (1 << 50, 1)];
        for (at, cost) in entries {
            log.push(at, cost);
        }
        let unpacked: Vec<_> = log.entries().map(|entry| (entry.at, entry.cost)).collect();
        assert_eq!(unpacked, entries);
        assert_eq!(log.total(), 70_006);

        assert_eq!(Log::from_bytes(&log.to_bytes()), Some(log.clone()));
        assert_eq!(Log::from_bytes(&log.to_bytes()[1..]), None);

        log.drop_while(|entry, _| entry.at < 200);
        assert_eq!(log.entries().next(), Some(Entry { at: 200, cost: 1 }));
        assert_eq!(log.total(), 70_002);
    }

    #[test]
    fn memory_goes_back_with_the_entries() {
        let mut log = Log::default();
        (0..10_000).for_each(|i| log.push(i * 60_000, 1));
        let full = log.heap_bytes();
        log.drop_while(|entry, _| entry.at < 9_990 * 60_000);
        assert_eq!(log.entries().count(), 10);
        assert!(log.heap_bytes() < full / 100, "{} of {full} bytes", log.heap_bytes());
    }

    #[test]
    fn a_full_log_of_a_busy_minute_takes_under_five_bytes_an_entry() {
        let mut log = Log::default();
        for i in 0..1_000 {
            log.push(1_700_000_000_000_000 + i * 60_000, 1);
        }
        assert!(log.heap_bytes() < 5_000, "{} bytes", log.heap_bytes());
    }
}
