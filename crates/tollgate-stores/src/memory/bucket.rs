//! A bucket: one cache line with a sequence lock, tags and three cells.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use tollgate_core::Cell;

use super::sync::{AtomicU64, fence, pause};

/// Four pairs of words: the header and the tags, then three cells. A slot is the number of its
/// pair, from 1 to 3.
pub(super) const PAIRS: usize = 4;
pub(super) const SLOTS: std::ops::Range<usize> = 1..PAIRS;

/// Reclaimed slots are only counted as fresh at whole steps of this many microseconds.
const TICK_US: u64 = 1 << 10;

/// The first word of a bucket: a lock bit, a sequence number, and the reach in the top byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Header(pub(super) u64);

impl Header {
    const REACH_SHIFT: u32 = 56;

    #[inline]
    pub(super) fn is_locked(self) -> bool {
        self.0 & 1 == 1
    }

    #[inline]
    fn locked(self) -> u64 {
        self.0 | 1
    }

    /// After a change: the next sequence number. It has 55 bits, which no counting exhausts.
    #[inline]
    pub(super) fn next(self) -> u64 {
        self.0 + 2
    }

    /// How many buckets further keys of this home may be.
    #[inline]
    pub(super) fn reach(self) -> usize {
        (self.0 >> Self::REACH_SHIFT) as usize
    }

    pub(super) fn reaching(self, distance: usize) -> Self {
        let reach = self.reach().max(distance) as u64;
        Self(self.0 & ((1 << Self::REACH_SHIFT) - 1) | reach << Self::REACH_SHIFT)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Bucket<'t>(pub(super) &'t [[AtomicU64; 2]; PAIRS]);

impl<'t> Bucket<'t> {
    #[inline]
    pub(super) fn header(self) -> Header {
        Header(self.0[0][0].load(Acquire))
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
        let locked = self.0[0][0].compare_exchange(seen.0, seen.locked(), Acquire, Relaxed).is_ok();
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
    pub(super) fn unlock(self, header: u64) {
        self.0[0][0].store(header, Release);
    }

    /// Has nothing changed since `seen`, so that what was read meanwhile is of one piece?
    #[inline]
    pub(super) fn is_still(self, seen: Header) -> bool {
        fence(Acquire);
        self.0[0][0].load(Relaxed) == seen.0
    }

    #[inline]
    fn tags(self) -> &'t AtomicU64 {
        &self.0[0][1]
    }

    #[inline]
    fn words(self, slot: usize) -> &'t [AtomicU64; 2] {
        &self.0[slot % PAIRS] // no slot is 4 or more, and so it need not be checked
    }

    #[inline]
    pub(super) fn slot_words(self, slot: usize) -> [u64; 2] {
        let [first, second] = self.words(slot);
        // Whoever sees the first word of a cell sees its second.
        [first.load(Acquire), second.load(Relaxed)]
    }

    #[inline]
    pub(super) fn cell(self, slot: usize) -> Cell {
        Cell::from_words(self.slot_words(slot))
    }

    /// The slot of this tag.
    #[inline]
    pub(super) fn find(self, tag: Tag) -> Option<usize> {
        let slot = tag.first_in(self.tags().load(Relaxed))?;
        match self.has_lower(slot, tag) {
            true => Some(slot),
            false => self.find_among_alike(tag),
        }
    }

    /// Begins to look for this tag: asks for the bucket.
    #[inline(always)]
    pub(super) fn look(self, tag: Tag) -> Look<'t> {
        Look { bucket: self, tag, tags: self.tags().load(Acquire) }
    }

    /// Another slot has the same upper part.
    #[cold]
    fn find_among_alike(self, tag: Tag) -> Option<usize> {
        let tags = self.tags().load(Relaxed);
        let upper = |slot| tags >> Tag::upper_shift(slot) & Tag::UPPER_MASK;
        let mut slots = SLOTS;
        slots.find(|slot| upper(*slot) == tag.upper() && self.has_lower(*slot, tag))
    }

    #[inline]
    fn has_lower(self, slot: usize, tag: Tag) -> bool {
        (self.words(slot)[0].load(Relaxed) ^ tag.lower()) >> Tag::LOWER_SHIFT == 0
    }

    /// Takes the cell out, so that nobody changes it in its first word, which needs no lock. Until
    /// [`Bucket::put`] nobody finds it. Only with the lock.
    pub(super) fn take(self, slot: usize) -> Cell {
        let [first, second] = self.words(slot);
        Cell::from_words([first.swap(TAKEN, Acquire), second.load(Relaxed)])
    }

    /// The same, unless it is no longer what was seen.
    #[inline]
    pub(super) fn take_if_still(self, slot: usize, [first, second]: [u64; 2]) -> bool {
        if !Cell::from_words([first, second]).is_one_word() {
            return true; // the lock is enough
        }
        self.words(slot)[0].compare_exchange(first, TAKEN, Acquire, Relaxed).is_ok()
    }

    /// Writes a cell that was taken.
    #[inline]
    pub(super) fn put(self, slot: usize, tag: Tag, cell: Cell) {
        let [first, second] = cell.to_words();
        self.words(slot)[1].store(second, Relaxed);
        self.words(slot)[0].store(first | tag.lower(), Release);
    }

    /// Gives a slot that was found vacant, or was taken, to another key. It is taken until that puts
    /// its cell.
    pub(super) fn assign(self, slot: usize, tag: Tag) {
        let [first, second] = self.words(slot);
        first.store(TAKEN, Relaxed);
        self.set_tag(slot, tag);
        second.store(RESERVED, Relaxed);
    }

    fn set_tag(self, slot: usize, tag: Tag) {
        let shift = Tag::upper_shift(slot);
        let others = self.tags().load(Relaxed) & !(Tag::UPPER_MASK << shift);
        self.tags().store(others | tag.upper() << shift, Release);
    }

    /// Empties a slot that was taken.
    pub(super) fn clear(self, slot: usize) {
        self.set_tag(slot, Tag::NONE);
        self.put(slot, Tag::NONE, Cell::FRESH);
    }

    /// Takes a slot that nobody uses at `now`. Also tells since when, and what was in it.
    pub(super) fn take_vacant(self, now: u64) -> Option<(usize, u64, Cell)> {
        let free_since = |cell: Cell| match cell {
            Cell::FRESH => 0,
            cell => cell.fresh_by().next_multiple_of(TICK_US),
        };
        SLOTS.filter(|slot| !self.is_taken(*slot)).find_map(|slot| {
            let words = self.slot_words(slot);
            let cell = Cell::from_words(words);
            let is_vacant = free_since(cell) <= now && self.take_if_still(slot, words);
            is_vacant.then(|| (slot, free_since(cell), cell))
        })
    }

    /// The slot that is missed least: what is in use there, and of those alike, when it is fresh.
    /// `None` if all are taken.
    pub(super) fn least_missed(self, now: u64) -> Option<(Missed, usize)> {
        let missed = |cell: Cell| (cell.in_use(now), cell.fresh_by());
        let slots = SLOTS.filter(|slot| !self.is_taken(*slot));
        slots.map(|slot| (missed(self.cell(slot)), slot)).min()
    }

    fn is_taken(self, slot: usize) -> bool {
        let [first, second] = self.slot_words(slot);
        first == TAKEN && second != 0
    }
}

