//! A bucket: one cache line with a sequence lock, tags and three cells.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ratekeeper_core::{Cell, CellWord, TatEvaluator};

use super::lines::{Line, SLOTS};
use super::sync::{AtomicU64, fence, pause};

/// Reclaimed slots are only counted as fresh at whole steps of this many microseconds.
const TICK_US: u64 = 1 << 10;

/// What a bucket begins with: a lock bit, the reach in 7 bits, and a sequence number in 24.
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

    /// After a change: the next sequence number. It comes round after 16 million changes. Nobody
    /// mistakes one for another unless he sleeps between two instructions while exactly so many
    /// happen to one bucket.
    #[inline]
    pub(super) fn next(self) -> u32 {
        self.0.wrapping_add(1 << Self::SEQUENCE_SHIFT)
    }

    /// How many buckets further keys of this home may be.
    #[inline]
    pub(super) fn reach(self) -> usize {
        ((self.0 & Self::REACH_MASK) >> Self::REACH_SHIFT) as usize
    }

    pub(super) fn reaching(self, distance: usize) -> Self {
        let reach = self.reach().max(distance) as u32;
        Self(self.0 & !Self::REACH_MASK | reach << Self::REACH_SHIFT)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Bucket<'t>(pub(super) &'t Line);

impl<'t> Bucket<'t> {
    #[inline]
    pub(super) fn header(self) -> Header {
        Header(self.0.header.load(Acquire))
    }

    /// The header, once nobody holds the lock.
    #[inline]
    pub(super) fn unlocked_header(self) -> Header {
        let header = self.header();
        if header.is_locked() { self.wait_until_unlocked() } else { header }
    }

