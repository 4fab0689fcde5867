//! The table: cells by address, in a fixed number of buckets of one cache line each.
//!
//! A bucket is a header, three tags and three [`Cell`]s. The header is a sequence lock: a
//! reader takes the header, reads, and checks that the header is still the same; a writer makes the
//! header odd, writes, and leaves it at the next even number. So a check that changes nothing
//! writes nothing, and one that does costs one compare-and-swap, in the cache line it needs anyway.
//!
//! Most checks change one word of a cell alone ([`Cell::updatable_word`]): the first of a bucket of tokens,
//! the second of a counter of windows while the window lasts. That is done without the lock, by a
//! compare-and-swap of its own. Whoever holds the lock and means to change or replace such a cell
//! takes it out first.
//!
//! A key lives in its home bucket or, if that was full, in one of the next; the home's header
//! knows how far ([`Header::reach`]). Within a bucket it has a slot where it is looked for first, and
//! is if that was free. Entries never move. A key is only ever added with its home
//! locked, so two threads cannot add the same one.
//!
//! Nothing is ever swept. A slot whose cell has become fresh is free for the next key that comes
//! by; best if it has been so for a while ([`LATELY_US`]), as its key may come again. Only when a
//! whole neighbourhood is full of live cells is one of them given up, the one with least in use, and
//! counted.
//!
//! Only homes are waited for, several of them in ascending order; any other bucket is tried and, if
//! it is taken, passed over. So nobody waits in a circle.

use std::sync::atomic::{AtomicU64 as Counter, Ordering};

use ratekeeper_core::{Cell, TatEvaluator};

use super::bucket::{Bucket, Counts, Header, Tag, Time};
use super::lines::{Lines, SLOTS, prefetch};
use super::sync::pause;

/// How many buckets after its home a key may live. At the load below, the chance that a key finds
/// no room this near is less than one in ten thousand for the whole table.
const REACH_MAX: usize = if cfg!(loom) { 1 } else { 64 };
/// At capacity, five slots of nine are taken: 38.4 bytes a key.
const LOAD: (usize, usize) = (5, 9);

/// How many of them to search for a slot that nobody has needed lately.
const NEAR_MAX: usize = if cfg!(loom) { 1 } else { 2 };
/// A key that was in use this long ago is likely to come again: about a second. Not in the models,
/// in which keys have to meet.
const LATELY_US: u64 = if cfg!(loom) { 0 } else { 1 << 20 };

pub(super) struct Table {
    /// The last homes reach past the end, so there are a few more lines than homes.
    lines: Lines,
    homes: usize,
    /// No state that was dropped mattered after this moment. A key without state is not older.
    floor: Counter,
    evictions: Counter,
}

/// Where a key belongs and how to know it: the hash of the key. Its upper half gives the place,
/// its lower half is the tag.
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

    /// Something to choose by that is neither the place nor, within a bucket, the tag.
    pub(super) fn spread(self) -> u64 {
        self.hash >> 24
    }
}

/// Where a search ended: at a slot, or with nothing, and the header to hold it to.
struct Found<'t> {
    bucket: Bucket<'t>,
    header: Header,
    slot: Option<Slot<'t>>,
}

/// A slot as it was found, not locked.
pub(super) struct Slot<'t> {
    bucket: Bucket<'t>,
    header: Header,
    slot: usize,
    words: [u64; 2],
}

impl<'t> Slot<'t> {
    #[inline]
    pub(super) fn find(bucket: Bucket<'t>, tag: Tag) -> Option<Self> {
        Self::find_with(bucket, bucket.unlocked_header(), tag)
    }

    #[inline]
    fn find_with(bucket: Bucket<'t>, header: Header, tag: Tag) -> Option<Self> {
        let found = |slot| Self { bucket, header, slot, words: bucket.slot_words(slot) };
        let first = tag.first_slot();
        if bucket.has(first, tag) { Some(found(first)) } else { bucket.find_beside(tag).map(found) }
    }

    /// The cell. It may be of two halves until [`Slot::commit`] says otherwise.
    #[inline]
    pub(super) fn cell(&self) -> Cell {
        Cell::from_words(self.words)
    }

