//! Several cells at once: locked together, so that all of them change or none.

use ratekeeper_core::Cell;

use super::bucket::Header;
use super::sync::pause;
use super::table::{Address, Displaced, Newcomer, Table};
use crate::charge::LIMITS_MAX;

/// Every address may need its home and one bucket beyond.
const HELD_MAX: usize = 2 * LIMITS_MAX;

/// The cells of some addresses, held until this is dropped.
pub(super) struct Locked<'t> {
    table: &'t Table,
    now: u64,
    held: [Held; HELD_MAX],
    len: usize,
    cells: [Taken; LIMITS_MAX],
    cells_len: usize,
}

/// The cell of an address, taken out of its slot.
#[derive(Clone, Copy)]
struct Taken {
    address: Address,
    /// The bucket and the slot, if it has one.
    place: Option<(usize, usize)>,
    cell: Option<Cell>,
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
        let no_cell = Taken { address: addresses[0], place: None, cell: None };
        let mut locked = Self {
            table,
            now,
            held: [nothing; HELD_MAX],
            len: 0,
            cells: [no_cell; LIMITS_MAX],
            cells_len: 0,
        };
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
        if !all_held {
            return None;
        }
        addresses.iter().for_each(|address| locked.take(*address));
        Some(locked)
    }

    fn take(&mut self, address: Address) {
        if self.taken().iter().any(|taken| taken.address == address) {
            return;
        }
        let place = self.find(address);
        let cell = place.map(|(bucket, slot)| self.table.bucket(bucket).take(slot));
        self.cells[self.cells_len] = Taken { address, place, cell };
        self.cells_len += 1;
    }

    /// The cell of this address, and the time to read it at.
    pub(super) fn get(&self, address: Address) -> (Option<Cell>, u64) {
        match self.taken().iter().find(|taken| taken.address == address) {
            Some(Taken { cell: Some(cell), .. }) => (Some(*cell), self.now),
            _ => (None, self.table.not_before_floor(self.now)),
        }
    }

    /// Changes the cell, for which a slot is found if it has none.
    pub(super) fn set(&mut self, address: Address, cell: Cell) -> Displaced {
        let taken = self.taken_mut(address);
        taken.cell = Some(cell);
        if taken.place.is_some() {
            return Cell::EMPTY;
        }
        let home = self.table.home(address);
        let is_held = |bucket| self.holds(bucket);
        let newcomer = Newcomer { tag: address.tag(), now: self.now, home, is_held };
        let Some(place) = self.table.place(&newcomer) else {
            return cell;
        };
        let bucket = home + place.distance;
        if let Some(header) = place.lock.and_then(|lock| lock.header) {
            self.hold(bucket, header);
        }
        let held = self.held_mut(home).expect("the home is held");
        held.header = held.header.reaching(place.distance);
        self.taken_mut(address).place = Some((bucket, place.slot));
        place.displaced
    }

    /// Empties the slot. Returns what was in it.
    pub(super) fn remove(&mut self, address: Address) -> Displaced {
        self.taken_mut(address).cell.take().unwrap_or(Cell::EMPTY)
    }

    fn taken(&self) -> &[Taken] {
        &self.cells[..self.cells_len]
    }

    fn taken_mut(&mut self, address: Address) -> &mut Taken {
        let mut cells = self.cells[..self.cells_len].iter_mut();
        cells.find(|taken| taken.address == address).expect("the address was locked")
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
            let Some(lock) = self.table.try_lock_other(index) else {
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
        for Taken { place, cell, .. } in self.taken() {
            match (place, cell) {
                (Some((bucket, slot)), Some(cell)) => self.table.bucket(*bucket).put(*slot, *cell),
                (Some((bucket, slot)), None) => self.table.bucket(*bucket).clear(*slot),
                (None, _) => {}
            }
        }
        // A new number even if nothing changed: cells were out of their places meanwhile.
        for Held { bucket, header } in self.held() {
            self.table.bucket(*bucket).unlock(header.next());
        }
    }
}