    #[cold]
    fn wait_until_unlocked(self) -> Header {
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
    pub(super) fn try_lock(self, seen: Header) -> bool {
        let header = &self.0.header;
        let locked = header.compare_exchange(seen.0, seen.locked(), Acquire, Relaxed).is_ok();
        // No write to the slots may be seen before the lock is.
        fence(Release);
        locked
    }

    pub(super) fn lock(self) -> Header {
        loop {
            let header = self.unlocked_header();
            if self.try_lock(header) {
                return header;
            }
        }
    }

    #[inline]
    pub(super) fn unlock(self, header: u32) {
        self.0.header.store(header, Release);
    }

    /// Has nothing changed since `seen`, so that what was read meanwhile is of one piece?
    #[inline]
    pub(super) fn is_still(self, seen: Header) -> bool {
        fence(Acquire);
        self.0.header.load(Relaxed) == seen.0
    }

    /// The words of a cell, once it is not busy. They may be of two halves.
    #[inline]
    pub(super) fn slot_words(self, slot: usize) -> [u64; 2] {
        let mut rounds = 0;
        loop {
            let second = self.0.seconds[slot].load(Acquire);
            if !is_busy(second) {
                return [self.0.firsts[slot].load(Acquire), second];
            }
            pause(rounds);
            rounds += 1;
        }
    }

    #[inline]
    pub(super) fn cell(self, slot: usize) -> Cell {
        Cell::from_words(self.slot_words(slot))
    }

    /// The slot of this tag.
    #[inline]
    pub(super) fn find(self, tag: Tag) -> Option<usize> {
        let first = tag.first_slot();
        if self.has(first, tag) { Some(first) } else { self.find_beside(tag) }
    }

    /// A call, and not in line, for the reason that [`Tag::first_slot`] gives.
    #[inline(never)]
    pub(super) fn find_beside(self, tag: Tag) -> Option<usize> {
        (0..SLOTS).find(|slot| self.has(*slot, tag))
    }

    #[inline]
    pub(super) fn has(self, slot: usize, tag: Tag) -> bool {
        self.0.tags[slot].load(Relaxed) == tag.0
    }

    /// The time of the cell of this tag, in the slot where it most likely is.
    #[inline(always)]
    pub(super) fn first_time(self, tag: Tag, rule: TatEvaluator<'_>) -> Option<Time<'t>> {
        self.time_in(tag.first_slot(), tag, rule)
    }

    /// The time of the cell of this tag, in whichever slot it is.
    #[inline]
    pub(super) fn find_time(self, tag: Tag, rule: TatEvaluator<'_>) -> Option<Time<'t>> {
        (0..SLOTS).find_map(|slot| self.time_in(slot, tag, rule))
    }

    /// The time of a cell of this tag, if its second word is what is expected.
    ///
    /// A slot is given to another key in this order: its cell is taken, the tag and the second word are
    /// changed, the first is put. So if the tag is the key's after the first word was read, that was
    /// the key's, or taken.
    #[inline(always)]
    fn time_in(self, slot: usize, tag: Tag, rule: TatEvaluator<'_>) -> Option<Time<'t>> {
        let word = &self.0.firsts[slot];
        let seen = word.load(Acquire);
        let is_it = self.has(slot, tag) && self.0.seconds[slot].load(Relaxed) == rule.second_word();
        is_it.then_some(Time { word, seen })
    }

    /// The counts of this tag, if they are of the window that this first word is of.
    #[inline(always)]
    pub(super) fn find_present_counts(self, tag: Tag, first: u64) -> Option<PresentCounts<'t>> {
        let slot = tag.first_slot();
        let (word, seen) = self.counts_in(slot);
        if !self.has(slot, tag) {
            return self.find_present_counts_beside(tag, first);
        }
        self.is_window(slot, first).then_some(PresentCounts { word, seen })
    }

    #[inline(never)]
    fn find_present_counts_beside(self, tag: Tag, first: u64) -> Option<PresentCounts<'t>> {
        (0..SLOTS).find_map(|slot| {
            let (word, seen) = self.counts_in(slot);
            let is_it = self.has(slot, tag) && self.is_window(slot, first);
            is_it.then_some(PresentCounts { word, seen })
        })
    }

    /// To be read before the tag and the first word.
    #[inline(always)]
    fn counts_in(self, slot: usize) -> (&'t AtomicU64, u64) {
        let word = &self.0.seconds[slot];
        (word, word.load(Acquire))
    }

    #[inline(always)]
    fn is_window(self, slot: usize, first: u64) -> bool {
        self.0.firsts[slot].load(Acquire) == first
    }

    /// The counts of this tag. The second word is read before the tag: should the slot go to another
    /// key, the word is no longer there.
    #[inline]
    pub(super) fn find_counts(self, tag: Tag) -> Option<Counts<'t>> {
        let slot = self.find(tag)?;
        let second = self.0.seconds[slot].load(Acquire);
        let is_it = self.has(slot, tag);
        let words = [self.0.firsts[slot].load(Acquire), second];
        (is_it && are_counts(words)).then_some(Counts { line: self.0, slot, words })
    }

    /// Takes the cell out, so that nobody changes it until [`Bucket::put`]. Only with the lock.
    pub(super) fn take(self, slot: usize) -> Cell {
        loop {
            let words = self.slot_words(slot);
            if !are_counts(words) {
                let first = self.0.firsts[slot].swap(TAKEN, Acquire);
                return Cell::from_words([first, words[1]]);
            }
            if self.take_if_still(slot, words) {
                return Cell::from_words(words);
            }
        }
    }

    /// The same, unless it is no longer what was seen.
    #[inline]
    pub(super) fn take_if_still(self, slot: usize, words: [u64; 2]) -> bool {
        if are_counts(words) {
            return Counts { line: self.0, slot, words }.take();
        }
        if Cell::from_words(words).updatable_word() != Some(CellWord::First) {
            return true; // the lock is enough
        }
        self.0.firsts[slot].compare_exchange(words[0], TAKEN, Acquire, Relaxed).is_ok()
    }

    /// Were the words of one piece when they were read, if nothing has changed that takes the lock?
    #[inline]
    pub(super) fn is_slot_still(self, slot: usize, words: [u64; 2]) -> bool {
        !are_counts(words) || Counts { line: self.0, slot, words }.commit(None)
    }

    /// Writes a cell that was taken: last the word that may be changed alone. Meanwhile that one is
    /// taken, also if it was the other before.
    #[inline]
    pub(super) fn put(self, slot: usize, cell: Cell) {
        let [first, second] = cell.to_words();
        let (first_word, second_word) = (&self.0.firsts[slot], &self.0.seconds[slot]);
        if cell.updatable_word() == Some(CellWord::Second) {
            let was = second_word.load(Relaxed);
            if !is_busy(was) {
                second_word.store(turn_of(was) | BUSY, Relaxed);
            }
            first_word.store(first, Release);
            second_word.store(turn_of(was) | second, Release);
        } else {
            first_word.store(TAKEN, Relaxed);
            second_word.store(second, Release);
            first_word.store(first, Release);
        }
    }

    /// Gives a slot that was found vacant, or was taken, to another key. It is taken until that puts
    /// its cell.
    pub(super) fn assign(self, slot: usize, tag: Tag) {
        self.0.firsts[slot].store(TAKEN, Relaxed);
        self.0.tags[slot].store(tag.0, Release);
    }

    /// Empties a slot that was taken.
    pub(super) fn clear(self, slot: usize) {
        self.put(slot, Cell::EMPTY);
    }

    /// Takes a slot that at `now` nobody has needed for so long, for that tag the best there is. Also
    /// tells since when, and what was in it.
    pub(super) fn take_vacant(
        self,
        tag: Tag,
        now: u64,
        unneeded_us: u64,
    ) -> Option<(usize, u64, Cell)> {
        let slots = [tag.first_slot()].into_iter().chain(0..SLOTS);
        slots.filter(|slot| !self.is_taken(*slot)).find_map(|slot| {
            let words = self.slot_words(slot);
            let cell = Cell::from_words(words);
            let since = free_since(cell);
            let is_vacant = since == 0 || since.saturating_add(unneeded_us) <= now;
            (is_vacant && self.take_if_still(slot, words)).then_some((slot, since, cell))
        })
    }

    /// Does it look as if there were a slot that nobody needs at `now`?
    pub(super) fn seems_to_have_room(self, now: u64) -> bool {
        (0..SLOTS).filter_map(|slot| self.glance(slot)).any(|cell| free_since(cell) <= now)
    }

    /// The slot that is missed least: what is in use there, and of those alike, when it is fresh.
    /// `None` if all are taken.
    pub(super) fn least_missed(self, now: u64) -> Option<(Missed, usize)> {
        let missed = |cell: Cell| (cell.in_use(now), cell.expires_at());
        (0..SLOTS).filter_map(|slot| Some((missed(self.glance(slot)?), slot))).min()
    }

    /// A cell as it looks without the lock and without waiting: perhaps of two halves. `None` if it is
    /// taken.
    fn glance(self, slot: usize) -> Option<Cell> {
        let words = [self.0.firsts[slot].load(Relaxed), self.0.seconds[slot].load(Relaxed)];
        (words[0] != TAKEN && !is_busy(words[1])).then(|| Cell::from_words(words))
    }

    /// How many of its cells matter at `now`.
    pub(super) fn live(self, now: u64) -> usize {
        let is_live = |cell: Cell| cell != Cell::EMPTY && cell.expires_at() > now;
        (0..SLOTS).filter(|slot| is_live(self.cell(*slot))).count()
    }

    fn is_taken(self, slot: usize) -> bool {
        self.0.firsts[slot].load(Relaxed) == TAKEN || is_busy(self.0.seconds[slot].load(Relaxed))
    }
}

/// The first word of a cell that is taken. Whoever takes it for a time finds the limit exceeded, and
/// looks again ([`Time::commit`]).
const TAKEN: u64 = Cell::RESERVED_FIRST_WORD;

/// The second word of a cell of counts that is taken, but for its turn. Whoever takes it for counts
/// finds the limit exceeded, and looks again.
const BUSY: u64 = TURN - 1;

/// Counts have in their 10 highest bits how often they were taken, so that nobody mistakes those of
/// one window for those of another, unless he sleeps between two instructions while exactly 1024
/// windows begin, and the counts are the same.
const TURN: u64 = 1 << 54;

/// Since when nobody has needed the cell: at a whole tick, or 0 if nobody ever has.
fn free_since(cell: Cell) -> u64 {
    match cell {
        Cell::EMPTY => 0,
        cell => cell.expires_at().next_multiple_of(TICK_US),
    }
}

/// Are these the words of a cell of counts that is not taken?
#[inline]
fn are_counts(words: [u64; 2]) -> bool {
    let is_fixed = words[1] & Cell::SECOND_WORD_FIXED != 0;
    let is_loose = Cell::from_words(words).updatable_word() == Some(CellWord::Second);
    is_loose && !is_fixed && words[0] != TAKEN
}

#[inline]
fn is_busy(second: u64) -> bool {
    second | !(TURN - 1) == u64::MAX
}

#[inline]
fn turn_of(second: u64) -> u64 {
    second & !(TURN - 1)
}

/// How much a cell would be missed: what is in use, and when it is fresh.
pub(super) type Missed = (u64, u64);

/// What tells a key from its neighbours: half of its hash. 0 is also the tag of a slot that nobody has
/// had; a key with that tag may find one, and it is as good as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    #[inline]
    pub(super) fn new(hash: u64) -> Self {
        Self(hash as u32)
    }

