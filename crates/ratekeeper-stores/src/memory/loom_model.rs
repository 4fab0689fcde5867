//! Every interleaving of a few threads, also of what the memory model allows. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p ratekeeper-stores --release --lib`.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use ratekeeper_core::{
    AlgorithmVisitor, Cell, CellWord, CheckAndSwap, Cost, Decision, Limit, Micros, TatEvaluator,
    WindowCounter,
};

use super::locked::Locked;
use super::table::{Address, Slot, Table};

/// A cell whose halves tell the same number, so that a torn one shows.
fn number(n: u64) -> Cell {
    Cell::handle(n, n, 0)
}

fn number_of(cell: Cell) -> u64 {
    let n = cell.to_handle().unwrap_or(0);
    assert_eq!(cell.expires_at(), n + 1, "a cell of two halves");
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
    if let Some(slot) = Slot::find(table.prefetch_home(address), address.tag()) {
        let cell = slot.cell();
        let n = cell.to_handle().unwrap_or(0);
        if slot.commit(Some(number(n + 1))) {
            assert_eq!(cell.expires_at(), n + 1, "a cell of two halves was committed");
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

/// One token a microsecond.
fn limit() -> Limit {
    Limit::token_bucket("1000000/s burst 2000000").unwrap()
}

/// A bucket of tokens of which `n` are in use at time 0: a cell of one word.
fn tokens(n: u64) -> Cell {
    let mut cell = Cell::EMPTY;
    let limit = limit();
    let rule = limit.cell_evaluator().unwrap();
    rule.charge(&mut cell, Cost::new(n).unwrap(), Micros::new(0));
    assert_eq!(cell.updatable_word(), Some(CellWord::First));
    cell
}

fn tokens_of(cell: Cell) -> u64 {
    let [time, second] = cell.to_words();
    assert_eq!(second, tokens(1).to_words()[1], "a cell of two halves");
    time
}

/// What a quick check does: a compare-and-swap of a word. False if it has to go the long way.
fn use_quickly(table: &Table, address: Address, n: u64) -> bool {
    check_quickly(table, address, &limit(), n, 0).is_some_and(|decision| decision.allowed())
}

fn check_quickly(
    table: &Table,
    address: Address,
    limit: &Limit,
    n: u64,
    now: u64,
) -> Option<Decision> {
    let check = Quickly { table, address, cost: Cost::new(n).unwrap(), now: Micros::new(now) };
    let rule = limit.cell_evaluator().unwrap();
    match rule.as_tat_evaluator() {
        Some(rule) => check.time(rule),
        None => rule.visit_window_counter(check).expect("a counter of windows"),
    }
}

struct Quickly<'t> {
    table: &'t Table,
    address: Address,
    cost: Cost,
    now: Micros,
}

impl Quickly<'_> {
    fn time(self, rule: TatEvaluator<'_>) -> Option<Decision> {
        let home = self.table.prefetch_home(self.address);
        let time = home.find_time(self.address.tag(), rule)?;
        rule.check_and_swap(time.get(), self.cost, rule.time(self.now), |next| time.commit(next))
    }
}

impl AlgorithmVisitor for Quickly<'_> {
    type Output = Option<Decision>;

    fn visit(self, _rule: &impl CheckAndSwap) -> Option<Decision> {
        None
    }

    fn visit_window_counter(self, rule: &impl WindowCounter) -> Option<Decision> {
        let Self { table, address, cost, now } = self;
        let (home, tag) = (table.prefetch_home(address), address.tag());
        let present = home.find_present_counts(tag, rule.first_word(now));
        let at_once = present.and_then(|counts| {
            rule.check_and_swap_counts(counts.get(), cost, now, |next| counts.commit(next))
        });
        at_once.or_else(|| {
            let counts = home.find_counts(tag)?;
            rule.check_and_swap(counts.cell(), cost, now, |next| counts.commit(next))
        })
    }
}

fn use_token(table: &Table, address: Address) {
    if use_quickly(table, address, 1) {
        return;
    }
    table.update(address, 0, |cell, _| {
        let n = if cell == Cell::EMPTY { 0 } else { cell.to_words()[0] };
        (Some(tokens(n + 1)), ())
    });
}

#[test]
fn a_word_changed_without_the_lock_is_not_lost() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        use_token(&table, key);
        together(
            &table,
            move |table| {
                use_token(table, key);
                use_token(table, key);
            },
            move |table| use_token(table, key),
        );
        assert_eq!(table.update(key, 0, |cell, _| (None, tokens_of(cell))).0, 4);
    });
}

#[test]
fn a_word_is_not_changed_while_its_cell_is_locked() {
    model(|| {
        let (table, [a, b]) = (Arc::new(Table::with_capacity(1)), addresses());
        use_token(&table, a);
        let both = move |table: &Table| {
            let mut locked = Locked::new(table, &[a, b], 0);
            for address in [a, b] {
                let n = locked.get(address).0.map_or(0, tokens_of);
                locked.set(address, tokens(n + 1));
            }
        };
        together(&table, move |table| use_token(table, a), both);
        let read = |key| table.update(key, 0, |cell, _| (None, tokens_of(cell))).0;
        assert_eq!((read(a), read(b)), (3, 1));
    });
}

