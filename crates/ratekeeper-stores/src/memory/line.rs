//! A line of the table: one cache line with a sequence lock, three tags and three slots.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ratekeeper_core::Cell;
use ratekeeper_core::algorithm::CellWord;

use super::slot::{SlotState, TAKEN, generation, is_busy, is_window_cell, next_busy, same_busy};
use super::sync::{AtomicU32, AtomicU64, fence, pause};

/// How many slots a line has.
pub(super) const SLOTS: usize = 3;

/// A cache line: its header, the tags of its keys, and the two words of each slot.
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) header: AtomicU32,
    pub(super) tags: [AtomicU32; SLOTS],
    pub(super) firsts: [AtomicU64; SLOTS],
    pub(super) seconds: [AtomicU64; SLOTS],
}

/// The header of a line: a lock bit, the reach in 7 bits, and a sequence number in 24.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Header(pub(super) u32);

impl Header {
    const REACH_SHIFT: u32 = 1;
    const REACH_MASK: u32 = 127 << Self::REACH_SHIFT;
    const SEQUENCE_SHIFT: u32 = 8;

    #[inline]
    pub(super) fn is_locked(self) -> bool {
        self.0 & 1 == 1
    }

    #[inline]
    fn locked(self) -> u32 {
        self.0 | 1
    }

    /// The header after a change, with the next sequence number. It wraps around after 16 million
    /// changes; a reader is misled only if it is suspended between two instructions while exactly
    /// that many happen to one line.
    #[inline]
    pub(super) fn next(self) -> u32 {
        self.0.wrapping_add(1 << Self::SEQUENCE_SHIFT)
    }

    /// How many lines beyond this one keys of this home may be.
    #[inline]
    pub(super) fn reach(self) -> usize {
        ((self.0 & Self::REACH_MASK) >> Self::REACH_SHIFT) as usize
    }

    pub(super) fn reaching(self, distance: usize) -> Self {
        let reach = self.reach().max(distance) as u32;
        Self(self.0 & !Self::REACH_MASK | reach << Self::REACH_SHIFT)
    }
}

/// What distinguishes a key from others in its line: half of its hash. 0 is also the tag of a slot
/// that was never used; a key with that tag may find such a slot, and it is as good as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    #[inline]
    pub(super) fn new(hash: u64) -> Self {
        Self(hash as u32)
    }

    /// The slot to search first; most keys are there. Without one, the address that a check writes
    /// to would be known only when the line has come from memory. Until a processor knows that
    /// address, it does not go far into the next check, whose line could be loaded meanwhile.
    #[inline(always)]
    pub(super) fn first_slot(self) -> usize {
        ((u64::from(self.0) * SLOTS as u64) >> 32) as usize
    }
}

/// The lock.
impl Line {
    #[inline]
    pub(super) fn header(&self) -> Header {
        Header(self.header.load(Acquire))
    }

    /// The header, once the line is not locked.
    #[inline]
    pub(super) fn unlocked_header(&self) -> Header {
        let header = self.header();
        if header.is_locked() { self.wait_until_unlocked() } else { header }
    }

    #[cold]
    fn wait_until_unlocked(&self) -> Header {
        let mut rounds = 0;
        loop {
            let header = self.header();
            if !header.is_locked() {
                return header;
            }
            pause(rounds);
            rounds += 1;
        }
    }

    #[inline]
    pub(super) fn try_lock(&self, seen: Header) -> bool {
        let header = &self.header;
        let locked = header.compare_exchange(seen.0, seen.locked(), Acquire, Relaxed).is_ok();
        // No write to the slots may be visible before the lock is.
        fence(Release);
        locked
    }

    pub(super) fn lock(&self) -> Header {
        loop {
            let header = self.unlocked_header();
            if self.try_lock(header) {
                return header;
            }
        }
    }

    #[inline]
    pub(super) fn unlock(&self, header: u32) {
        self.header.store(header, Release);
    }

    /// Returns whether nothing has changed since `seen`, so that what was read meanwhile is
    /// consistent.
    #[inline]
    pub(super) fn is_unchanged(&self, seen: Header) -> bool {
        fence(Acquire);
        self.header.load(Relaxed) == seen.0
    }
}

