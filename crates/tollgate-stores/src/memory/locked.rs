//! Several cells at once: locked together, so that all of them change or none.

use tollgate_core::Cell;

use super::bucket::Header;
use super::sync::pause;
use super::table::{Address, Displaced, Table};
use crate::charge::LIMITS_MAX;

/// Every address may need its home and one bucket beyond.
const HELD_MAX: usize = 2 * LIMITS_MAX;

/// The cells of some addresses, held until this is dropped.
pub(super) struct Locked<'t> {
    table: &'t Table,
    now: u64,
    held: [Held; HELD_MAX],
    len: usize,
    is_changed: bool,
}

#[derive(Clone, Copy)]
struct Held {
    bucket: usize,
    header: Header,
}

impl<'t> Locked<'t> {
    /// Locks the cells of at most [`LIMITS_MAX`] addresses.
    pub(super) fn new(table: &'t Table, addresses: &[Address], now: u64) -> Self {
        let mut rounds = 0;
        loop {
            if let Some(locked) = Self::attempt(table, addresses, now) {
                return locked;
            }
            pause(rounds);
            rounds += 1;
        }
    }

    /// Waits for the homes, in order; gives all of them up if a bucket beyond is taken.
    fn attempt(table: &'t Table, addresses: &[Address], now: u64) -> Option<Self> {
        let nothing = Held { bucket: usize::MAX, header: Header(0) };
        let mut locked = Self { table, now, held: [nothing; HELD_MAX], len: 0, is_changed: false };
        let mut homes = [usize::MAX; LIMITS_MAX];
        for (home, address) in homes.iter_mut().zip(addresses) {
            *home = table.home(*address);
        }
        homes.sort_unstable();
        for home in homes {
            if home != usize::MAX && !locked.holds(home) {
                locked.hold(home, table.bucket(home).lock());
            }
        }
        let all_held = addresses.iter().all(|address| locked.reach_out_to(*address));
        all_held.then_some(locked)
    }

    /// The cell of this address, and the time to read it at.
    pub(super) fn get(&self, address: Address) -> (Option<Cell>, u64) {
        match self.find(address) {
            Some((bucket, slot)) => (Some(self.table.bucket(bucket).cell(slot)), self.now),
            None => (None, self.table.not_before_floor(self.now)),
        }
    }

    /// Writes the cell, into a new slot if it has none.
    pub(super) fn set(&mut self, address: Address, cell: Cell) -> Displaced {
        self.is_changed = true;
        if let Some((bucket, slot)) = self.find(address) {
            self.table.bucket(bucket).set_cell(slot, address.tag(), cell);
            return Cell::FRESH;
        }
        let home = self.table.home(address);
        if let Some(placed) =
            self.table.place_in(self.table.bucket(home), address.tag(), cell, self.now)
        {
            return placed;
        }
        let is_held = |bucket| self.holds(bucket);
        let (placed, distance) =
            self.table.place_beyond(address.tag(), cell, self.now, home, is_held);
        let home = self.held_mut(home).expect("the home is held");
        home.header = home.header.reaching(distance);
        placed
    }

    /// Empties the slot. Returns what was in it.
    pub(super) fn remove(&mut self, address: Address) -> Displaced {
        let Some((bucket, slot)) = self.find(address) else { return Cell::FRESH };
        self.is_changed = true;
        let bucket = self.table.bucket(bucket);
        let removed = bucket.cell(slot);
        bucket.clear(slot);
        removed
    }

    fn find(&self, address: Address) -> Option<(usize, usize)> {
        let home = self.table.home(address);
        let reach = self.held().iter().find(|held| held.bucket == home)?.header.reach();
        (home..=home + reach).filter(|bucket| self.holds(*bucket)).find_map(|bucket| {
            let slot = self.table.bucket(bucket).find(address.tag())?;
            Some((bucket, slot))
        })
    }

    /// If the key lives beyond its home, takes hold of that bucket too. False if somebody else has.
    fn reach_out_to(&mut self, address: Address) -> bool {
        if self.find(address).is_some() {
            return true;
        }
        let home = self.table.home(address);
        let reach = self.held_mut(home).expect("the home is held").header.reach();
        for index in home + 1..=home + reach {
            if self.holds(index) || self.table.bucket(index).find(address.tag()).is_none() {
                continue;
            }
            let Some(lock) = self.table.try_lock_other(index, false) else {
                return false;
            };
            if self.table.bucket(index).find(address.tag()).is_none() {
                lock.unlock(); // given up for want of room, just now
                continue;
            }
            self.hold(index, lock.header.expect("it was not held before"));
            return true;
        }
        true
    }

    fn hold(&mut self, bucket: usize, header: Header) {
        self.held[self.len] = Held { bucket, header };
        self.len += 1;
    }

    fn held(&self) -> &[Held] {
        &self.held[..self.len]
    }

    fn holds(&self, bucket: usize) -> bool {
        self.held().iter().any(|held| held.bucket == bucket)
    }

    fn held_mut(&mut self, bucket: usize) -> Option<&mut Held> {
        self.held[..self.len].iter_mut().find(|held| held.bucket == bucket)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for Held { bucket, header } in self.held() {
            let header = if self.is_changed { header.next() } else { header.0 };
            self.table.bucket(*bucket).unlock(header);
        }
    }
}
