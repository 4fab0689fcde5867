//! The table: the state of keys by address, in a fixed number of lines of one cache line each.
//!
//! A line is a header, three tags and three slots ([`Line`]). The header is a sequence lock: a reader
//! reads the header, reads, and checks that the header is still the same; a writer sets the lock bit
//! of the header, writes, and releases it with the next sequence number. So a check that changes nothing writes nothing,
//! and one that does costs one compare-and-swap, in the cache line it needs anyway.
//!
//! Most checks change one word of a cell ([`SlotState::updatable_word`]): the TAT of a bucket, the
//! counts of a window cell while the window lasts. That is done without the lock, by a
//! compare-and-swap of that word. Before such a cell is changed or replaced under the lock, it is
//! taken ([`Line::take`]).
//!
//! A key is in its home line or, if that was full, in one of the next; the header of the home knows
//! how far ([`Header::reach`]). Within a line it has a slot that is searched first ([`Tag::first_slot`]).
//! Keys never move. A key is inserted only with its home locked, so two threads cannot insert the same
//! one.
//!
//! Nothing is ever swept. A slot whose state has expired is free for the next key, preferably if it
//! expired a while ago ([`RECENT_US`]), since its key may come again. Only when all lines in reach are
//! full of live state is a key evicted, the one with the least usage, and counted.
//!
//! A thread waits for home lines only, in ascending order; any other line is tried and, if it is
//! locked, skipped. So threads cannot deadlock.

use std::sync::atomic::{AtomicU64 as Counter, Ordering};

use ratekeeper_core::algorithm::CellWord;

use super::line::{Header, Line, LoadedWindowCell, LoadedWord, SLOTS, Tag};
use super::line_array::{LineArray, prefetch};
use super::slot::{Displaced, SlotState};
use super::sync::pause;

/// How many lines beyond its home a key may be. At the load below, the chance that any key of a table
/// finds no slot this near is less than one in ten thousand.
const REACH_MAX: usize = if cfg!(loom) { 1 } else { 64 };
/// At capacity, five slots of nine are used: 38.4 bytes a key.
const LOAD: (usize, usize) = (5, 9);

/// How many lines beyond the home are searched for a slot that was not used recently.
const NEAR_MAX: usize = if cfg!(loom) { 1 } else { 2 };
/// A key whose state expired less than this long ago, about a second, is likely to come again. Not in
/// the models, in which keys have to meet.
const RECENT_US: u64 = if cfg!(loom) { 0 } else { 1 << 20 };
/// How often the lock of a line other than the home is tried.
const TRIES: u32 = 100;

pub(super) struct Table {
    /// The last homes reach past the end, so there are a few more lines than homes.
    lines: LineArray,
    homes: usize,
    /// No state that was dropped mattered after this time. A key without state is not older.
    floor: Counter,
    evictions: Counter,
}

/// The hash of a key. Its upper half gives the home line, its lower half is the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    hash: u64,
}

impl Address {
    #[inline]
    pub(super) fn new(hash: u64) -> Self {
        Self { hash }
    }

    #[inline]
    pub(super) fn tag(self) -> Tag {
        Tag::new(self.hash)
    }

    /// Bits to choose by that are independent of the home and, within a line, of the tag.
    pub(super) fn spread(self) -> u64 {
        self.hash >> 24
    }
}

/// The result of a search: the home line, its header at the time, and the slot if there is one.
struct Lookup<'t> {
    home: &'t Line,
    header: Header,
    slot: Option<LoadedSlot<'t>>,
}

/// A slot as it was read, without the lock.
pub(super) struct LoadedSlot<'t> {
    line: &'t Line,
    header: Header,
    slot: usize,
    words: [u64; 2],
}

impl<'t> LoadedSlot<'t> {
    #[inline]
    fn find(line: &'t Line, header: Header, tag: Tag) -> Option<Self> {
        let slot = line.find(tag)?;
        Some(Self { line, header, slot, words: line.words(slot) })
    }