/// Lookups.
impl Line {
    /// The slot of this tag.
    #[inline]
    pub(super) fn find(&self, tag: Tag) -> Option<usize> {
        let first = tag.first_slot();
        if self.has(first, tag) { Some(first) } else { self.find_in_others(tag) }
    }

    /// Not inlined, for the reason that [`Tag::first_slot`] gives.
    #[inline(never)]
    pub(super) fn find_in_others(&self, tag: Tag) -> Option<usize> {
        (0..SLOTS).find(|slot| self.has(*slot, tag))
    }

    #[inline]
    pub(super) fn has(&self, slot: usize, tag: Tag) -> bool {
        self.tags[slot].load(Relaxed) == tag.0
    }

    /// The updated word of a slot, if it is that of this tag's cell and the other word has this value.
    ///
    /// A slot is given to another key in this order: its cell is taken, the tag and the other word
    /// are changed, the updated word is written. So the updated word is read first here: if the tag
    /// is the key's afterwards, the word was the key's too, or a marker.
    #[inline(always)]
    pub(super) fn word_in(
        &self,
        slot: usize,
        tag: Tag,
        updated: CellWord,
        other: u64,
    ) -> Option<LoadedWord<'_>> {
        let (first, second) = (&self.firsts[slot], &self.seconds[slot]);
        match updated {
            CellWord::First => {
                let seen = first.load(Acquire);
                let is_match = self.has(slot, tag) && second.load(Relaxed) == other;
                is_match.then_some(LoadedWord { word: first, seen })
            }
            CellWord::Second => {
                let seen = second.load(Acquire);
                let is_match = self.has(slot, tag) && first.load(Acquire) == other;
                is_match.then_some(LoadedWord { word: second, seen })
            }
        }
    }

    /// The updated word of this tag's cell, in whichever slot it is, if the other word has this value.
    #[inline]
    pub(super) fn find_word(
        &self,
        tag: Tag,
        updated: CellWord,
        other: u64,
    ) -> Option<LoadedWord<'_>> {
        (0..SLOTS).find_map(|slot| self.word_in(slot, tag, updated, other))
    }

    /// The window cell of this tag. The second word is read before the tag: when the slot is given
    /// to another key, that word changes first.
    #[inline]
    pub(super) fn find_window_cell(&self, tag: Tag) -> Option<LoadedWindowCell<'_>> {
        let slot = self.find(tag)?;
        let second = self.seconds[slot].load(Acquire);
        let is_match = self.has(slot, tag);
        let words = [self.firsts[slot].load(Acquire), second];
        (is_match && is_window_cell(words)).then_some(LoadedWindowCell { line: self, slot, words })
    }

    /// The words of a slot, once it is not busy. They may be torn: of two states.
    #[inline]
    pub(super) fn words(&self, slot: usize) -> [u64; 2] {
        let mut rounds = 0;
        loop {
            let second = self.seconds[slot].load(Acquire);
            if !is_busy(second) {
                return [self.firsts[slot].load(Acquire), second];
            }
            pause(rounds);
            rounds += 1;
        }
    }

    /// Returns whether the words were consistent when they were read, if nothing has changed since
    /// that needs the lock.
    #[inline]
    pub(super) fn is_consistent(&self, slot: usize, words: [u64; 2]) -> bool {
        !is_window_cell(words) || LoadedWindowCell { line: self, slot, words }.commit(None)
    }
}

/// Changes, which need the lock.
impl Line {
    /// Takes the state out, so that no other thread changes it until [`Line::put`].
    pub(super) fn take(&self, slot: usize) -> SlotState {
        loop {
            let words = self.words(slot);
            if !is_window_cell(words) {
                let first = self.firsts[slot].swap(TAKEN, Acquire);
                return SlotState::from_words([first, words[1]]);
            }
            if self.take_if_unchanged(slot, words) {
                return SlotState::from_words(words);
            }
        }
    }