    /// Replaces the cell, or if there is nothing to replace it with makes sure that it was of one
    /// piece. False, and nothing done, if the bucket has changed since it was found.
    #[inline]
    pub(super) fn commit(&self, next: Option<Cell>) -> bool {
        let Some(next) = next else {
            return self.bucket.is_still(self.header)
                && self.bucket.is_slot_still(self.slot, self.words);
        };
        if !self.bucket.try_lock(self.header) {
            return false;
        }
        let taken = self.bucket.take_if_still(self.slot, self.words);
        if taken {
            self.bucket.put(self.slot, next);
        }
        self.bucket.unlock(if taken { self.header.next() } else { self.header.0 });
        taken
    }
}

/// What a caller makes of a cell: perhaps another cell, and an answer.
pub(super) type Outcome<R> = (Option<Cell>, R);

/// A cell that lost its place to another, and may own something elsewhere; fresh if there was none.
pub(super) type Displaced = Cell;

impl Table {
    /// A table in which `keys_max` live keys never push each other out.
    pub(super) fn with_capacity(keys_max: usize) -> Self {
        let homes = keys_max.max(1).saturating_mul(LOAD.1).div_ceil(LOAD.0 * SLOTS);
        let lines = Lines::new(homes + REACH_MAX);
        Self { lines, homes, floor: Counter::new(0), evictions: Counter::new(0) }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// How many live cells were given up for want of room.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// How many slots hold a cell that matters at `now`. Walks the table.
    pub(super) fn live(&self, now: u64) -> usize {
        self.lines.iter().map(|line| Bucket(line).live(now)).sum()
    }

    /// The bucket of a key that is at home, which is asked for but not waited for.
    #[inline(always)]
    pub(super) fn prefetch_home(&self, address: Address) -> Bucket<'_> {
        #[allow(unsafe_code, reason = "two instructions less on every check")]
        // SAFETY: a home is the upper half of `homes` times another number, and so less than `homes`,
        // and there are as many lines and more.
        let line = unsafe { self.lines.get_unchecked(self.home(address)) };
        prefetch(line);
        prefetch(std::ptr::from_ref(line).wrapping_add(1)); // where one key in twelve is
        Bucket(line)
    }