    /// The slot in which to look first; most keys are there. If there were none, where a check writes
    /// would be known only when the line has come from memory; and until a processor knows where
    /// it writes, it does not go far into the next check, whose line could be on its way meanwhile.
    #[inline(always)]
    pub(super) fn first_slot(self) -> usize {
        ((u64::from(self.0) * SLOTS as u64) >> 32) as usize
    }
}

/// The first word of a cell, as it was found, to be changed without a lock.
pub(super) struct Time<'t> {
    word: &'t AtomicU64,
    seen: u64,
}

impl Time<'_> {
    /// The time, or one that is later than any if the cell is taken.
    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.seen
    }

    /// Replaces the time, if it is still what it was. With nothing to replace it, only tells whether
    /// it was a time.
    ///
    /// Should the slot have gone to another key meanwhile: if because its time had passed, the other
    /// key's time is later. If for want of room, it may be the same by chance, and then the charge is
    /// that key's; the usage of this one was forgotten anyway.
    #[inline(always)]
    pub(super) fn commit(self, next: Option<u64>) -> bool {
        let Some(next) = next else { return self.seen != TAKEN };
        self.word.compare_exchange(self.seen, next, AcqRel, Relaxed).is_ok()
    }
}

/// The second word of a cell of counts, as it was found, to be changed without a lock.
pub(super) struct PresentCounts<'t> {
    word: &'t AtomicU64,
    seen: u64,
}