#[test]
fn a_cell_that_was_used_this_moment_is_not_given_to_another_key() {
    model(|| {
        let table = Arc::new(Table::with_capacity(1));
        let keys = [1, 2, 3, 4].map(Address::new);
        // The first is nearly fresh, the other two of its bucket are not.
        for (key, n) in keys.into_iter().zip([1, 1_000_000, 1_000_000]) {
            table.update(key, 0, |_, _| (Some(tokens(n)), ()));
        }
        let [first, _, _, other] = keys;
        let come = move |table: &Table| {
            table.update(other, 2_000, |_, _| (Some(tokens(1_000_000)), ()));
        };
        together(&table, move |table| use_million(table, first), come);
        let left = |key| table.update(key, 0, |cell, _| (None, tokens_of(cell))).0;
        assert!(left(first) >= 1_000_000, "what was used is gone");
        assert_eq!(left(other), 1_000_000, "what the one used is charged to the other");
    });
}

fn use_million(table: &Table, address: Address) {
    if !use_quickly(table, address, 1_000_000) {
        table.update(address, 0, |_, _| (Some(tokens(1_000_000)), ()));
    }
}

const WINDOW_US: u64 = 1_000;

/// So many in a window.
fn window(n: u64) -> Limit {
    Limit::fixed_window(format!("{n}/ms").as_str()).unwrap()
}

/// What a check does, quickly or the long way. Tells whether it passed.
fn count(table: &Table, address: Address, limit: u64, now: u64) -> bool {
    let limit = window(limit);
    if let Some(decision) = check_quickly(table, address, &limit, 1, now) {
        return decision.allowed();
    }
    let rule = limit.cell_evaluator().unwrap();
    let (allowed, _) = table.update(address, now, |mut cell, now| {
        let before = cell;
        let decision = rule.check(&mut cell, Cost::ONE, Micros::new(now));
        ((cell != before).then_some(cell), decision.allowed())
    });
    allowed
}

fn counted(table: &Table, address: Address, now: u64) -> u64 {
    let limit = window(100);
    let look = |cell, now| limit.cell_evaluator().unwrap().peek(cell, Cost::ONE, Micros::new(now));
    100 - table.update(address, now, |cell, now| (None, look(cell, now).remaining())).0
}

#[test]
fn counts_of_a_new_key_are_not_lost() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        let come = move |table: &Table| assert!(count(table, key, 2, 0));
        together(&table, come, come);
        assert_eq!(counted(&table, key, 0), 2);
    });
}

#[test]
fn counts_changed_without_the_lock_are_not_lost() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        assert!(count(&table, key, 2, 0));
        let passed = Arc::new(AtomicU64::new(1));
        let (one, two) = (passed.clone(), passed.clone());
        let count = move |table: &Table, passed: &AtomicU64| {
            passed.fetch_add(count(table, key, 2, 0).into(), SeqCst);
        };
        together(&table, move |table| count(table, &one), move |table| count(table, &two));
        assert_eq!(passed.load(SeqCst), 2);
        assert_eq!(counted(&table, key, 0), 2);
    });
}

#[test]
fn counts_are_not_changed_while_their_cell_is_locked() {
    model(|| {
        let (table, [a, b]) = (Arc::new(Table::with_capacity(1)), addresses());
        assert!(count(&table, a, 100, 0));
        let both = move |table: &Table| {
            let mut locked = Locked::new(table, &[a, b], 0);
            for address in [a, b] {
                let mut cell = locked.get(address).0.unwrap_or(Cell::EMPTY);
                window(100).cell_evaluator().unwrap().charge(&mut cell, Cost::ONE, Micros::new(0));
                locked.set(address, cell);
            }
        };
        together(&table, move |table| assert!(count(table, a, 100, 0)), both);
        assert_eq!((counted(&table, a, 0), counted(&table, b, 0)), (3, 1));
    });
}

#[test]
fn counts_of_one_window_are_not_taken_for_those_of_the_next() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        assert!(count(&table, key, 2, 0) && count(&table, key, 2, 0));
        // The window is full; the next is not, whoever comes to it first.
        let next = move |table: &Table| assert!(count(table, key, 2, WINDOW_US));
        together(&table, next, next);
        assert_eq!(counted(&table, key, WINDOW_US), 2);
    });
}

#[test]
fn what_was_in_a_slot_before_is_not_taken_for_counts() {
    model(|| {
        let (table, [other, key]) = (Arc::new(Table::with_capacity(1)), addresses());
        table.update(other, 0, |_, _| (Some(tokens(1)), ()));
        // By now that is fresh, and the first slot of both is free.
        let now = 10 * WINDOW_US;
        let come = move |table: &Table| assert!(count(table, key, 2, now));
        together(&table, come, come);
        assert_eq!(counted(&table, key, now), 2);
    });
}

#[test]
fn what_is_decided_for_one_window_is_not_counted_in_the_next() {
    model(|| {
        let (table, [key, _]) = (Arc::new(Table::with_capacity(1)), addresses());
        assert!(count(&table, key, 2, 0));
        let ends_after = Arc::new(AtomicU64::new(0));
        let decided = ends_after.clone();
        let late = move |table: &Table| {
            let decision = check_quickly(table, key, &window(2), 1, 0);
            let reset_after = decision.map_or(Duration::ZERO, |decision| decision.reset_after());
            decided.store(reset_after.as_micros() as u64, SeqCst);
        };
        together(&table, late, move |table| assert!(count(table, key, 2, WINDOW_US)));
        let is_late_counted = ends_after.load(SeqCst) == 2 * WINDOW_US;
        assert_eq!(counted(&table, key, WINDOW_US), 1 + u64::from(is_late_counted));
    });
}
