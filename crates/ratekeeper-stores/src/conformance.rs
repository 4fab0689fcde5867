//! The suite that every store has to pass: the same charges give the same decisions everywhere.
//!
//! Each promise is an `async fn` over a fresh [`Store`]; [`conformance!`](crate::conformance!)
//! makes a test of every one of them.

mod calendar;
mod guarantees;

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ratekeeper_core::{ALGORITHMS, Algorithm, BucketCell, Cost, Decision, Limit, MaxDebt, Micros};

pub use calendar::{
    a_calendar_window_ends_when_its_day_does, a_calendar_window_that_begins_elsewhere_is_a_new_one,
    calendar_windows_are_charged_together_with_others, calendar_windows_give_the_cores_decisions,
};

pub use guarantees::{
    a_guarantee_is_always_there_and_what_is_unused_is_lent, a_request_is_of_one_class,
    a_reset_makes_a_key_with_guarantees_new, guarantees_are_charged_together_with_others,
    guarantees_give_the_cores_decisions, the_wait_for_a_guarantee_is_exact,
    usage_carries_over_when_guarantees_change,
};

use crate::snapshot::apply_to_buckets;
use crate::{CHARGES_MAX, Charge, ChargeKind, ChargesError, Op, Snapshot, Store, StoreError};

/// Tests every promise over the store that `$store` makes, with `$block_on` to run futures.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $store:expr, $block_on:expr) => {
        $crate::conformance!(@each $name, $store, $block_on,
            random_traces_give_the_cores_decisions,
            extreme_limits_give_the_cores_decisions,
            several_limits_are_charged_all_or_none,
            calendar_windows_give_the_cores_decisions,
            calendar_windows_are_charged_together_with_others,
            a_calendar_window_ends_when_its_day_does,
            a_calendar_window_that_begins_elsewhere_is_a_new_one,
            many_charges_are_decided_in_one_step,
            charges_to_one_usage_are_summed,
            a_peek_changes_nothing,
            a_reset_makes_a_key_new,
            a_key_is_as_new_after_the_ttl_of_its_usage,
            a_reservation_settles_up_and_down,
            an_overdraft_is_charged_in_full_and_paid_by_time,
            a_maximum_debt_cuts_what_is_charged,
            a_look_denies_when_nothing_is_left_and_charges_nothing,
            usage_carries_over_when_a_limit_changes,
            keys_are_injective,
            charges_that_cannot_be_decided_together_are_refused,
            rejected_attempts_count_where_asked_for,
            guarantees_give_the_cores_decisions,
            guarantees_are_charged_together_with_others,
            a_guarantee_is_always_there_and_what_is_unused_is_lent,
            the_wait_for_a_guarantee_is_exact,
            a_reset_makes_a_key_with_guarantees_new,
            usage_carries_over_when_guarantees_change,
            a_request_is_of_one_class
        );
    };
    (@each $name:ident, $store:expr, $block_on:expr, $($promise:ident),*) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $promise() {
                    let store = $store;
                    $block_on($crate::conformance::$promise(&store));
                }
            )*
        }
    };
}

/// Runs a future that never has to wait.
pub fn block_on<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store that waits needs a runtime to run the suite"),
    }
}

const START: u64 = 1_700_000_000_000_000;

/// What a store has to do, without any of its difficulties: one thread, one map, no end of memory.
#[derive(Default)]
struct Reference {
    state: HashMap<(String, Algorithm, Vec<u8>), Snapshot>,
}

impl Reference {
    fn apply(&mut self, op: Op, charge: &Charge<'_>, now: Micros) -> Decision {
        let Some(limit) = charge.class else { return self.state(charge).apply(op, charge, now) };
        let cell = |usage: Charge<'_>| match self.state(&usage) {
            Snapshot::Cell(cell) => BucketCell { cell: *cell, now },
            Snapshot::Log(_) => unreachable!("it is a bucket"),
        };
        let mut cells: Vec<_> = charge.usages().map(cell).collect();
        let decision = apply_to_buckets(op, limit, charge, &mut cells);
        for (usage, next) in charge.usages().zip(cells) {
            *self.state(&usage) = Snapshot::Cell(next.cell);
        }
        decision
    }

    fn state(&mut self, usage: &Charge<'_>) -> &mut Snapshot {
        let scope = format!("{:?}", (usage.scope.name(), usage.scope.class()));
        let key = (scope, usage.limit.algorithm(), usage.key.to_vec());
        self.state.entry(key).or_insert_with(|| Snapshot::fresh(usage.limit))
    }

    fn check_all(&mut self, charges: &[Charge<'_>], now: Micros) -> Vec<Decision> {
        let peeked: Vec<_> = charges.iter().map(|c| self.apply(Op::Peek, c, now)).collect();
        let op = if peeked.iter().all(Decision::allowed) { Op::Check } else { Op::Peek };
        charges.iter().map(|charge| self.apply(op, charge, now)).collect()
    }
}

