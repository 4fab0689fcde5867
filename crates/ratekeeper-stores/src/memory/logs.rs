//! The logs of the memory store: found by a handle in the table, guarded by the lock on that cell.
//!
//! A shard's mutex guards only the shelf, never a decision: whoever holds the cell's lock is the
//! only one who asks for its log.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ratekeeper_core::RequestLog;

const SHARDS: usize = 16;
/// How many logs are looked at to give one up.
const SAMPLE: usize = 8;

pub(super) struct Logs {
    shards: [Mutex<Shelf>; SHARDS],
    shard_bytes_max: usize,
}

#[derive(Default)]
struct Shelf {
    logs: Vec<RequestLog>,
    free: Vec<u32>,
    /// The memory of all entries.
    bytes: usize,
    /// Where the next sample begins.
    hand: usize,
    evictions: u64,
}

impl Logs {
    pub(super) fn new(bytes_max: usize) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, shard_bytes_max: bytes_max / SHARDS }
    }

    /// A place for a new log, on the shelf that `hint` picks.
    pub(super) fn add(&self, hint: u64, log: RequestLog) -> u64 {
        let shard = (hint % SHARDS as u64) as usize;
        let mut shelf = self.shelf(shard);
        shelf.bytes += log.heap_bytes();
        let index = match shelf.free.pop() {
            Some(index) => {
                shelf.logs[index as usize] = log;
                index
            }
            None => {
                shelf.logs.push(log);
                (shelf.logs.len() - 1) as u32
            }
        };
        shelf.make_room(self.shard_bytes_max, index);
        u64::from(index) * SHARDS as u64 + shard as u64
    }

    /// Reads or changes the log.
    pub(super) fn with<R>(&self, handle: u64, act: impl FnOnce(&mut RequestLog) -> R) -> R {
        let (shard, index) = Self::place(handle);
        let mut shelf = self.shelf(shard);
        let log = &mut shelf.logs[index];
        let before = log.heap_bytes();
        let answer = act(log);
        let after = log.heap_bytes();
        shelf.bytes = shelf.bytes - before + after;
        if after > before {
            shelf.make_room(self.shard_bytes_max, index as u32);
        }
        answer
    }

    /// Frees the log of a cell that is no more.
    pub(super) fn remove(&self, handle: u64) {
        let (shard, index) = Self::place(handle);
        let mut shelf = self.shelf(shard);
        shelf.clear(index);
        shelf.free.push(index as u32);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let bytes = |shelf: &Shelf| shelf.bytes + shelf.logs.capacity() * size_of::<RequestLog>();
        (0..SHARDS).map(|shard| bytes(&self.shelf(shard))).sum()
    }

    pub(super) fn evictions(&self) -> u64 {
        (0..SHARDS).map(|shard| self.shelf(shard).evictions).sum()
    }

    fn place(handle: u64) -> (usize, usize) {
        ((handle % SHARDS as u64) as usize, (handle / SHARDS as u64) as usize)
    }

    fn shelf(&self, shard: usize) -> MutexGuard<'_, Shelf> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn clear(&mut self, index: usize) {
        let log = std::mem::take(&mut self.logs[index]);
        self.bytes -= log.heap_bytes();
    }

    /// While there is too much, empties the log of a few that is closest to fresh.
    fn make_room(&mut self, bytes_max: usize, but_not: u32) {
        while self.bytes > bytes_max {
            let Some(index) = self.sample(but_not) else {
                return;
            };
            self.clear(index);
            self.evictions += 1;
        }
    }

    fn sample(&mut self, but_not: u32) -> Option<usize> {
        let len = self.logs.len();
        let mut candidates = Vec::with_capacity(SAMPLE);
        for _ in 0..len {
            self.hand = (self.hand + 1) % len;
            if self.hand != but_not as usize && !self.logs[self.hand].is_empty() {
                candidates.push(self.hand);
            }
            if candidates.len() == SAMPLE {
                break;
            }
        }
        candidates.into_iter().min_by_key(|index| self.logs[*index].newest())
    }
}