/// The first word of a cell that is taken. No other is 0 unless the slot is empty: a tag is not.
const TAKEN: u64 = 0;
/// The second word of a slot that waits for its cell.
const RESERVED: u64 = 1;

/// How much a cell would be missed: what is in use, and when it is fresh.
pub(super) type Missed = (u64, u64);

/// What tells a key from its neighbours, in 32 bits, 31 of them from its hash: 11 in the spare bits
/// of its cell's first word, 21 in a word that it shares with the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    const NONE: Tag = Tag(0);
    const LOWER_BITS: u32 = 11;
    const UPPER_BITS: u32 = 32 - Self::LOWER_BITS;
    const UPPER_MASK: u64 = (1 << Self::UPPER_BITS) - 1;
    /// The lowest and the highest bit of each upper part.
    const LOWEST: u64 = 1 | 1 << Self::UPPER_BITS | 1 << (2 * Self::UPPER_BITS);
    const HIGHEST: u64 = Self::LOWEST << (Self::UPPER_BITS - 1);
    /// Where the lower part begins in a cell's first word.
    const LOWER_SHIFT: u32 = 64 - Self::LOWER_BITS;

    #[inline]
    pub(super) fn new(hash: u64) -> Self {
        Self(hash | 1) // never that of an empty slot
    }

    /// The lower part, in its place.
    #[inline]
    fn lower(self) -> u64 {
        self.0 << Self::LOWER_SHIFT
    }

    #[inline]
    fn upper(self) -> u64 {
        self.0 >> Self::LOWER_BITS & Self::UPPER_MASK
    }

    /// Where the upper part of a slot's tag begins in the word that they share.
    fn upper_shift(slot: usize) -> u32 {
        (slot as u32 - 1) * Self::UPPER_BITS
    }

    /// The first slot whose upper part is this tag's. All three are compared at once.
    #[inline]
    fn first_in(self, tags: u64) -> Option<usize> {
        let difference = tags ^ (self.upper() * Self::LOWEST);
        let equal = difference.wrapping_sub(Self::LOWEST) & !difference & Self::HIGHEST;
        // The highest bits are 20, 41 and 62: sixteenths give 1, 2 and 3.
        (equal != 0).then(|| equal.trailing_zeros() as usize >> 4)
    }
}

/// A look at the tags of a bucket, for one of them.
pub(super) struct Look<'t> {
    bucket: Bucket<'t>,
    tag: Tag,
    tags: u64,
}

/// The first word of a cell, as it was found, to be changed without a lock.
pub(super) struct Word<'t> {
    word: &'t AtomicU64,
    time: u64,
    tag: Tag,
}

impl<'t> Look<'t> {
    /// The cell of that tag, if its second word is the expected one.
    ///
    /// A slot is given to another key in this order: its first word is taken, the tags and the
    /// second word are changed, the first is put. So if the tags are the same before and after, the
    /// first word was that of the key.
    #[inline(always)]
    pub(super) fn find(&self, expected: u64) -> Option<Word<'t>> {
        let slot = self.tag.first_in(self.tags)?;
        let [word, second] = self.bucket.words(slot);
        let time = word.load(Acquire) ^ self.tag.lower();
        let is_it = time >> Tag::LOWER_SHIFT == 0
            && second.load(Relaxed) == expected
            && self.bucket.tags().load(Relaxed) == self.tags;
        is_it.then_some(Word { word, time, tag: self.tag })
    }
}

impl Word<'_> {
    #[inline(always)]
    pub(super) fn time(&self) -> u64 {
        self.time
    }

    /// Replaces the time, if it is still what it was, or with nothing to replace it does nothing.
    /// Should the slot have gone to another key and be at the very same microsecond with the same
    /// lower tag, it would be that key's time; nobody will see that happen.
    #[inline(always)]
    pub(super) fn commit(self, next: Option<u64>) -> bool {
        let Some(next) = next else { return true };
        let lower = self.tag.lower();
        self.word.compare_exchange(self.time | lower, next | lower, AcqRel, Relaxed).is_ok()
    }
}