/// A small random number generator, so that every store sees the same traces.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    fn cost(&mut self, max: u64) -> Cost {
        Cost::new(1 + self.below(max)).expect("at least 1")
    }

    fn kind(&mut self) -> ChargeKind {
        match self.below(8) {
            0 | 1 => ChargeKind::Overdraft,
            2 => ChargeKind::Look,
            _ => ChargeKind::Full,
        }
    }

    fn max_debt(&mut self) -> MaxDebt {
        match self.below(3) {
            0 => MaxDebt::of_units(self.below(100)),
            1 => MaxDebt::of_units(self.next() >> self.below(64)),
            _ => MaxDebt::NONE,
        }
    }
}

/// Limits with awkward numbers, of every algorithm, each with a name of its own.
fn limits() -> Vec<Limit> {
    let rates = ["3/7ms", "10/13ms", "1/5ms", "50/97ms", "7/1000ms"];
    let each = |algorithm: &Algorithm| {
        rates.map(|rate| {
            let limit = Limit::new(rate.parse().expect("a rate"), *algorithm).expect("a limit");
            limit.named(&format!("{algorithm} {rate}"))
        })
    };
    ALGORITHMS.iter().flat_map(each).collect()
}

fn limit(algorithm: Algorithm, rate: &str) -> Limit {
    Limit::new(rate.parse().expect("a rate"), algorithm).expect("a limit")
}

fn cost(n: u64) -> Cost {
    Cost::new(n).expect("at least 1")
}

async fn one<S: Store>(store: &S, op: Op, charge: Charge<'_>, now: u64) -> Decision {
    *store.apply(op, &[charge], Micros::new(START + now)).await.expect("a verdict")
}

/// Random operations on a few keys under every algorithm, decided as the core alone would.
pub async fn random_traces_give_the_cores_decisions<S: Store>(store: &S) {
    follow_the_core(store, &limits(), 20_000, Random(1), |random| {
        (random.below(3) * random.below(2_000), 1 + random.below(4))
    })
    .await;
}

/// The same with the longest periods, the largest counts and costs to match: products beyond 2^53.
pub async fn extreme_limits_give_the_cores_decisions<S: Store>(store: &S) {
    let rates = ["67000000/10years", "66999999/s", "999983/7s", "1/10years", "1000000/365d"];
    let each = |algorithm: &Algorithm| {
        rates.map(|rate| {
            let limit = Limit::new(rate.parse().expect("a rate"), *algorithm).ok()?;
            Some(limit.named(&format!("{algorithm} {rate}")))
        })
    };
    let limits: Vec<_> = ALGORITHMS.iter().flat_map(each).flatten().collect();
    assert!(limits.len() > 15, "most of them are possible");
    follow_the_core(store, &limits, 3_000, Random(3), |random| {
        let (time_scale, cost_scale) = (1 << random.below(47), 1 << random.below(27));
        (random.below(2) * random.below(time_scale), 1 + random.below(cost_scale))
    })
    .await;
}

/// Random operations, each a time after the one before and at a cost that `draw` returns.
async fn follow_the_core<S: Store>(
    store: &S,
    limits: &[Limit],
    steps: usize,
    mut random: Random,
    draw: impl Fn(&mut Random) -> (u64, u64),
) {
    let mut reference = Reference::default();
    let mut now = START;
    for step in 0..steps {
        let (after, units) = draw(&mut random);
        now = (now + after).min(Micros::MAX.get());
        let at = Micros::new(now);
        let key = random.pick(&["a", "b", "c"]);
        let charge = Charge::new(random.pick(limits), key).cost(cost(units)).kind(random.kind());
        let charge = charge.max_debt(random.max_debt());
        let charged_at = Micros::new(now - random.below(5_000));
        let op = *random.pick(&[
            Op::Check,
            Op::Check,
            Op::Check,
            Op::Check,
            Op::Peek,
            Op::Charge,
            Op::Refund { charged_at },
            Op::refund_latest(),
        ]);
        let decision = *store.apply(op, &[charge], at).await.expect("a verdict");
        let expected = reference.apply(op, &charge, at);
        assert_eq!(decision, expected, "step {step}: {op:?} {charge:?} at {now}");
    }
}