impl PresentCounts<'_> {
    /// The counts, or more than any limit if the cell is taken.
    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.seen
    }

    /// Replaces the counts, or if there is nothing to replace them with makes sure that they were
    /// those of the window. False, and nothing done, if they have changed since.
    #[inline(always)]
    pub(super) fn commit(self, next: Option<u64>) -> bool {
        match next {
            Some(next) => self.word.compare_exchange(self.seen, next, AcqRel, Relaxed).is_ok(),
            // They were read before the first word, which may have been of another window then.
            None => self.word.load(Relaxed) == self.seen && !is_busy(self.seen),
        }
    }
}

/// A cell of counts, as it was found, to be changed without the lock: it is taken for the two stores
/// in which a new window begins.
pub(super) struct Counts<'t> {
    line: &'t Line,
    slot: usize,
    words: [u64; 2],
}

impl Counts<'_> {
    /// The cell. It may be of two halves until [`Counts::commit`] says otherwise.
    #[inline]
    pub(super) fn cell(&self) -> Cell {
        Cell::from_words(self.words)
    }

    /// Replaces the cell by other counts, or if there is nothing to replace it with makes sure that it
    /// was of one piece. False, and nothing done, if it has changed since it was found.
    #[inline]
    pub(super) fn commit(&self, next: Option<Cell>) -> bool {
        let [first, second] = self.words;
        let Some(next) = next else { return self.counts().commit(None) };
        let [next_first, next_second] = next.to_words();
        if next_first == first {
            return self.counts().commit(Some(turn_of(second) | next_second));
        }
        let taken = self.take();
        if taken {
            Bucket(self.line).put(self.slot, next);
        }
        taken
    }

    #[inline]
    fn take(&self) -> bool {
        self.counts().commit(Some(turn_of(self.words[1]).wrapping_add(TURN) | BUSY))
    }

    #[inline]
    fn counts(&self) -> PresentCounts<'_> {
        PresentCounts { word: &self.line.seconds[self.slot], seen: self.words[1] }
    }
}