    /// [`Line::take`], unless the state has changed since it was read.
    #[inline]
    pub(super) fn take_if_unchanged(&self, slot: usize, words: [u64; 2]) -> bool {
        if is_window_cell(words) {
            return LoadedWindowCell { line: self, slot, words }.take();
        }
        if SlotState::from_words(words).updatable_word() != Some(CellWord::First) {
            return true; // the lock is enough
        }
        self.firsts[slot].compare_exchange(words[0], TAKEN, Acquire, Relaxed).is_ok()
    }

    /// Writes a state that was taken, last the word that may be changed alone. Until then that word
    /// is marked as taken, also if it was the other one before.
    #[inline]
    pub(super) fn put(&self, slot: usize, state: SlotState) {
        let [first, second] = state.to_words();
        let (first_word, second_word) = (&self.firsts[slot], &self.seconds[slot]);
        if state.updatable_word() == Some(CellWord::Second) {
            let before = second_word.load(Relaxed);
            if !is_busy(before) {
                second_word.store(same_busy(before), Relaxed);
            }
            first_word.store(first, Release);
            second_word.store(generation(before) | second, Release);
        } else {
            first_word.store(TAKEN, Relaxed);
            second_word.store(second, Release);
            first_word.store(first, Release);
        }
    }

    /// Gives a slot that was taken to another key. It stays taken until [`Line::put`].
    pub(super) fn assign(&self, slot: usize, tag: Tag) {
        self.firsts[slot].store(TAKEN, Relaxed);
        self.tags[slot].store(tag.0, Release);
    }

    /// Empties a slot that was taken.
    pub(super) fn clear(&self, slot: usize) {
        self.put(slot, SlotState::EMPTY);
    }

    /// Takes a slot that at `now` has been free for `free_us`, preferably the first slot of this
    /// tag. Returns the slot, since when it is free, and what was in it.
    pub(super) fn take_free(
        &self,
        tag: Tag,
        now: u64,
        free_us: u64,
    ) -> Option<(usize, u64, SlotState)> {
        let slots = [tag.first_slot()].into_iter().chain(0..SLOTS);
        slots.filter(|slot| !self.is_taken(*slot)).find_map(|slot| {
            let words = self.words(slot);
            let state = SlotState::from_words(words);
            let since = state.free_since();
            let is_free = since == 0 || since.saturating_add(free_us) <= now;
            (is_free && self.take_if_unchanged(slot, words)).then_some((slot, since, state))
        })
    }
}

/// What the table needs to know to choose a slot, read without the lock.
impl Line {
    /// Returns whether a slot seems to be free at `now`.
    pub(super) fn may_have_free_slot(&self, now: u64) -> bool {
        (0..SLOTS).filter_map(|slot| self.read_unlocked(slot)).any(|s| s.free_since() <= now)
    }

    /// The slot to evict before others: the one with the least usage and, of equals, the one that
    /// expires first. `None` if all are taken.
    pub(super) fn eviction_candidate(&self, now: u64) -> Option<(EvictionCost, usize)> {
        let cost = |state: SlotState| (state.usage(now), state.expires_at());
        (0..SLOTS).filter_map(|slot| Some((cost(self.read_unlocked(slot)?), slot))).min()
    }

    /// How many of its slots hold state that matters at `now`.
    pub(super) fn live_keys(&self, now: u64) -> usize {
        let is_live = |state: SlotState| state != SlotState::EMPTY && state.expires_at() > now;
        (0..SLOTS).filter(|slot| is_live(SlotState::from_words(self.words(*slot)))).count()
    }

    /// A state without the lock and without waiting, possibly torn. `None` if it is taken.
    fn read_unlocked(&self, slot: usize) -> Option<SlotState> {
        let words = [self.firsts[slot].load(Relaxed), self.seconds[slot].load(Relaxed)];
        (words[0] != TAKEN && !is_busy(words[1])).then(|| SlotState::from_words(words))
    }

    fn is_taken(&self, slot: usize) -> bool {
        self.firsts[slot].load(Relaxed) == TAKEN || is_busy(self.seconds[slot].load(Relaxed))
    }
}

/// What is lost with a slot: its usage, and when it expires.
pub(super) type EvictionCost = (u64, u64);

/// The word of a cell that a check updates alone, as it was read.
pub(super) struct LoadedWord<'t> {
    word: &'t AtomicU64,
    seen: u64,
}