/// Requests under several limits, of different algorithms and on different keys.
pub async fn several_limits_are_charged_all_or_none<S: Store>(store: &S) {
    let (limits, mut random, mut reference) = (limits(), Random(2), Reference::default());
    let mut now = START;
    for step in 0..5_000 {
        now += random.below(2) * random.below(3_000);
        let first = random.below(limits.len() as u64) as usize;
        let several = 1 + random.below(limits.len() as u64) as usize;
        let charges: Vec<_> = (0..several)
            .map(|i| &limits[(first + i) % limits.len()])
            .map(|limit| {
                let charge = Charge::new(limit, random.pick(&["a", "b"])).cost(random.cost(3));
                charge.kind(random.kind())
            })
            .collect();
        let at = Micros::new(now);
        let verdict = store.apply(Op::Check, &charges, at).await.expect("a verdict");
        let expected = reference.check_all(&charges, at);
        assert_eq!(verdict.decisions(), expected, "step {step}");
        assert_eq!(verdict.allowed(), expected.iter().all(Decision::allowed));
        let longest = expected.iter().map(Decision::wait).max().expect("a decision");
        assert_eq!(verdict.wait(), longest, "the longest wait speaks");
    }
}

/// As many charges as one step takes, to half as many usages: all or none, the binding one, and the
/// refund.
pub async fn many_charges_are_decided_in_one_step<S: Store>(store: &S) {
    let limits: Vec<_> = ALGORITHMS.iter().map(|algorithm| limit(*algorithm, "10/hour")).collect();
    let tight = limit(Algorithm::TokenBucket, "6/hour").named("tight");
    let keys: Vec<_> = (0..CHARGES_MAX / 2).map(|i| format!("key {i}")).collect();
    let limit_of = |i: usize| if i == 77 { &tight } else { &limits[i % limits.len()] };
    let charges: Vec<_> = (0..CHARGES_MAX)
        .map(|i| i * 5 % keys.len())
        .map(|i| Charge::new(limit_of(i), &keys[i]))
        .collect();
    let is_tight = |charge: &Charge<'_>| charge.limit.name() == "tight";
    let binding = charges.iter().position(is_tight).expect("one is");
    let now = Micros::new(START);
    let apply = async |op, at| store.apply(op, &charges, Micros::new(START + at)).await;
    let used = async || {
        let peeked = apply(Op::Peek, 0).await.expect("a verdict");
        let used: Vec<_> = peeked.decisions().iter().map(|d| d.limit() - d.remaining()).collect();
        assert!(used.iter().all(|n| *n == used[0]), "all or none: {used:?}");
        used[0]
    };
    for n in 1..=3 {
        let verdict = apply(Op::Check, 0).await.expect("a verdict");
        assert!(verdict.allowed());
        assert_eq!(verdict.decisions().len(), CHARGES_MAX);
        assert_eq!((verdict.binding(), verdict.remaining()), (binding, 6 - 2 * n));
        assert_eq!(used().await, 2 * n);
    }
    let denied = apply(Op::Check, 0).await.expect("a verdict");
    assert!(!denied.allowed());
    assert_eq!(denied.binding(), binding);
    let denials =
        |(charge, decision): (&Charge<'_>, &Decision)| decision.allowed() != is_tight(charge);
    assert!(charges.iter().zip(denied.decisions()).all(denials), "one usage is exhausted");
    assert_eq!(used().await, 6, "a denial charges nothing");
    let refunded = apply(Op::Refund { charged_at: now }, 0).await.expect("a verdict");
    assert_eq!(refunded.decisions()[binding].remaining(), 2);
    assert_eq!(used().await, 4);
    let charged = apply(Op::Charge, 0).await.expect("a verdict");
    assert_eq!(charged.decisions()[binding].remaining(), 0);
    assert_eq!(used().await, 6);
}

/// Two charges to the same key under the same limit fit together or not at all.
pub async fn charges_to_one_usage_are_summed<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, "10/s");
        let now = Micros::new(START);
        let twice =
            |n| [Charge::new(&limit, "k").cost(cost(n)), Charge::new(&limit, "k").cost(cost(n))];
        let denied = store.apply(Op::Check, &twice(6), now).await.expect("a verdict");
        assert!(denied.exceeds_capacity(), "{algorithm}: 12 of 10");
        let allowed = store.apply(Op::Check, &twice(4), now).await.expect("a verdict");
        assert!(allowed.allowed(), "{algorithm}: 8 of 10");
        let left = one(store, Op::Peek, Charge::new(&limit, "k"), 0).await.remaining();
        assert_eq!(left, 2, "{algorithm}");
    }
}