    /// The time of a key that is not in its first slot.
    #[inline(never)]
    pub(super) fn find_time<'t>(
        &'t self,
        home: Bucket<'t>,
        address: Address,
        rule: TatEvaluator<'_>,
    ) -> Option<Time<'t>> {
        let tag = address.tag();
        let beyond = || {
            let index = self.home(address);
            let lines = &self.lines[index + 1..=index + home.header().reach()];
            lines.iter().find_map(|line| Bucket(line).find_time(tag, rule))
        };
        home.find_time(tag, rule).or_else(beyond)
    }

    /// The counts of a key.
    #[inline]
    pub(super) fn find_counts(&self, address: Address) -> Option<Counts<'_>> {
        let home = self.prefetch_home(address);
        match home.find_counts(address.tag()) {
            Some(counts) => Some(counts),
            None => self.find_counts_beyond(address),
        }
    }

    #[inline(never)]
    fn find_counts_beyond(&self, address: Address) -> Option<Counts<'_>> {
        let home = self.home(address);
        let mut beyond = home + 1..=home + self.bucket(home).header().reach();
        beyond.find_map(|index| self.bucket(index).find_counts(address.tag()))
    }

    /// What `step` makes of the cell, in one atomic step, wherever the key is and if it is new.
    /// It may be called several times, also with a cell of two halves; only its last answer
    /// counts. It is given the cell and the time.
    pub(super) fn update<R>(
        &self,
        address: Address,
        now: u64,
        mut step: impl FnMut(Cell, u64) -> Outcome<R>,
    ) -> (R, Displaced) {
        loop {
            let Found { bucket, header, slot } = self.find(address);
            let (next, answer) = match &slot {
                Some(slot) => step(slot.cell(), now),
                None => step(Cell::EMPTY, self.not_before_floor(now)),
            };
            match (slot, next) {
                (Some(slot), next) if slot.commit(next) => return (answer, Cell::EMPTY),
                (None, None) if bucket.is_still(header) => return (answer, Cell::EMPTY),
                (None, Some(cell)) if bucket.try_lock(header) => {
                    return (answer, self.insert(address, cell, now, header));
                }
                _ => {}
            }
        }
    }

    /// Where the key is, or that it is nowhere. Not held to anything yet.
    fn find(&self, address: Address) -> Found<'_> {
        let home = self.home(address);
        let bucket = self.bucket(home);
        let header = bucket.unlocked_header();
        let slot = Slot::find_with(bucket, header, address.tag()).or_else(|| {
            let mut beyond = home + 1..=home + header.reach();
            beyond.find_map(|index| Slot::find(self.bucket(index), address.tag()))
        });
        Found { bucket, header, slot }
    }

    /// Puts a new key in its home, which the caller has locked, or as near to it as there is room.
    fn insert(&self, address: Address, cell: Cell, now: u64, home: Header) -> Displaced {
        let index = self.home(address);
        let newcomer = Newcomer { tag: address.tag(), now, home: index, is_held: |_| false };
        let (displaced, distance) = match self.place(&newcomer) {
            Some(place) => {
                self.bucket(index + place.distance).put(place.slot, cell);
                if let Some(lock) = place.lock {
                    lock.unlock_changed();
                }
                (place.displaced, place.distance)
            }
            None => (cell, 0),
        };
        self.bucket(index).unlock(home.reaching(distance).next());
        displaced
    }

    /// A slot for a new key, taken and assigned: in its home, which is locked, or as near to it as
    /// there is room, or else that of the cell that is missed least. `None` only if all of the home
    /// is taken, and then nothing is free.
    pub(super) fn place(&self, newcomer: &Newcomer<impl Fn(usize) -> bool>) -> Option<Place<'_>> {
        let place = self
            .place_at_home(newcomer, LATELY_US)
            .or_else(|| self.place_near(newcomer))
            .or_else(|| self.place_at_home(newcomer, 0))
            .or_else(|| self.place_beyond(newcomer))?;
        self.bucket(newcomer.home + place.distance).assign(place.slot, newcomer.tag);
        Some(place)
    }

    fn place_at_home<F>(&self, newcomer: &Newcomer<F>, unneeded_us: u64) -> Option<Place<'_>> {
        let (slot, displaced) = self.take_vacant(newcomer, 0, unneeded_us)?;
        Some(Place { slot, displaced, lock: None, distance: 0 })
    }

    /// Takes a free slot of a locked bucket so far from home. Also returns whose it was, if anyone's.
    fn take_vacant<F>(
        &self,
        newcomer: &Newcomer<F>,
        distance: usize,
        unneeded_us: u64,
    ) -> Option<(usize, Displaced)> {
        let bucket = self.bucket(newcomer.home + distance);
        let (slot, since, displaced) =
            bucket.take_vacant(newcomer.tag, newcomer.now, unneeded_us)?;
        // Before the slot is gone: whoever misses it must know.
        if since > self.floor.load(Ordering::Relaxed) {
            self.floor.fetch_max(since, Ordering::Relaxed);
        }
        Some((slot, displaced))
    }

    /// Nothing at home that nobody has needed lately: a slot like that in one of the next buckets.
    /// State of a quick limit is fresh again at once; if keys that come all the time took each
    /// other's slots whenever it is, they would have to be added again and again.
    #[cold]
    fn place_near(&self, newcomer: &Newcomer<impl Fn(usize) -> bool>) -> Option<Place<'_>> {
        (1..=NEAR_MAX).find_map(|distance| self.place_at(newcomer, distance, LATELY_US))
    }

    /// A slot so far from home.
    fn place_at(
        &self,
        newcomer: &Newcomer<impl Fn(usize) -> bool>,
        distance: usize,
        unneeded_us: u64,
    ) -> Option<Place<'_>> {
        let lock = self.lock_at(newcomer, distance)?;
        match self.take_vacant(newcomer, distance, unneeded_us) {
            Some((slot, displaced)) => Some(Place { slot, displaced, lock: Some(lock), distance }),
            None => {
                lock.unlock();
                None
            }
        }
    }

    /// The home is full: the next bucket with room, or else the place of the cell that is missed
    /// least.
    #[cold]
    fn place_beyond(&self, newcomer: &Newcomer<impl Fn(usize) -> bool>) -> Option<Place<'_>> {
        let now = newcomer.now;
        let bucket_at = |distance: usize| self.bucket(newcomer.home + distance);
        let missed_at =
            |distance| bucket_at(distance).least_missed(now).map(|(missed, _)| (missed, distance));
        let mut least = missed_at(0);
        for distance in 1..=REACH_MAX {
            // A look first: in a full table, to lock every bucket for it would be the larger part.
            if bucket_at(distance).seems_to_have_room(now) {
                let place = self.place_at(newcomer, distance, 0);
                if place.is_some() {
                    return place;
                }
            }
            least = [least, missed_at(distance)].into_iter().flatten().min();
        }
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.place_of_other(newcomer, least?.1)
    }

    /// The slot of the cell that is missed least, so far from home.
    fn place_of_other(
        &self,
        newcomer: &Newcomer<impl Fn(usize) -> bool>,
        distance: usize,
    ) -> Option<Place<'_>> {
        let lock = if distance > 0 { self.lock_at(newcomer, distance) } else { None };
        // The home is ours in any case.
        let distance = if lock.is_some() { distance } else { 0 };
        let bucket = self.bucket(newcomer.home + distance);
        match bucket.least_missed(newcomer.now) {
            Some((_, slot)) => Some(Place { slot, displaced: bucket.take(slot), lock, distance }),
            None => {
                lock.into_iter().for_each(OtherLock::unlock);
                None
            }
        }
    }

    fn lock_at(
        &self,
        newcomer: &Newcomer<impl Fn(usize) -> bool>,
        distance: usize,
    ) -> Option<OtherLock<'_>> {
        let index = newcomer.home + distance;
        match (newcomer.is_held)(index) {
            true => Some(OtherLock { bucket: self.bucket(index), header: None }),
            false => self.try_lock_other(index),
        }
    }

    /// A bucket that is not the home: tried a few times, never waited for.
    pub(super) fn try_lock_other(&self, index: usize) -> Option<OtherLock<'_>> {
        let bucket = self.bucket(index);
        (0..TRIES).find_map(|round| {
            let header = bucket.header();
            if !header.is_locked() && bucket.try_lock(header) {
                return Some(OtherLock { bucket, header: Some(header) });
            }
            pause(round);
            None
        })
    }

    /// A key without state may have had some that was dropped, so time does not go back for it.
    #[inline]
    pub(super) fn not_before_floor(&self, now: u64) -> u64 {
        now.max(self.floor.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn home(&self, address: Address) -> usize {
        ((u128::from(address.hash) * self.homes as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn bucket(&self, index: usize) -> Bucket<'_> {
        Bucket(&self.lines[index])
    }
}

const TRIES: u32 = 100;

/// A new key that looks for a slot. Its home is locked.
pub(super) struct Newcomer<F> {
    pub(super) tag: Tag,
    pub(super) now: u64,
    pub(super) home: usize,
    /// Has the caller locked that bucket already?
    pub(super) is_held: F,
}

/// A slot for a new key.
pub(super) struct Place<'t> {
    pub(super) slot: usize,
    pub(super) displaced: Displaced,
    /// Of its bucket, if that is not the home.
    pub(super) lock: Option<OtherLock<'t>>,
    /// How many buckets from home.
    pub(super) distance: usize,
}

/// A lock on a bucket beside the home. It has no header if it was held already.
pub(super) struct OtherLock<'t> {
    bucket: Bucket<'t>,
    pub(super) header: Option<Header>,
}

impl OtherLock<'_> {
    pub(super) fn unlock(self) {
        if let Some(header) = self.header {
            self.bucket.unlock(header.0);
        }
    }

    pub(super) fn unlock_changed(self) {
        if let Some(header) = self.header {
            self.bucket.unlock(header.next());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One more, in a cell that never expires.
    fn count(table: &Table, address: Address) -> u64 {
        let (count, displaced) = table.update(address, 0, |cell, _| {
            let count = cell.to_handle().unwrap_or(0) + 1;
            (Some(Cell::handle(1 << 50, count, count)), count)
        });
        assert_eq!(displaced, Cell::EMPTY);
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

    /// As many keys as there is room for, in half a second, each fresh again before the next comes.
    #[test]
    fn keys_leave_each_other_their_slots_even_when_they_are_fresh_at_once() {
        const KEYS: u64 = 10_000;
        const STEP_US: u64 = 50;
        let table = Table::with_capacity(KEYS as usize);
        let addresses = (1..=KEYS).map(|i| Address::new(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for (us, address) in (0..).step_by(STEP_US as usize).zip(addresses.clone()) {
            table.update(address, us, |_, now| (Some(Cell::handle(now + 1, 1, 1)), ()));
        }
        let still_there = addresses.filter(|address| table.find(*address).slot.is_some()).count();
        assert!(still_there as u64 > KEYS * 99 / 100, "{still_there} of {KEYS}");
    }
}
