//! The logs of the memory store: referred to by a handle in the table, guarded by the lock of that
//! line.
//!
//! A shard's mutex guards only its list of logs, not a decision: only the thread that holds the lock of
//! the line uses the log.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ratekeeper_core::RequestLog;

const SHARDS: usize = 16;
/// How many logs are compared to evict one.
const SAMPLE: usize = 8;

pub(super) struct Logs {
    shards: [Mutex<LogShard>; SHARDS],
    shard_bytes_max: usize,
}

#[derive(Default)]
struct LogShard {
    logs: Vec<RequestLog>,
    free: Vec<u32>,
    /// The memory of all entries.
    bytes: usize,
    /// Where the next sample begins.
    sample_start: usize,
    evictions: u64,
}

impl Logs {
    pub(super) fn new(bytes_max: usize) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, shard_bytes_max: bytes_max / SHARDS }
    }

    /// Adds a log to the shard that `hint` selects. Returns its handle.
    pub(super) fn add(&self, hint: u64, log: RequestLog) -> u64 {
        let shard = (hint % SHARDS as u64) as usize;
        let mut shard_logs = self.shard_logs(shard);
        shard_logs.bytes += log.heap_bytes();
        let index = match shard_logs.free.pop() {
            Some(index) => {
                shard_logs.logs[index as usize] = log;
                index
            }
            None => {
                shard_logs.logs.push(log);
                (shard_logs.logs.len() - 1) as u32
            }
        };
        shard_logs.evict_down_to(self.shard_bytes_max, index);
        u64::from(index) * SHARDS as u64 + shard as u64
    }

    /// Reads or changes the log.
    pub(super) fn with<R>(&self, handle: u64, act: impl FnOnce(&mut RequestLog) -> R) -> R {
        let (shard, index) = Self::locate(handle);
        let mut shard_logs = self.shard_logs(shard);
        let log = &mut shard_logs.logs[index];
        let before = log.heap_bytes();
        let result = act(log);
        let after = log.heap_bytes();
        shard_logs.bytes = shard_logs.bytes - before + after;
        if after > before {
            shard_logs.evict_down_to(self.shard_bytes_max, index as u32);
        }
        result
    }

    /// Frees a log.
    pub(super) fn remove(&self, handle: u64) {
        let (shard, index) = Self::locate(handle);
        let mut shard_logs = self.shard_logs(shard);
        shard_logs.clear(index);
        shard_logs.free.push(index as u32);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let bytes = |shard_logs: &LogShard| {
            shard_logs.bytes + shard_logs.logs.capacity() * size_of::<RequestLog>()
        };
        (0..SHARDS).map(|shard| bytes(&self.shard_logs(shard))).sum()
    }

    pub(super) fn evictions(&self) -> u64 {
        (0..SHARDS).map(|shard| self.shard_logs(shard).evictions).sum()
    }

    fn locate(handle: u64) -> (usize, usize) {
        ((handle % SHARDS as u64) as usize, (handle / SHARDS as u64) as usize)
    }

    fn shard_logs(&self, shard: usize) -> MutexGuard<'_, LogShard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogShard {
    fn clear(&mut self, index: usize) {
        let log = std::mem::take(&mut self.logs[index]);
        self.bytes -= log.heap_bytes();
    }

    /// While there is too much, empties one of a few logs: the one whose newest entry is the oldest.
    fn evict_down_to(&mut self, bytes_max: usize, except: u32) {
        while self.bytes > bytes_max {
            let Some(index) = self.sample(except) else {
                return;
            };
            self.clear(index);
            self.evictions += 1;
        }
    }

    fn sample(&mut self, except: u32) -> Option<usize> {
        let len = self.logs.len();
        let mut candidates = Vec::with_capacity(SAMPLE);
        for _ in 0..len {
            self.sample_start = (self.sample_start + 1) % len;
            if self.sample_start != except as usize && !self.logs[self.sample_start].is_empty() {
                candidates.push(self.sample_start);
            }
            if candidates.len() == SAMPLE {
                break;
            }
        }
        candidates.into_iter().min_by_key(|index| self.logs[*index].newest())
    }
}