/// However often it is checked.
pub async fn a_peek_changes_nothing<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, "2/s");
        let charge = Charge::new(&limit, "k");
        for _ in 0..10 {
            let peeked = one(store, Op::Peek, charge, 0).await;
            assert!(peeked.allowed() && peeked.remaining() == 2, "{algorithm}");
        }
    }
}

/// Also a key that was never seen, and one in debt.
pub async fn a_reset_makes_a_key_new<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, "2/s");
        let charge = Charge::new(&limit, "k");
        store.reset(&charge).await.expect("a reset");
        let _ = one(store, Op::Charge, charge.cost(cost(9)), 0).await;
        assert!(!one(store, Op::Check, charge, 0).await.allowed(), "{algorithm}");
        store.reset(&charge).await.expect("a reset");
        assert_eq!(one(store, Op::Check, charge, 0).await.remaining(), 1, "{algorithm}");
    }
}

/// The time until a key is as new does not depend on the rate that it is read with.
pub async fn a_key_is_as_new_after_the_ttl_of_its_usage<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let charged = limit(*algorithm, "10/minute").named("ttl");
        let read = limit(*algorithm, "1/s").named("ttl");
        let (charge, read) = (Charge::new(&charged, "k"), Charge::new(&read, "k"));
        let ttl = async |at: u64| {
            let ttl = store.usage_ttl(&read, Micros::new(START + at)).await.expect("a time");
            ttl.as_micros() as u64
        };
        assert_eq!(ttl(0).await, 0, "{algorithm}: a new key");
        let reset_after = one(store, Op::Check, charge.cost(cost(4)), 0).await.reset_after();
        let (ttl_us, reset_us) = (ttl(0).await, reset_after.as_micros() as u64);
        assert!(ttl_us >= reset_us, "{algorithm}: {ttl_us} of {reset_us}");
        // A sliding counter still weighs the previous window.
        let longest =
            reset_us.max(120_000_000 * u64::from(*algorithm == Algorithm::SlidingCounter));
        assert!(
            ttl_us <= longest + longest / 25 + 6_000_000,
            "{algorithm}: {ttl_us} of {reset_us}"
        );
        if matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            assert!(ttl_us <= reset_us + 1, "{algorithm}: {ttl_us} of {reset_us}");
        }
        assert_eq!(one(store, Op::Peek, charge, ttl_us).await.remaining(), 10, "{algorithm}");
        store.reset(&charge).await.expect("a reset");
        assert_eq!(ttl(0).await, 0, "{algorithm}: a reset key");
    }
}

/// An estimate is charged, then corrected in either direction.
pub async fn a_reservation_settles_up_and_down<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, "10/s");
        let charge = Charge::new(&limit, "k");
        let charged_at = Micros::new(START);
        assert_eq!(one(store, Op::Check, charge.cost(cost(5)), 0).await.remaining(), 5);
        let down = Op::Refund { charged_at };
        assert_eq!(one(store, down, charge.cost(cost(3)), 0).await.remaining(), 8, "{algorithm}");
        let latest = Op::refund_latest();
        assert_eq!(one(store, latest, charge.cost(cost(1)), 0).await.remaining(), 9, "{algorithm}");
        assert_eq!(one(store, Op::Check, charge, 0).await.remaining(), 8, "{algorithm}");
        // Up by more than there is: a debt, which has to be paid before anything passes.
        let up = one(store, Op::Charge, charge.cost(cost(12)), 0).await;
        assert_eq!(up.remaining(), 0, "{algorithm}");
        let denied = one(store, Op::Check, charge, 0).await;
        let wait = denied.retry_after().expect("a wait").as_micros() as u64;
        assert!(!one(store, Op::Peek, charge, wait - 1).await.allowed(), "{algorithm}");
        assert!(one(store, Op::Peek, charge, wait).await.allowed(), "{algorithm}");
    }
}

