//! Every interleaving of a few threads, also of what the memory model allows. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p tollgate-stores --release --lib`.

use loom::sync::Arc;
use loom::thread;
use tollgate_core::Cell;

use super::locked::Locked;
use super::table::{Address, Table};

/// A cell whose halves tell the same number, so that a torn one shows.
fn number(n: u64) -> Cell {
    Cell::handle(n, n, 0)
}

fn number_of(cell: Cell) -> u64 {
    let n = cell.to_handle().unwrap_or(0);
    assert_eq!(cell.fresh_by(), n + 1, "a cell of two halves");
    n
}

/// The one home of a small table, two keys of it.
fn addresses() -> [Address; 2] {
    [Address::new(1), Address::new(2)]
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// What a check does: at home without a lock, or the long way.
fn increment(table: &Table, address: Address) {
    if let Some(slot) = table.slot_at_home(address) {
        let cell = slot.cell();
        let n = cell.to_handle().unwrap_or(0);
        if slot.commit(Some(number(n + 1))) {
            assert_eq!(cell.fresh_by(), n + 1, "a cell of two halves was committed");
            return;
        }
    }
    table.update(address, 0, |cell, _| {
        let n = cell.to_handle().unwrap_or(0);
        (Some(number(n + 1)), ())
    });
}

fn read(table: &Table, address: Address) -> u64 {
    table.update(address, 0, |cell, _| (None, cell)).0.to_handle().unwrap_or(0)
}

/// Two threads beside this one, each with its part.
fn together(
    table: &Arc<Table>,
    first: impl FnOnce(&Table) + 'static,
    second: impl FnOnce(&Table) + 'static,
) {
    let (one, two) = (table.clone(), table.clone());
    let first = thread::spawn(move || first(&one));
    let second = thread::spawn(move || second(&two));
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn increments_of_a_new_key_are_not_lost() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        together(&table, move |table| increment(table, key), move |table| increment(table, key));
        assert_eq!(read(&table, key), 2);
    });
}

#[test]
fn a_reader_sees_no_half_written_cell() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        increment(&table, key);
        let look = move |table: &Table| {
            let (cell, _) = table.update(key, 0, |cell, _| (None, cell));
            assert!((1..=2).contains(&number_of(cell)));
        };
        together(&table, move |table| increment(table, key), look);
        assert_eq!(read(&table, key), 2);
    });
}

#[test]
fn two_cells_locked_together_change_together() {
    model(|| {
        let (table, [a, b]) = (Arc::new(Table::with_capacity(1)), addresses());
        let both = |table: &Table, addresses: [Address; 2]| {
            let mut locked = Locked::new(table, &addresses, 0);
            for address in addresses {
                let n = locked.get(address).0.map_or(0, number_of);
                locked.set(address, number(n + 1));
            }
        };
        let first = move |table: &Table| {
            increment(table, a);
            both(table, [a, b]);
        };
        together(&table, first, move |table| both(table, [b, a]));
        assert_eq!((read(&table, a), read(&table, b)), (3, 2));
    });
}
