//! Every interleaving of a few threads, also of what the memory model allows. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p ratekeeper-stores --release --lib`.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use ratekeeper_core::algorithm::{CellWord, CompareAndSwap};
use ratekeeper_core::{Cell, CellEvaluator, Cost, Decision, Limit, Micros};

use super::locked::Locked;
use super::slot::SlotState;
use super::table::{Address, Table};

/// A state with the same number in both words, so that a torn one is noticed.
fn number(n: u64) -> SlotState {
    SlotState::log(n, n, 0)
}

fn number_of(state: SlotState) -> u64 {
    let n = state.to_handle().unwrap_or(0);
    assert_eq!(state.expires_at(), n + 1, "a torn state");
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

/// A check with the lock.
fn increment(table: &Table, address: Address) {
    let (before, _) = table.update(address, 0, |state, _| {
        let n = state.to_handle().unwrap_or(0);
        (Some(number(n + 1)), state)
    });
    if before != SlotState::EMPTY {
        number_of(before);
    }
}

fn read(table: &Table, address: Address) -> u64 {
    table.update(address, 0, |state, _| (None, state)).0.to_handle().unwrap_or(0)
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
            let (state, _) = table.update(key, 0, |state, _| (None, state));
            assert!((1..=2).contains(&number_of(state)));
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

/// A token bucket of which `n` are in use at time 0: a check changes one word.
fn tokens(n: u64) -> SlotState {
    let mut cell = Cell::EMPTY;
    let limit = limit();
    let rule = limit.cell_evaluator().unwrap();
    let _ = rule.charge(&mut cell, Cost::new(n).unwrap(), u64::MAX, Micros::new(0));
    assert_eq!(cell.updatable_word(), Some(CellWord::First));
    cell.into()
}

fn tokens_of(state: SlotState) -> u64 {
    let [tat, second] = state.to_words();
    assert_eq!(second, tokens(1).to_words()[1], "a torn state");
    tat
}

/// The fast path of a check. Returns `false` if it did not apply.
fn use_fast(table: &Table, address: Address, n: u64) -> bool {
    check_fast(table, address, &limit(), n, 0).is_some_and(|decision| decision.allowed())
}

fn check_fast(
    table: &Table,
    address: Address,
    limit: &Limit,
    n: u64,
    now: u64,
) -> Option<Decision> {
    let (cost, now) = (Cost::new(n).unwrap(), Micros::new(now));
    match limit.cell_evaluator().unwrap() {
        CellEvaluator::ScaledGcra(gcra) => check_word(table, address, gcra, cost, now),
        CellEvaluator::FixedWindow(window) => check_word(table, address, window, cost, now)
            .or_else(|| {
                let cell = table.prefetch_home(address).find_window_cell(address.tag())?;
                window.check_cell(cell.cell(), cost, now, |next| cell.commit(next))
            }),
        _ => unreachable!("not in these models"),
    }
}

fn check_word<A: CompareAndSwap>(
    table: &Table,
    address: Address,
    algorithm: &A,
    cost: Cost,
    now: Micros,
) -> Option<Decision> {
    let now = algorithm.prepare(now);
    let (updated, other) = (A::UPDATED_WORD.unwrap(), algorithm.other_word(now));
    let word = table.prefetch_home(address).find_word(address.tag(), updated, other)?;
    algorithm.check_word(word.get(), cost, now, |next| word.commit(updated, next))
}

fn use_token(table: &Table, address: Address) {
    if use_fast(table, address, 1) {
        return;
    }
    table.update(address, 0, |state, _| {
        let n = if state == SlotState::EMPTY { 0 } else { state.to_words()[0] };
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
        assert_eq!(table.update(key, 0, |state, _| (None, tokens_of(state))).0, 4);
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
        let read = |key| table.update(key, 0, |state, _| (None, tokens_of(state))).0;
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
        let left = |key| table.update(key, 0, |state, _| (None, tokens_of(state))).0;
        assert!(left(first) >= 1_000_000, "what was used is gone");
        assert_eq!(left(other), 1_000_000, "what the one used is charged to the other");
    });
}

fn use_million(table: &Table, address: Address) {
    if !use_fast(table, address, 1_000_000) {
        table.update(address, 0, |_, _| (Some(tokens(1_000_000)), ()));
    }
}

const WINDOW_US: u64 = 1_000;

/// So many in a window.
fn window(n: u64) -> Limit {
    Limit::fixed_window(format!("{n}/ms").as_str()).unwrap()
}

/// Checks by the fast path or the slow one. Returns whether it was allowed.
fn count(table: &Table, address: Address, limit: u64, now: u64) -> bool {
    let limit = window(limit);
    if let Some(decision) = check_fast(table, address, &limit, 1, now) {
        return decision.allowed();
    }
    let rule = limit.cell_evaluator().unwrap();
    let (allowed, _) = table.update(address, now, |state, now| {
        let mut cell = state.cell();
        let decision = rule.check(&mut cell, Cost::ONE, Micros::new(now));
        ((cell != state.cell()).then_some(cell.into()), decision.allowed())
    });
    allowed
}

fn counted(table: &Table, address: Address, now: u64) -> u64 {
    let limit = window(100);
    let evaluator = limit.cell_evaluator().unwrap();
    let peek = |cell, now| evaluator.peek(cell, Cost::ONE, Micros::new(now));
    100 - table.update(address, now, |s, now| (None, peek(s.cell(), now).remaining())).0
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
                let mut cell = locked.get(address).0.map_or(Cell::EMPTY, SlotState::cell);
                let _ = window(100).cell_evaluator().unwrap().charge(
                    &mut cell,
                    Cost::ONE,
                    u64::MAX,
                    Micros::new(0),
                );
                locked.set(address, cell.into());
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
        // The window is full; the next is not, whichever thread is first.
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
            let decision = check_fast(table, key, &window(2), 1, 0);
            let reset_after = decision.map_or(Duration::ZERO, |decision| decision.reset_after());
            decided.store(reset_after.as_micros() as u64, SeqCst);
        };
        together(&table, late, move |table| assert!(count(table, key, 2, WINDOW_US)));
        let is_late_counted = ends_after.load(SeqCst) == 2 * WINDOW_US;
        assert_eq!(counted(&table, key, WINDOW_US), 1 + u64::from(is_late_counted));
    });
}