impl LoadedWord<'_> {
    /// The word. If it is a marker, it exceeds every limit.
    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.seen
    }

    /// Replaces the word. Without a replacement, makes sure that it was the word of that cell.
    /// Returns `false`, and does nothing, if it has changed since it was read.
    ///
    /// The slot may belong to another key by now. If the first key's TAT had passed, the other key's
    /// is later, and the swap fails. If it was evicted, the two may be equal by chance; then the other
    /// key is charged, and the usage of the first one was lost anyway.
    #[inline(always)]
    pub(super) fn commit(self, updated: CellWord, next: Option<u64>) -> bool {
        match (next, updated) {
            (Some(next), _) => self.word.compare_exchange(self.seen, next, AcqRel, Relaxed).is_ok(),
            (None, CellWord::First) => self.seen != TAKEN,
            // It was read before the first word, which may have been of another window then.
            (None, CellWord::Second) => self.word.load(Relaxed) == self.seen && !is_busy(self.seen),
        }
    }
}

/// A window cell as it was read, to be changed without the lock: it is marked as busy for the two
/// stores in which a new window begins.
pub(super) struct LoadedWindowCell<'t> {
    line: &'t Line,
    slot: usize,
    words: [u64; 2],
}

impl LoadedWindowCell<'_> {
    /// The cell. It may be torn unless [`LoadedWindowCell::commit`] succeeds.
    #[inline]
    pub(super) fn cell(&self) -> Cell {
        SlotState::from_words(self.words).cell()
    }

    /// Replaces the cell by another window cell. Without a replacement, makes sure that it was
    /// consistent. Returns `false`, and does nothing, if it has changed since it was read.
    #[inline]
    pub(super) fn commit(&self, next: Option<Cell>) -> bool {
        let [first, second] = self.words;
        let Some(next) = next else { return self.second_word().commit(CellWord::Second, None) };
        let [next_first, next_second] = next.to_words();
        if next_first == first {
            let next = generation(second) | next_second;
            return self.second_word().commit(CellWord::Second, Some(next));
        }
        let is_taken = self.take();
        if is_taken {
            self.line.put(self.slot, next.into());
        }
        is_taken
    }

    #[inline]
    fn take(&self) -> bool {
        self.second_word().commit(CellWord::Second, Some(next_busy(self.words[1])))
    }

    #[inline]
    fn second_word(&self) -> LoadedWord<'_> {
        let (word, seen) = (&self.line.seconds[self.slot], self.words[1]);
        LoadedWord { word, seen }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ratekeeper_core::{Cost, Limit, Micros};

    use super::super::line_array::LineArray;
    use super::*;

    fn cell(limit: &Limit, cost: u64, now: u64) -> Cell {
        let mut cell = Cell::EMPTY;
        let evaluator = limit.cell_evaluator().unwrap();
        let _ = evaluator.charge(&mut cell, Cost::new(cost).unwrap(), u64::MAX, Micros::new(now));
        cell
    }

    #[test]
    fn a_header_keeps_lock_reach_and_sequence_apart() {
        let mut header = Header(0);
        for (distance, reach) in [(0, 0), (3, 3), (1, 3), (64, 64), (127, 127), (2, 127)] {
            header = header.reaching(distance);
            assert_eq!(header.reach(), reach);
            let next = Header(header.next());
            assert!(next != header && next.reach() == reach && !next.is_locked());
            assert!(Header(header.locked()).is_locked());
            assert_eq!(Header(header.locked()).reach(), reach);
        }
        let last = Header(!1 & !Header::REACH_MASK);
        assert_eq!(last.next(), 0, "the sequence wraps around and touches no other bit");
    }

    #[test]
    fn first_slots_are_evenly_spread() {
        let mut counts = [0; SLOTS];
        for i in 0..30_000u32 {
            counts[Tag(i.wrapping_mul(0x9e37_79b9)).first_slot()] += 1;
        }
        assert!(counts.iter().all(|n| (9_900..10_100).contains(n)), "{counts:?}");
        assert_eq!(Tag(0).first_slot(), 0);
        assert_eq!(Tag(u32::MAX).first_slot(), SLOTS - 1);
    }

    #[test]
    fn a_word_is_found_by_its_tag_and_its_other_word_and_swapped_once() {
        let bucket = Limit::token_bucket("10/s").unwrap();
        let window = Limit::fixed_window("10/s").unwrap();
        for (limit, updated) in [(&bucket, CellWord::First), (&window, CellWord::Second)] {
            let lines = LineArray::new(1);
            let (line, tag) = (&lines[0], Tag(7));
            let words = cell(limit, 3, 5).to_words();
            line.assign(1, tag);
            assert!(line.is_taken(1));
            line.put(1, SlotState::from_words(words));
            assert!(!line.is_taken(1));
            let (seen, other) = match updated {
                CellWord::First => (words[0], words[1]),
                CellWord::Second => (words[1], words[0]),
            };
            let find = || line.find_word(tag, updated, other);
            assert_eq!(find().unwrap().get(), seen);
            assert!(line.find_word(Tag(8), updated, other).is_none());
            assert!(line.find_word(tag, updated, other + 1).is_none());
            let (first, second) = (find().unwrap(), find().unwrap());
            let unchanged = find().unwrap();
            assert!(find().unwrap().commit(updated, None));
            assert!(first.commit(updated, Some(seen + 1)));
            assert!(!second.commit(updated, Some(seen + 1)), "it has changed");
            let is_noticed = !unchanged.commit(updated, None);
            assert_eq!(is_noticed, updated == CellWord::Second);
            // While it is taken, no commit succeeds.
            let state = line.take(1);
            let other_now = match updated {
                CellWord::First => state.to_words()[1],
                CellWord::Second => state.to_words()[0],
            };
            let taken = line.find_word(tag, updated, other_now).unwrap();
            assert!(!taken.commit(updated, None), "a marker is not a word");
            line.put(1, state);
            assert_eq!(line.find_word(tag, updated, other).unwrap().get() & (seen + 1), seen + 1);
        }
    }

    #[test]
    fn every_new_window_has_another_generation() {
        let window = Limit::fixed_window("10/ms").unwrap();
        let lines = LineArray::new(1);
        let (line, tag) = (&lines[0], Tag(7));
        line.assign(tag.first_slot(), tag);
        line.put(tag.first_slot(), cell(&window, 3, 0).into());
        let mut generations = std::collections::HashSet::new();
        for i in 1..=1_024 {
            let seen = line.find_window_cell(tag).unwrap();
            let late = line.find_window_cell(tag).unwrap();
            assert!(generations.insert(generation(seen.words[1])), "in window {i}");
            let next = cell(&window, 3, i * 1_000);
            assert!(seen.commit(Some(next)));
            assert!(!late.commit(Some(next)) && !late.commit(None));
            assert_eq!(line.find_window_cell(tag).unwrap().cell(), next);
        }
    }

    #[test]
    fn free_slots_and_eviction_candidates_are_chosen_by_expiry_and_usage() {
        let limit = Limit::fixed_window("10/ms").unwrap();
        let lines = LineArray::new(1);
        let line = &lines[0];
        for (slot, cost) in [(0, 5), (1, 2), (2, 9)] {
            line.assign(slot, Tag(slot as u32 + 1));
            line.put(slot, cell(&limit, cost, 10_000).into());
        }
        assert_eq!(line.live_keys(10_500), 3);
        assert!(!line.may_have_free_slot(10_500));
        assert_eq!(line.take_free(Tag(9), 10_500, 0), None);
        assert_eq!(line.eviction_candidate(10_500).unwrap().1, 1);
        let free_since = 11 * 1_024;
        assert!(line.may_have_free_slot(free_since) && line.live_keys(free_since) == 0);
        assert_eq!(line.take_free(Tag(9), free_since, 1), None, "not for that long");
        let (slot, since, _) = line.take_free(Tag(u32::MAX), free_since + 1, 1).unwrap();
        assert_eq!((slot, since), (SLOTS - 1, free_since), "the first slot of the tag");
        assert_eq!(line.eviction_candidate(10_500).unwrap().1, 1);
        line.clear(slot);
        assert_eq!(line.take_free(Tag(9), 0, 0).unwrap().0, slot, "an empty slot is always free");
    }
}
