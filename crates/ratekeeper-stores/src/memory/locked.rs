//! Several cells locked together, so that all of them change or none.

use ratekeeper_core::Cell;
use smallvec::SmallVec;

use super::bucket::Header;
use super::sync::pause;
use super::table::{Address, Displaced, Newcomer, Table};
use crate::charge::INLINE;

/// The cells of some addresses, locked until this is dropped.
pub(super) struct Locked<'t> {
    table: &'t Table,
    now: u64,
    /// The home lines, in ascending order, and then other lines.
    held: SmallVec<[Held; 2 * INLINE]>,
    homes: usize,
    /// In the order of their addresses.
    cells: SmallVec<[Taken; INLINE]>,
}

/// The cell of an address, taken out of its slot.
#[derive(Clone, Copy)]
struct Taken {
    address: Address,
    /// The line and the slot, if the key has one.
    slot: Option<(usize, usize)>,
    cell: Option<Cell>,
}

/// A locked line, and its header before that.
#[derive(Clone, Copy)]
struct Held {
    line: usize,
    header: Header,
}

impl<'t> Locked<'t> {
    /// Locks the cells of these addresses.
    pub(super) fn new(table: &'t Table, addresses: &[Address], now: u64) -> Self {
        let mut addresses = SmallVec::<[Address; INLINE]>::from_slice(addresses);
        // Also the order of their homes. The addresses of two keys may be equal.
        addresses.sort_unstable();
        addresses.dedup();
        let mut rounds = 0;
        loop {
            if let Some(locked) = Self::attempt(table, &addresses, now) {
                return locked;
            }
            pause(rounds);
            rounds += 1;
        }
    }

    /// Waits for the home lines, in ascending order. Releases all of them if another line that is
    /// needed is locked.
    fn attempt(table: &'t Table, addresses: &[Address], now: u64) -> Option<Self> {
        let (held, cells) = (SmallVec::new(), SmallVec::new());
        let mut locked = Self { table, now, held, homes: 0, cells };
        for address in addresses {
            let home = table.home(*address);
            if locked.held.last().is_none_or(|last| last.line != home) {
                locked.hold(home, table.bucket(home).lock());
            }
        }
        locked.homes = locked.held.len();
        if !addresses.iter().all(|address| locked.lock_beyond_home(*address)) {
            return None;
        }
        addresses.iter().for_each(|address| locked.take(*address));
        Some(locked)
    }

    fn take(&mut self, address: Address) {
        let slot = self.find(address);
        let cell = slot.map(|(line, slot)| self.table.bucket(line).take(slot));
        self.cells.push(Taken { address, slot, cell });
    }

    /// Returns the cell of this address, and the time to read it at.
    pub(super) fn get(&self, address: Address) -> (Option<Cell>, u64) {
        match self.cells[self.index_of(address)].cell {
            Some(cell) => (Some(cell), self.now),
            None => (None, self.table.not_before_floor(self.now)),
        }
    }

    /// Changes the cell. If the key has no slot, finds one.
    pub(super) fn set(&mut self, address: Address, cell: Cell) -> Displaced {
        let index = self.index_of(address);
        self.cells[index].cell = Some(cell);
        if self.cells[index].slot.is_some() {
            return Cell::EMPTY;
        }
        let home = self.table.home(address);
        let is_held = |line| self.held_index(line).is_some();
        let newcomer = Newcomer { tag: address.tag(), now: self.now, home, is_held };
        let Some(place) = self.table.place(&newcomer) else {
            return cell;
        };
        let line = home + place.distance;
        if let Some(header) = place.lock.and_then(|lock| lock.header) {
            self.hold(line, header);
        }
        let held = self.held_index(home).expect("the home line is locked");
        self.held[held].header = self.held[held].header.reaching(place.distance);
        self.cells[index].slot = Some((line, place.slot));
        place.displaced
    }

    /// Empties the slot. Returns what was in it.
    pub(super) fn remove(&mut self, address: Address) -> Displaced {
        let index = self.index_of(address);
        self.cells[index].cell.take().unwrap_or(Cell::EMPTY)
    }

    fn index_of(&self, address: Address) -> usize {
        let found = self.cells.binary_search_by_key(&address, |taken| taken.address);
        found.expect("the address is locked")
    }

    fn find(&self, address: Address) -> Option<(usize, usize)> {
        let home = self.table.home(address);
        let is_held = |line: &usize| self.held_index(*line).is_some();
        (home..=home + self.reach(home)).filter(is_held).find_map(|line| {
            let slot = self.table.bucket(line).find(address.tag())?;
            Some((line, slot))
        })
    }

    /// If the key is in a line beyond its home, locks that line too. Returns `false` if another
    /// thread has locked it.
    fn lock_beyond_home(&mut self, address: Address) -> bool {
        if self.find(address).is_some() {
            return true;
        }
        let home = self.table.home(address);
        for line in home + 1..=home + self.reach(home) {
            let is_held = self.held_index(line).is_some();
            if is_held || self.table.bucket(line).find(address.tag()).is_none() {
                continue;
            }
            let Some(lock) = self.table.try_lock_other(line) else {
                return false;
            };
            if self.table.bucket(line).find(address.tag()).is_none() {
                lock.unlock(); // evicted just now
                continue;
            }
            self.hold(line, lock.header.expect("the line was not locked before"));
            return true;
        }
        true
    }

    /// Returns how many lines beyond its home a key of this home may be.
    fn reach(&self, home: usize) -> usize {
        let held = self.held_index(home).expect("the home line is locked");
        self.held[held].header.reach()
    }

    fn hold(&mut self, line: usize, header: Header) {
        self.held.push(Held { line, header });
    }

    fn held_index(&self, line: usize) -> Option<usize> {
        let (homes, others) = self.held.split_at(self.homes);
        match homes.binary_search_by_key(&line, |held| held.line) {
            Ok(index) => Some(index),
            Err(_) => Some(self.homes + others.iter().position(|held| held.line == line)?),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for Taken { slot, cell, .. } in &self.cells {
            match (slot, cell) {
                (Some((line, slot)), Some(cell)) => self.table.bucket(*line).put(*slot, *cell),
                (Some((line, slot)), None) => self.table.bucket(*line).clear(*slot),
                (None, _) => {}
            }
        }
        // A new sequence number even if nothing changed: cells were out of their slots meanwhile.
        for Held { line, header } in &self.held {
            self.table.bucket(*line).unlock(header.next());
        }
    }
}