    /// The state. It may be torn unless [`LoadedSlot::commit`] succeeds.
    #[inline]
    pub(super) fn state(&self) -> SlotState {
        SlotState::from_words(self.words)
    }

    /// Replaces the state. Without a replacement, makes sure that it was consistent. Returns
    /// `false`, and does nothing, if the line has changed since the state was read.
    #[inline]
    pub(super) fn commit(&self, next: Option<SlotState>) -> bool {
        let Some(next) = next else {
            return self.line.is_unchanged(self.header)
                && self.line.is_consistent(self.slot, self.words);
        };
        if !self.line.try_lock(self.header) {
            return false;
        }
        let is_taken = self.line.take_if_unchanged(self.slot, self.words);
        if is_taken {
            self.line.put(self.slot, next);
        }
        self.line.unlock(if is_taken { self.header.next() } else { self.header.0 });
        is_taken
    }
}

impl Table {
    /// A table in which `keys_max` live keys never evict each other.
    pub(super) fn with_capacity(keys_max: usize) -> Self {
        let homes = keys_max.max(1).saturating_mul(LOAD.1).div_ceil(LOAD.0 * SLOTS);
        let lines = LineArray::new(homes + REACH_MAX);
        Self { lines, homes, floor: Counter::new(0), evictions: Counter::new(0) }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// How many live keys were evicted.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// How many slots hold state that matters at `now`. Walks the table.
    pub(super) fn live_keys(&self, now: u64) -> usize {
        self.lines.iter().map(|line| line.live_keys(now)).sum()
    }

    /// The home line of a key, prefetched but not loaded yet.
    #[inline(always)]
    pub(super) fn prefetch_home(&self, address: Address) -> &Line {
        #[allow(unsafe_code, reason = "two instructions less on every check")]
        // SAFETY: a home is the upper half of `homes` times another number, and so less than `homes`,
        // and there are as many lines and more.
        let line = unsafe { self.lines.get_unchecked(self.home(address)) };
        prefetch(line);
        prefetch(std::ptr::from_ref(line).wrapping_add(1)); // where one key in twelve is
        line
    }

    /// The updated word of a key that is not in its first slot, if the other word has this value.
    #[inline(always)]
    pub(super) fn find_word<'t>(
        &'t self,
        home: &'t Line,
        address: Address,
        updated: CellWord,
        other: u64,
    ) -> Option<LoadedWord<'t>> {
        match updated {
            CellWord::First => self.find_first_word(home, address, other),
            CellWord::Second => self.find_second_word(home, address, other),
        }
    }

    #[inline(never)]
    fn find_first_word<'t>(
        &'t self,
        home: &'t Line,
        address: Address,
        other: u64,
    ) -> Option<LoadedWord<'t>> {
        self.find_word_from(home, address, CellWord::First, other)
    }

    #[inline(never)]
    fn find_second_word<'t>(
        &'t self,
        home: &'t Line,
        address: Address,
        other: u64,
    ) -> Option<LoadedWord<'t>> {
        if home.has(address.tag().first_slot(), address.tag()) {
            return None; // it is there, in another window or of another limit
        }
        self.find_word_from(home, address, CellWord::Second, other)
    }

    #[inline(always)] // so that each caller has code for its word only
    fn find_word_from<'t>(
        &'t self,
        home: &'t Line,
        address: Address,
        updated: CellWord,
        other: u64,
    ) -> Option<LoadedWord<'t>> {
        let tag = address.tag();
        if let Some(word) = home.find_word(tag, updated, other) {
            return Some(word);
        }
        let index = self.home(address);
        let beyond = &self.lines[index + 1..=index + home.header().reach()];
        beyond.iter().find_map(|line| line.find_word(tag, updated, other))
    }

    /// The window cell of a key.
    #[inline]
    pub(super) fn find_window_cell(&self, address: Address) -> Option<LoadedWindowCell<'_>> {
        let home = self.prefetch_home(address);
        match home.find_window_cell(address.tag()) {
            Some(cell) => Some(cell),
            None => self.find_window_cell_beyond(address),
        }
    }

    #[inline(never)]
    fn find_window_cell_beyond(&self, address: Address) -> Option<LoadedWindowCell<'_>> {
        let home = self.home(address);
        let mut beyond = home + 1..=home + self.line(home).header().reach();
        beyond.find_map(|index| self.line(index).find_window_cell(address.tag()))
    }

    /// The slot of a key that is in its home line.
    #[inline]
    pub(super) fn find_at_home(&self, address: Address) -> Option<LoadedSlot<'_>> {
        let home = self.prefetch_home(address);
        LoadedSlot::find(home, home.unlocked_header(), address.tag())
    }

    /// Changes the state of a key to what `step` makes of it, in one atomic step, wherever the key
    /// is and also if it is new. `step` gets the state and the time, and returns the next state, if
    /// it changes, and a result. It may be called several times, also with a torn state; only its
    /// last result counts.
    pub(super) fn update<R>(
        &self,
        address: Address,
        now: u64,
        mut step: impl FnMut(SlotState, u64) -> (Option<SlotState>, R),
    ) -> (R, Displaced) {
        loop {
            let Lookup { home, header, slot } = self.find(address);
            let (next, result) = match &slot {
                Some(slot) => step(slot.state(), now),
                None => step(SlotState::EMPTY, self.not_before_floor(now)),
            };
            match (slot, next) {
                (Some(slot), next) if slot.commit(next) => return (result, SlotState::EMPTY),
                (None, None) if home.is_unchanged(header) => return (result, SlotState::EMPTY),
                (None, Some(state)) if home.try_lock(header) => {
                    return (result, self.insert(address, state, now, header));
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn find(&self, address: Address) -> Lookup<'_> {
        let (index, tag) = (self.home(address), address.tag());
        let home = self.line(index);
        let header = home.unlocked_header();
        let slot = LoadedSlot::find(home, header, tag).or_else(|| {
            let mut beyond = index + 1..=index + header.reach();
            beyond.find_map(|index| {
                let line = self.line(index);
                LoadedSlot::find(line, line.unlocked_header(), tag)
            })
        });
        Lookup { home, header, slot }
    }

    /// Inserts a new key, whose home the caller has locked.
    fn insert(&self, address: Address, state: SlotState, now: u64, home: Header) -> Displaced {
        let index = self.home(address);
        let insert = PendingInsert { tag: address.tag(), now, home: index, is_held: |_| false };
        let (displaced, distance) = match self.claim_slot(&insert) {
            Some(claimed) => {
                self.line(index + claimed.distance).put(claimed.slot, state);
                if let Some(lock) = claimed.lock {
                    lock.unlock_changed();
                }
                (claimed.displaced, claimed.distance)
            }
            None => (state, 0),
        };
        self.line(index).unlock(home.reaching(distance).next());
        displaced
    }

    /// Claims a slot for a new key: in its home, which is locked, or in the nearest line with a free
    /// slot, or else by eviction. `None` only if nothing is free and all slots of the home are taken.
    pub(super) fn claim_slot(
        &self,
        insert: &PendingInsert<impl Fn(usize) -> bool>,
    ) -> Option<ClaimedSlot<'_>> {
        let claimed = self
            .claim_at_home(insert, RECENT_US)
            .or_else(|| self.claim_near(insert))
            .or_else(|| self.claim_at_home(insert, 0))
            .or_else(|| self.claim_beyond(insert))?;
        self.line(insert.home + claimed.distance).assign(claimed.slot, insert.tag);
        Some(claimed)
    }

    fn claim_at_home<F>(&self, insert: &PendingInsert<F>, free_us: u64) -> Option<ClaimedSlot<'_>> {
        let (slot, displaced) = self.take_free(insert, 0, free_us)?;
        Some(ClaimedSlot { slot, displaced, lock: None, distance: 0 })
    }

    /// Takes a free slot of a locked line at this distance from home. Also returns what was in it.
    fn take_free<F>(
        &self,
        insert: &PendingInsert<F>,
        distance: usize,
        free_us: u64,
    ) -> Option<(usize, Displaced)> {
        let line = self.line(insert.home + distance);
        let (slot, since, displaced) = line.take_free(insert.tag, insert.now, free_us)?;
        // Before the slot is reused: a check that no longer finds its key must see the floor.
        if since > self.floor.load(Ordering::Relaxed) {
            self.floor.fetch_max(since, Ordering::Relaxed);
        }
        Some((slot, displaced))
    }

    /// Claims a slot of one of the next lines that was not used recently, if the home has none. The
    /// state of a short limit expires at once; if busy keys took each other's slots whenever it has,
    /// they would have to be inserted again and again.
    #[cold]
    fn claim_near(
        &self,
        insert: &PendingInsert<impl Fn(usize) -> bool>,
    ) -> Option<ClaimedSlot<'_>> {
        (1..=NEAR_MAX).find_map(|distance| self.claim_at(insert, distance, RECENT_US))
    }

    /// Claims a free slot at this distance from home.
    fn claim_at(
        &self,
        insert: &PendingInsert<impl Fn(usize) -> bool>,
        distance: usize,
        free_us: u64,
    ) -> Option<ClaimedSlot<'_>> {
        let lock = self.lock_at(insert, distance)?;
        match self.take_free(insert, distance, free_us) {
            Some((slot, displaced)) => {
                Some(ClaimedSlot { slot, displaced, lock: Some(lock), distance })
            }
            None => {
                lock.unlock();
                None
            }
        }
    }

    /// Claims a slot when the home is full: of the nearest line that has one, or else by eviction.
    #[cold]
    fn claim_beyond(
        &self,
        insert: &PendingInsert<impl Fn(usize) -> bool>,
    ) -> Option<ClaimedSlot<'_>> {
        let now = insert.now;
        let line_at = |distance: usize| self.line(insert.home + distance);
        let candidate_at =
            |distance| line_at(distance).eviction_candidate(now).map(|(cost, _)| (cost, distance));
        let mut least = candidate_at(0);
        for distance in 1..=REACH_MAX {
            // Read first: in a full table, locking every line would cost more than the search.
            if line_at(distance).may_have_free_slot(now) {
                let claimed = self.claim_at(insert, distance, 0);
                if claimed.is_some() {
                    return claimed;
                }
            }
            least = [least, candidate_at(distance)].into_iter().flatten().min();
        }
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.evict(insert, least?.1)
    }

    /// Evicts the best candidate of the line at this distance from home.
    fn evict(
        &self,
        insert: &PendingInsert<impl Fn(usize) -> bool>,
        distance: usize,
    ) -> Option<ClaimedSlot<'_>> {
        let lock = if distance > 0 { self.lock_at(insert, distance) } else { None };
        // The home is locked in any case.
        let distance = if lock.is_some() { distance } else { 0 };
        let line = self.line(insert.home + distance);
        match line.eviction_candidate(insert.now) {
            Some((_, slot)) => {
                Some(ClaimedSlot { slot, displaced: line.take(slot), lock, distance })
            }
            None => {
                lock.into_iter().for_each(OtherLock::unlock);
                None
            }
        }
    }

    fn lock_at(
        &self,
        insert: &PendingInsert<impl Fn(usize) -> bool>,
        distance: usize,
    ) -> Option<OtherLock<'_>> {
        let index = insert.home + distance;
        match (insert.is_held)(index) {
            true => Some(OtherLock { line: self.line(index), header: None }),
            false => self.try_lock_other(index),
        }
    }

    /// Locks a line that is not the home: tries a few times, but does not wait.
    pub(super) fn try_lock_other(&self, index: usize) -> Option<OtherLock<'_>> {
        let line = self.line(index);
        (0..TRIES).find_map(|round| {
            let header = line.header();
            if !header.is_locked() && line.try_lock(header) {
                return Some(OtherLock { line, header: Some(header) });
            }
            pause(round);
            None
        })
    }

    /// The time at which a key without state is read: it may have had state that was dropped, so time
    /// does not go back for it.
    #[inline]
    pub(super) fn not_before_floor(&self, now: u64) -> u64 {
        now.max(self.floor.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn home(&self, address: Address) -> usize {
        ((u128::from(address.hash) * self.homes as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn line(&self, index: usize) -> &Line {
        &self.lines[index]
    }
}

/// A new key that needs a slot. Its home is locked.
pub(super) struct PendingInsert<F> {
    pub(super) tag: Tag,
    pub(super) now: u64,
    pub(super) home: usize,
    /// Returns whether the caller has locked that line already.
    pub(super) is_held: F,
}

/// A slot that was taken and assigned to a new key.
pub(super) struct ClaimedSlot<'t> {
    pub(super) slot: usize,
    pub(super) displaced: Displaced,
    /// The lock of its line, if that is not the home.
    pub(super) lock: Option<OtherLock<'t>>,
    /// How many lines beyond the home.
    pub(super) distance: usize,
}

/// The lock of a line other than the home. It has no header if the caller had locked it before.
pub(super) struct OtherLock<'t> {
    line: &'t Line,
    pub(super) header: Option<Header>,
}

impl OtherLock<'_> {
    pub(super) fn unlock(self) {
        if let Some(header) = self.header {
            self.line.unlock(header.0);
        }
    }

    pub(super) fn unlock_changed(self) {
        if let Some(header) = self.header {
            self.line.unlock(header.next());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Counts in a state that never expires.
    fn count(table: &Table, address: Address) -> u64 {
        let (count, displaced) = table.update(address, 0, |state, _| {
            let count = state.to_handle().unwrap_or(0) + 1;
            (Some(SlotState::log(1 << 50, count, count)), count)
        });
        assert_eq!(displaced, SlotState::EMPTY);
        count
    }

    #[test]
    fn a_key_with_the_tag_of_an_empty_slot_is_a_key_like_any_other() {
        let home = 5 << 60;
        for others_before in 0..20 {
            let table = Table::with_capacity(100);
            let others = (1..=20).map(|i| Address::new(home | (i << 27) | i));
            others
                .clone()
                .take(others_before)
                .for_each(|other| assert_eq!(count(&table, other), 1));
            let key = Address::new(home);
            assert_eq!(count(&table, key), 1);
            others
                .clone()
                .skip(others_before)
                .for_each(|other| assert_eq!(count(&table, other), 1));
            assert_eq!(count(&table, key), 2, "after {others_before} others");
            others.for_each(|other| assert_eq!(count(&table, other), 2));
        }
    }

    /// As many keys as the capacity, in half a second; each one expires before the next one comes.
    #[test]
    fn keys_keep_their_slots_even_when_they_expire_at_once() {
        const KEYS: u64 = 10_000;
        const STEP_US: u64 = 50;
        let table = Table::with_capacity(KEYS as usize);
        let addresses = (1..=KEYS).map(|i| Address::new(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for (us, address) in (0..).step_by(STEP_US as usize).zip(addresses.clone()) {
            table.update(address, us, |_, now| (Some(SlotState::log(now + 1, 1, 1)), ()));
        }
        let still_there = addresses.filter(|address| table.find(*address).slot.is_some()).count();
        assert!(still_there as u64 > KEYS * 99 / 100, "{still_there} of {KEYS}");
    }
}