/// Responses of 600 units, known afterwards, under 1000 an hour.
pub async fn an_overdraft_is_charged_in_full_and_paid_by_time<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, "1000/hour").named("overdraft");
        let charge = Charge::new(&limit, "k").cost(cost(600)).kind(ChargeKind::Overdraft);
        assert_eq!(one(store, Op::Check, charge, 0).await.remaining(), 400, "{algorithm}");
        let in_debt = one(store, Op::Check, charge, 0).await;
        assert!(in_debt.allowed() && in_debt.remaining() == 0, "{algorithm}: charged in full");
        let denied = one(store, Op::Check, charge, 0).await;
        assert!(!denied.allowed(), "{algorithm}: a debt denies");
        let wait = denied.retry_after().expect("debts are paid").as_micros() as u64;
        assert!(!one(store, Op::Check, charge, wait - 1).await.allowed(), "{algorithm}");
        assert!(one(store, Op::Check, charge, wait).await.allowed(), "{algorithm}: paid");
    }
    let bucket = limit(Algorithm::TokenBucket, "1000/hour").named("debt");
    let charge = Charge::new(&bucket, "k").cost(cost(600)).kind(ChargeKind::Overdraft);
    for _ in 0..2 {
        assert!(one(store, Op::Check, charge, 0).await.allowed());
    }
    let wait = |decision: Decision| decision.retry_after().expect("denied").as_millis();
    assert_eq!(wait(one(store, Op::Check, charge, 0).await), 201 * 3_600, "200 owed, and 1 more");
    let reported = Charge::new(&bucket, "reports").cost(cost(600));
    for _ in 0..5 {
        let _ = one(store, Op::Charge, reported, 0).await;
    }
    let looked = one(store, Op::Check, reported.kind(ChargeKind::Look), 0).await;
    assert_eq!(wait(looked), 2_001 * 3_600, "all five reports count");
}

/// Responses of 600 units under 1000 an hour, with a debt of at most 100.
pub async fn a_maximum_debt_cuts_what_is_charged<S: Store>(store: &S) {
    let max: MaxDebt = "0.1x".parse().expect("a maximum debt");
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, "1000/hour").named("bounded debt");
        let charge = Charge::new(&limit, "k").cost(cost(600)).max_debt(max);
        let overdraft = charge.kind(ChargeKind::Overdraft);
        let first = one(store, Op::Check, overdraft, 0).await;
        assert!(first.remaining() == 400 && !first.is_cut(), "{algorithm}");
        let second = one(store, Op::Check, overdraft, 0).await;
        assert!(second.allowed() && second.is_cut(), "{algorithm}: charged 500 of 600");
        let report = one(store, Op::Charge, charge, 0).await;
        assert!(report.is_cut(), "{algorithm}: no more is charged");
        // 100 are owed: a refund of as much leaves nothing, and of one more leaves 1.
        let refund =
            async |units| one(store, Op::refund_latest(), charge.cost(cost(units)), 0).await;
        assert_eq!(refund(100).await.remaining(), 0, "{algorithm}");
        assert_eq!(refund(1).await.remaining(), 1, "{algorithm}");
    }
    let bucket = limit(Algorithm::TokenBucket, "1000/hour").named("bounded debt");
    let charge = Charge::new(&bucket, "waits").cost(cost(5_000)).max_debt(max);
    let _ = one(store, Op::Charge, charge, 0).await;
    let look = one(store, Op::Check, charge.kind(ChargeKind::Look), 0).await;
    let wait = look.retry_after().expect("in debt").as_millis();
    assert_eq!(wait, 101 * 3_600, "100 owed, and 1 more");
}

