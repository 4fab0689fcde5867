//! A part of the log: a bounded number of records, of which the limit with the most loses its oldest first.

use std::sync::Arc;

use super::record::RefusalRecord;

/// How many records of one key are kept while there is no room.
const OF_KEY_MAX: usize = 16;
/// Limits are distinguished by so many bits of their hashes.
const LIMIT_BITS: u32 = 6;

/// What decides which record is dropped.
#[derive(Clone, Copy)]
struct Tag {
    key_hash: u64,
    limit: u8,
    /// Counts the records.
    number: u64,
}

/// Records, and their tags at the same indices.
#[derive(Default)]
pub(super) struct Ring {
    records: Vec<Arc<RefusalRecord>>,
    /// Contiguous, because they are searched linearly.
    tags: Vec<Tag>,
    added: u64,
}

impl Ring {
    /// Adds a record. Returns the one that it replaces.
    pub(super) fn add(
        &mut self,
        (key_hash, limit_hash): (u64, u64),
        record: Arc<RefusalRecord>,
        capacity: usize,
    ) -> Option<Arc<RefusalRecord>> {
        self.added += 1;
        let tag =
            Tag { key_hash, limit: (limit_hash >> (64 - LIMIT_BITS)) as u8, number: self.added };
        if self.tags.len() < capacity {
            self.tags.push(tag);
            self.records.push(record);
            return None;
        }
        let index = self.replaceable(key_hash)?;
        self.tags[index] = tag;
        Some(std::mem::replace(&mut self.records[index], record))
    }

    /// Drops what exceeds a new capacity.
    pub(super) fn shrink(&mut self, capacity: usize) {
        if self.tags.len() > capacity {
            let mut order: Vec<_> = (0..self.tags.len()).collect();
            order.sort_unstable_by_key(|index| std::cmp::Reverse(self.tags[*index].number));
            order.truncate(capacity);
            self.records = order.iter().map(|index| Arc::clone(&self.records[*index])).collect();
            self.tags = order.iter().map(|index| self.tags[*index]).collect();
        }
    }

    pub(super) fn records(&self) -> &[Arc<RefusalRecord>] {
        &self.records
    }

    /// Returns the oldest record of this key if there are many; otherwise that of the limit with the most.
    fn replaceable(&self, key_hash: u64) -> Option<usize> {
        let of_key = |tag: &Tag| tag.key_hash == key_hash;
        if self.tags.iter().filter(|tag| of_key(tag)).count() >= OF_KEY_MAX {
            return self.oldest(of_key);
        }
        let mut counts = [0_usize; 1 << LIMIT_BITS];
        self.tags.iter().for_each(|tag| counts[usize::from(tag.limit)] += 1);
        let most = (0..counts.len()).max_by_key(|limit| counts[*limit])?;
        self.oldest(|tag| usize::from(tag.limit) == most)
    }

    fn oldest(&self, is_candidate: impl Fn(&Tag) -> bool) -> Option<usize> {
        let candidates = self.tags.iter().enumerate().filter(|(_, tag)| is_candidate(tag));
        candidates.min_by_key(|(_, tag)| tag.number).map(|(index, _)| index)
    }
}
