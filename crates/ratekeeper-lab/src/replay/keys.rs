//! What happened to each key of a limit, for a bounded number of keys.

use hashbrown::HashTable;

use super::demand::KeyDemand;

/// The keys of a limit.
#[derive(Debug)]
pub(super) struct KeyTable {
    slots: HashTable<u32>,
    keys: Vec<KeyStats>,
    /// The texts of the keys, one after the other.
    texts: Vec<u8>,
    keys_max: usize,
    /// Requests of keys for which there was no room.
    pub(super) unlisted: u64,
}

/// What happened to a key.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyStats {
    hash: u64,
    text_start: u64,
    text_length: u32,
    pub(super) requests: u64,
    /// Refused by this limit, or in shadow mode would have been.
    pub(super) refused: u64,
    pub(super) first_refused_us: u64,
    pub(super) last_refused_us: u64,
    /// Seconds in which a request was refused.
    pub(super) refused_secs: u64,
    /// Requests that the other policy decided otherwise.
    pub(super) changed: u64,
    pub(super) demand: KeyDemand,
}

impl KeyStats {
    pub(super) fn refuse(&mut self, at_us: u64) {
        if self.refused == 0 {
            self.first_refused_us = at_us;
        }
        let is_same_second =
            self.refused > 0 && self.last_refused_us / 1_000_000 == at_us / 1_000_000;
        self.refused_secs += u64::from(!is_same_second);
        self.refused += 1;
        self.last_refused_us = at_us;
    }
}

impl KeyTable {
    pub(super) fn new(keys_max: usize) -> Self {
        Self { slots: HashTable::new(), keys: Vec::new(), texts: Vec::new(), keys_max, unlisted: 0 }
    }

    /// Returns the index of a key, with which it can be found again; `None` if there is no room.
    pub(super) fn find_or_add(&mut self, key: &[u8], hash: u64) -> Option<usize> {
        let Self { slots, keys, texts, .. } = self;
        let is_key = |index: &u32| {
            let stats = &keys[*index as usize];
            stats.hash == hash && text_of(texts, stats) == key
        };
        if let Some(index) = slots.find(hash, is_key) {
            return Some(*index as usize);
        }
        if keys.len() >= self.keys_max {
            self.unlisted += 1;
            return None;
        }
        let index = keys.len();
        slots.insert_unique(hash, index as u32, |index| keys[*index as usize].hash);
        let (text_start, text_length) = (texts.len() as u64, key.len() as u32);
        keys.push(KeyStats { hash, text_start, text_length, ..KeyStats::default() });
        texts.extend_from_slice(key);
        Some(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut KeyStats {
        &mut self.keys[index]
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the text of each key, and what happened to it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &KeyStats)> {
        self.keys.iter().map(|stats| (text_of(&self.texts, stats), stats))
    }
}

fn text_of<'t>(texts: &'t [u8], stats: &KeyStats) -> &'t [u8] {
    let start = stats.text_start as usize;
    &texts[start..start + stats.text_length as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_without_room_are_counted_and_not_kept() {
        let mut table = KeyTable::new(2);
        // The hashes collide.
        let indices = ["a", "b", "c", "a", "c"].map(|key| table.find_or_add(key.as_bytes(), 7));
        assert_eq!(indices, [Some(0), Some(1), None, Some(0), None]);
        assert_eq!((table.len(), table.unlisted), (2, 2));
        let keys: Vec<_> = table.iter().map(|(key, _)| key.to_vec()).collect();
        assert_eq!(keys, [b"a", b"b"]);
    }

    #[test]
    fn refused_seconds_are_counted_once() {
        let mut stats = KeyStats::default();
        [5, 6, 1_000_000, 1_999_999, 5_000_000].iter().for_each(|at_us| stats.refuse(*at_us));
        assert_eq!((stats.refused, stats.refused_secs), (5, 3));
        assert_eq!((stats.first_refused_us, stats.last_refused_us), (5, 5_000_000));
    }
}