/// A look takes part in all or nothing.
pub async fn a_look_denies_when_nothing_is_left_and_charges_nothing<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let spent = limit(*algorithm, "2/hour").named("looked at");
        let other = limit(*algorithm, "10/hour").named("charged");
        let look = Charge::new(&spent, "k").cost(cost(5)).kind(ChargeKind::Look);
        let charge = Charge::new(&other, "k").cost(cost(3));
        for _ in 0..3 {
            assert_eq!(one(store, Op::Check, look, 0).await.remaining(), 2, "{algorithm}");
        }
        let both = store.apply(Op::Check, &[look, charge], Micros::new(START)).await;
        assert!(both.expect("a verdict").allowed(), "{algorithm}");
        assert_eq!(one(store, Op::Peek, charge, 0).await.remaining(), 7, "{algorithm}");
        let _ = one(store, Op::Check, Charge::new(&spent, "k").cost(cost(2)), 0).await;
        let both = store.apply(Op::Check, &[look, charge], Micros::new(START)).await;
        assert!(!both.expect("a verdict").allowed(), "{algorithm}");
        assert_eq!(
            one(store, Op::Peek, charge, 0).await.remaining(),
            7,
            "{algorithm}: not charged"
        );
    }
}

/// Under the same name, the numbers may change at any time.
pub async fn usage_carries_over_when_a_limit_changes<S: Store>(store: &S) {
    for algorithm in ALGORITHMS {
        let of = |rate| limit(*algorithm, rate).named("plan");
        let (free, pro, tiny) = (of("10/s"), of("100/s"), of("4/minute"));
        assert_eq!(
            one(store, Op::Check, Charge::new(&free, "k").cost(cost(10)), 0).await.remaining(),
            0
        );
        let raised = one(store, Op::Check, Charge::new(&pro, "k"), 0).await;
        assert!(raised.allowed() && raised.remaining() == 89, "{algorithm}: {raised:?}");
        let charge = Charge::new(&tiny, "k");
        let lowered = one(store, Op::Check, charge, 0).await;
        assert!(!lowered.allowed() && lowered.remaining() == 0, "{algorithm}: {lowered:?}");
        let wait = lowered.retry_after().expect("a wait").as_micros() as u64;
        assert!(!one(store, Op::Peek, charge, wait - 1).await.allowed(), "{algorithm}");
        assert!(one(store, Op::Peek, charge, wait).await.allowed(), "{algorithm}");
    }
}

/// No two of (scope, algorithm, key) share their usage, however they are spelt.
pub async fn keys_are_injective<S: Store>(store: &S) {
    let names = ["", "a", "a_b", "a:b", "a b", "{a}", "a\0b"];
    let keys: [&[u8]; 9] =
        [b"", b"x", b"x_y_z", b"x:y", b"b x", b"\0", b"\0\0", b"{x}", b"\xff\xfe"];
    for algorithm in ALGORITHMS {
        for name in names {
            let limit = limit(*algorithm, "1/hour").named(name);
            for key in keys {
                let first = one(store, Op::Check, Charge::new(&limit, key), 0).await;
                assert!(first.allowed(), "{algorithm} {name:?} {key:?} was used before");
            }
        }
    }
}

/// None at all, more than there may be, and two limits under one name.
pub async fn charges_that_cannot_be_decided_together_are_refused<S: Store>(store: &S) {
    let refuses = async |charges: &[Charge<'_>]| match store
        .apply(Op::Check, charges, Micros::new(START))
        .await
    {
        Err(StoreError::Charges(error)) => error,
        other => panic!("not refused: {other:?}"),
    };
    let one = limit(Algorithm::default(), "5/s").named("plan");
    for n in [0, CHARGES_MAX + 1] {
        assert_eq!(refuses(&vec![Charge::new(&one, "k"); n]).await, ChargesError::Count(n));
    }
    let other = limit(Algorithm::default(), "50/minute").named("plan");
    let both = [Charge::new(&one, "k"), Charge::new(&other, "k")];
    assert!(matches!(refuses(&both).await, ChargesError::ConflictingRates { .. }));
    let apart = [Charge::new(&one, "k"), Charge::new(&other, "another")];
    assert!(store.apply(Op::Check, &apart, Micros::new(START)).await.is_ok());
}

/// Alone and beside another limit.
pub async fn rejected_attempts_count_where_asked_for<S: Store>(store: &S) {
    let strict = limit(Algorithm::SlidingLog, "1/10s").count_rejected().expect("a log");
    let wide = limit(Algorithm::TokenBucket, "100/s");
    let charges = [Charge::new(&strict, "k"), Charge::new(&wide, "k")];
    let mut allowed = Vec::new();
    for second in [0, 9, 15, 25] {
        let now = Micros::new(START + second * 1_000_000);
        allowed.push(store.apply(Op::Check, &charges, now).await.expect("a verdict").allowed());
    }
    assert_eq!(allowed, [true, false, false, true], "each attempt begins the wait anew");
}
