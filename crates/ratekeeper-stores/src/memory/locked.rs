//! Several keys locked together, so that all of them change or none.

use smallvec::SmallVec;

use super::line::Header;
use super::slot::{Displaced, SlotState};
use super::sync::pause;
use super::table::{Address, PendingInsert, Table};
use crate::charge::INLINE;

/// The states of some addresses, locked until this is dropped.
pub(super) struct Locked<'t> {
    table: &'t Table,
    now: u64,
    /// The home lines, in ascending order, and then other lines.
    held: SmallVec<[Held; 2 * INLINE]>,
    homes: usize,
    /// In the order of their addresses.
    taken: SmallVec<[Taken; INLINE]>,
}

/// The state of an address, taken out of its slot.
#[derive(Clone, Copy)]
struct Taken {
    address: Address,
    /// The line and the slot, if the key has one.
    slot: Option<(usize, usize)>,
    state: Option<SlotState>,
}

/// A locked line, and its header before that.
#[derive(Clone, Copy)]
struct Held {
    line: usize,
    header: Header,
}

impl<'t> Locked<'t> {
    /// Locks the states of these addresses.
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
        let (held, taken) = (SmallVec::new(), SmallVec::new());
        let mut locked = Self { table, now, held, homes: 0, taken };
        for address in addresses {
            let home = table.home(*address);
            if locked.held.last().is_none_or(|last| last.line != home) {
                locked.hold(home, table.line(home).lock());
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
        let state = slot.map(|(line, slot)| self.table.line(line).take(slot));
        self.taken.push(Taken { address, slot, state });
    }

    /// Returns the state of this address, and the time to read it at.
    pub(super) fn get(&self, address: Address) -> (Option<SlotState>, u64) {
        match self.taken[self.index_of(address)].state {
            Some(state) => (Some(state), self.now),
            None => (None, self.table.not_before_floor(self.now)),
        }
    }

    /// Changes the state. If the key has no slot, finds one.
    pub(super) fn set(&mut self, address: Address, state: SlotState) -> Displaced {
        let index = self.index_of(address);
        self.taken[index].state = Some(state);
        if self.taken[index].slot.is_some() {
            return SlotState::EMPTY;
        }
        let home = self.table.home(address);
        let is_held = |line| self.held_index(line).is_some();
        let insert = PendingInsert { tag: address.tag(), now: self.now, home, is_held };
        let Some(claimed) = self.table.claim_slot(&insert) else {
            return state;
        };
        let line = home + claimed.distance;
        if let Some(header) = claimed.lock.and_then(|lock| lock.header) {
            self.hold(line, header);
        }
        let held = self.held_index(home).expect("the home line is locked");
        self.held[held].header = self.held[held].header.reaching(claimed.distance);
        self.taken[index].slot = Some((line, claimed.slot));
        claimed.displaced
    }

    /// Empties the slot. Returns what was in it.
    pub(super) fn remove(&mut self, address: Address) -> Displaced {
        let index = self.index_of(address);
        self.taken[index].state.take().unwrap_or(SlotState::EMPTY)
    }

    fn index_of(&self, address: Address) -> usize {
        let found = self.taken.binary_search_by_key(&address, |taken| taken.address);
        found.expect("the address is locked")
    }

    fn find(&self, address: Address) -> Option<(usize, usize)> {
        let home = self.table.home(address);
        let is_held = |line: &usize| self.held_index(*line).is_some();
        (home..=home + self.reach(home)).filter(is_held).find_map(|line| {
            let slot = self.table.line(line).find(address.tag())?;
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
            if is_held || self.table.line(line).find(address.tag()).is_none() {
                continue;
            }
            let Some(lock) = self.table.try_lock_other(line) else {
                return false;
            };
            if self.table.line(line).find(address.tag()).is_none() {
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
        for Taken { slot, state, .. } in &self.taken {
            match (slot, state) {
                (Some((line, slot)), Some(state)) => self.table.line(*line).put(*slot, *state),
                (Some((line, slot)), None) => self.table.line(*line).clear(*slot),
                (None, _) => {}
            }
        }
        // A new sequence number even if nothing changed: states were out of their slots meanwhile.
        for Held { line, header } in &self.held {
            self.table.line(*line).unlock(header.next());
        }
    }
}
