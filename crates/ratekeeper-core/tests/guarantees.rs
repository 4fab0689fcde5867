//! Promises of guaranteed capacity, many of them against a slow but obvious model.

mod support;

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_core::{
    BucketCell, Cost, Decision, GuaranteedLimit, Guarantees, GuaranteesError, Limit, Micros, Rate,
    Wait,
};
use support::{Key, Ratio};

const CLASSES: [&str; 5] = ["a", "b", "c", "d", "without a guarantee"];
const START: u64 = 1_700_000_000_000_000;

fn rate(count: u64, period_us: u64, burst: u64) -> Rate {
    Rate::new(count, Duration::from_micros(period_us)).unwrap().with_burst(burst).unwrap()
}

/// Totals with as many of the guarantees as fit. Their periods are so short that a model can try every microsecond.
fn guarantees() -> impl Strategy<Value = Guarantees> {
    let total = (1..20u64, 1..40u64, 1..30u64);
    // Some are too fine for `ScaledGcra`.
    let fine = prop_oneof![4 => Just(1u64), 1 => Just(1_031)];
    let parts = proptest::collection::vec((1..4u64, 1..60u64, 1..12u64), 1..=4);
    (total, parts, fine).prop_filter_map("no guarantee fits", |(total, parts, fine)| {
        let (count, period, burst) = total;
        let limit = Limit::token_bucket("1/s").unwrap();
        let rate_of_total = rate(count * fine, period * fine + u64::from(fine > 1), burst);
        let total = Limit::new(rate_of_total, limit.algorithm()).unwrap().named("total");
        let mut fitting: Vec<(&str, Rate)> = Vec::new();
        for (class, (count, period, burst)) in CLASSES.iter().zip(parts) {
            fitting.push((*class, rate(count, period, burst)));
            if Guarantees::new(total.clone(), fitting.clone()).is_err() {
                fitting.pop();
            }
        }
        Guarantees::new(total, fitting).ok()
    })
}

/// A request: microseconds since the one before, its class and its cost.
type Request = (u64, usize, u64);

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let step = prop_oneof![3 => Just(0u64), 4 => 0..20u64, 1 => 0..400u64];
    let cost = prop_oneof![4 => Just(1u64), 2 => 1..10u64, 1 => 1..40u64];
    proptest::collection::vec((step, 0..CLASSES.len(), cost), 1..100)
}

fn cost(n: u64) -> Cost {
    Cost::new(n).unwrap()
}

/// The states of one key.
#[derive(Clone)]
struct State {
    classes: Vec<GuaranteedLimit>,
    cells: Vec<BucketCell>,
}

impl State {
    fn new(guarantees: &Guarantees) -> Self {
        let classes = CLASSES.iter().map(|class| guarantees.class(class)).collect();
        Self { classes, cells: guarantees.fresh(Micros::new(0)) }
    }

    fn at(&mut self, now: u64) -> &mut [BucketCell] {
        self.cells.iter_mut().for_each(|cell| cell.now = Micros::new(now));
        &mut self.cells
    }

    fn check(&mut self, class: usize, n: u64, now: u64) -> Decision {
        let limit = self.classes[class].clone();
        limit.check(self.at(now), cost(n))
    }

    fn peek(&self, class: usize, n: u64, now: u64) -> Decision {
        let mut copy = self.clone();
        copy.classes[class].clone().peek(copy.at(now), cost(n))
    }

    fn charge(&mut self, class: usize, n: u64, now: u64) -> Decision {
        let limit = self.classes[class].clone();
        limit.charge(self.at(now), cost(n), u64::MAX)
    }

    fn refund(&mut self, class: usize, n: u64, charged_at: u64, borrowed: bool, now: u64) {
        let limit = self.classes[class].clone();
        let _ = limit.refund(self.at(now), cost(n), Micros::new(charged_at), borrowed);
    }
}

/// The definition, in fractions: the level of the total and of each guarantee.
#[derive(Clone)]
struct Model {
    buckets: Vec<ModelBucket>,
    /// For each class, its bucket.
    own: Vec<Option<usize>>,
    now: u64,
}

#[derive(Clone)]
struct ModelBucket {
    /// Requests per microsecond.
    rate: Ratio,
    burst: Ratio,
    level: Ratio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Guarantee,
    Borrow,
}

impl Model {
    fn new(guarantees: &Guarantees, now: u64) -> Self {
        let limits: Vec<_> =
            [guarantees.total()].into_iter().chain(guarantees.iter().map(|(_, g)| g)).collect();
        let bucket = |limit: &&Limit| {
            let burst = Ratio::new(limit.quota().into(), 1);
            let count = i128::from(limit.rate().count());
            let rate = Ratio::new(count, limit.rate().period().as_micros() as i128);
            ModelBucket { rate, burst, level: burst }
        };
        let own = |class: &&str| Some(1 + guarantees.iter().position(|(name, _)| name == *class)?);
        let buckets = limits.iter().map(bucket).collect();
        Self { buckets, own: CLASSES.iter().map(own).collect(), now }
    }

    fn advance(&mut self, now: u64) {
        let elapsed = Ratio::new((now - self.now).into(), 1);
        for bucket in &mut self.buckets {
            bucket.level = bucket.burst.min(bucket.level + elapsed * bucket.rate);
        }
        self.now = now;
    }

    fn lendable(&self) -> Ratio {
        let held = self.buckets[1..].iter().map(|bucket| bucket.level);
        held.fold(self.buckets[0].level, |left, level| left - level)
    }

    fn way(&self, class: usize, n: u64) -> Option<Way> {
        let n = Ratio::new(n.into(), 1);
        if self.own[class].is_some_and(|own| n <= self.buckets[own].level) {
            Some(Way::Guarantee)
        } else if n <= self.lendable() {
            Some(Way::Borrow)
        } else {
            None
        }
    }

    fn check(&mut self, class: usize, n: u64) -> Option<Way> {
        let way = self.way(class, n)?;
        let n = Ratio::new(n.into(), 1);
        self.buckets[0].level = self.buckets[0].level - n;
        if let Some(own) = self.own[class].filter(|_| way == Way::Guarantee) {
            self.buckets[own].level = self.buckets[own].level - n;
        }
        Some(way)
    }

    /// The first microsecond at which the request is admitted, by trying all of them until nothing changes.
    fn wait(&self, class: usize, n: u64) -> Wait {
        let mut later = self.clone();
        let mut us = 0;
        loop {
            if later.way(class, n).is_some() {
                return if us == 0 { Wait::None } else { Wait::Micros(us) };
            }
            if later.buckets.iter().all(|bucket| bucket.level == bucket.burst) {
                return Wait::Never;
            }
            us += 1;
            later.advance(self.now + us);
        }
    }

    fn remaining(&self, class: usize) -> u64 {
        (1..100).take_while(|n| self.way(class, *n).is_some()).count() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_matches_the_model(guarantees in guarantees(), trace in requests()) {
        let (mut state, mut model) = (State::new(&guarantees), Model::new(&guarantees, START));
        let mut now = START;
        for (after, class, n) in trace {
            now += after;
            model.advance(now);
            let wait = model.wait(class, n);
            let way = model.check(class, n);
            let decision = state.check(class, n, now);
            prop_assert_eq!(decision.wait(), wait, "{:?} of class {} at {}", guarantees, class, now);
            prop_assert_eq!(decision.is_borrowed(), way == Some(Way::Borrow));
            prop_assert_eq!(decision.remaining(), model.remaining(class));
            prop_assert!(model.lendable() >= Ratio::new(0, 1), "the total has what is guaranteed");
        }
    }

    /// Whatever others do, a class gets what a token bucket of its own would give it.
    #[test]
    fn a_guarantee_is_always_there(guarantees in guarantees(), trace in requests()) {
        let mut state = State::new(&guarantees);
        let mut alone: Vec<_> = CLASSES
            .iter()
            .map(|class| guarantees.class(class).guarantee().map(Key::new))
            .collect();
        let mut now = START;
        for (after, class, n) in trace {
            now += after;
            let is_guaranteed = alone[class].as_mut().is_some_and(|key| key.check(n, now).allowed());
            let decision = state.check(class, n, now);
            prop_assert_eq!(decision.allowed() && !decision.is_borrowed(), is_guaranteed);
        }
    }

    /// While the guarantees are full and unused, others get the whole flow of the total, and the burst that
    /// no class is guaranteed.
    #[test]
    fn unused_flow_is_lent_in_full(guarantees in guarantees(), trace in requests()) {
        let held: u64 = guarantees.iter().map(|(_, guarantee)| guarantee.quota()).sum();
        let total = guarantees.total();
        prop_assume!(total.quota() > held);
        let rest = total.rate().with_burst(total.quota() - held).unwrap();
        let mut rest = Key::new(&Limit::new(rest, total.algorithm()).unwrap());
        let (mut state, mut now) = (State::new(&guarantees), START);
        for (after, _, n) in trace {
            now += after;
            let decision = state.check(CLASSES.len() - 1, n, now);
            let expected = rest.check(n, now);
            prop_assert_eq!(decision.wait(), expected.wait());
            prop_assert_eq!(decision.remaining(), expected.remaining());
        }
    }

    #[test]
    fn the_total_is_never_exceeded(guarantees in guarantees(), trace in requests()) {
        let mut total = Key::new(guarantees.total());
        let (mut state, mut now) = (State::new(&guarantees), START);
        for (after, class, n) in trace {
            now += after;
            if state.check(class, n, now).allowed() {
                prop_assert!(total.check(n, now).allowed());
            }
        }
    }

    /// Also with debts, refunds, and a clock that goes back.
    #[test]
    fn the_total_is_never_exceeded_whatever_happens(
        guarantees in guarantees(), trace in requests(), events in proptest::collection::vec(0..8u8, 100),
    ) {
        let mut total = Key::new(guarantees.total());
        let (mut state, mut now, mut charged) = (State::new(&guarantees), START, Vec::new());
        for ((after, class, n), event) in trace.into_iter().zip(events) {
            now += after;
            match event {
                0 => {
                    let _ = state.charge(class, n, now);
                    let _ = total.charge(n, now);
                }
                1 => {
                    if let Some((class, n, at, borrowed)) = charged.pop() {
                        state.refund(class, n, at, borrowed, now);
                        let _ = total.refund(n, at, now);
                    }
                }
                2 => now -= after.min(10),
                _ => {
                    let decision = state.check(class, n, now);
                    if decision.allowed() {
                        prop_assert!(total.check(n, now).allowed());
                        charged.push((class, n, now, decision.is_borrowed()));
                    }
                }
            }
            prop_assert_eq!(state.cells[0].cell, total.cell);
        }
    }

    /// Also in debt.
    #[test]
    fn retry_after_is_exact(
        guarantees in guarantees(), trace in requests(), debts in proptest::collection::vec(0..10u8, 100),
    ) {
        let (mut state, mut now) = (State::new(&guarantees), START);
        for ((after, class, n), debt) in trace.into_iter().zip(debts) {
            now += after;
            if debt == 0 {
                let _ = state.charge(class, n, now);
            }
            match state.check(class, n, now).wait() {
                Wait::None => {}
                Wait::Micros(wait) => {
                    prop_assert!(state.peek(class, n, now + wait).allowed(), "after {}", wait);
                    prop_assert!((0..wait).all(|us| !state.peek(class, n, now + us).allowed()));
                }
                Wait::Never => prop_assert!((0..2_000).all(|us| !state.peek(class, n, now + us).allowed())),
            }
        }
    }

    #[test]
    fn a_denial_charges_nothing(guarantees in guarantees(), trace in requests()) {
        let (mut state, mut now) = (State::new(&guarantees), START);
        for (after, class, n) in trace {
            now += after;
            let before = state.cells.clone();
            let peeked = state.peek(class, n, now);
            let decision = state.check(class, n, now);
            prop_assert_eq!(decision.wait(), peeked.wait());
            if !decision.allowed() {
                let cells = |cells: &[BucketCell]| cells.iter().map(|state| state.cell).collect::<Vec<_>>();
                prop_assert_eq!(cells(&before), cells(&state.cells));
            }
        }
    }

    #[test]
    fn a_refund_undoes_a_charge(guarantees in guarantees(), trace in requests()) {
        let (mut state, mut now) = (State::new(&guarantees), START);
        for (after, class, n) in trace {
            now += after;
            let before = state.peek(class, 1, now);
            let reset = before.reset_after();
            let mut refunded = state.clone();
            let decision = refunded.check(class, n, now);
            if decision.allowed() {
                refunded.refund(class, n, now, decision.is_borrowed(), now);
                prop_assert_eq!(refunded.peek(class, 1, now), before);
                prop_assert_eq!(refunded.peek(class, 1, now).reset_after(), reset);
            }
            let _ = state.check(class, n, now);
        }
    }

    /// However late: what is refunded to a guarantee is in the total.
    #[test]
    fn a_refund_leaves_the_guarantees_covered(
        guarantees in guarantees(), trace in requests(), refunds in proptest::collection::vec(0..5usize, 100),
    ) {
        let (mut state, mut now, mut charged) = (State::new(&guarantees), START, Vec::new());
        let classes = guarantees.iter().count();
        for ((after, class, n), refund) in trace.into_iter().zip(refunds) {
            now += after;
            let decision = state.check(class, n, now);
            if decision.allowed() {
                charged.push((class, n, now, decision.is_borrowed()));
            }
            if refund == 0 && !charged.is_empty() {
                let (class, n, at, borrowed) = charged.remove(0);
                state.refund(class, n, at, borrowed, now);
            }
            // Each class can spend what is left of its guarantee, after all others have.
            let mut spent = state.clone();
            for (class, name) in CLASSES.iter().enumerate() {
                let bucket = guarantees.iter().position(|(of, _)| of == *name);
                let Some(bucket) = bucket else { continue };
                let limit = guarantees.class(name).guarantee().cloned().unwrap();
                let mut alone = Key::new(&limit);
                alone.cell = spent.cells[1 + bucket].cell;
                let left = alone.peek(1, now).remaining();
                if left > 0 {
                    let decision = spent.check(class, left, now);
                    prop_assert!(decision.allowed() && !decision.is_borrowed(), "of {} classes", classes);
                }
            }
        }
    }

    /// While a rate changes, the total holds.
    #[test]
    fn usage_carries_over_when_a_guarantee_is_added(
        guarantees in guarantees(), trace in requests(), used in 1..30u64,
    ) {
        let total = guarantees.total();
        let mut key = Key::new(total);
        let _ = key.check(used.min(total.quota()), START);
        let mut state = State::new(&guarantees);
        state.cells[0].cell = key.cell;
        let mut now = START;
        for (after, class, n) in trace {
            now += after;
            let decision = state.check(class, n, now);
            if decision.allowed() {
                prop_assert!(key.check(n, now).allowed());
            } else if let Wait::Micros(wait) = decision.wait() {
                prop_assert!(state.peek(class, n, now + wait).allowed());
                prop_assert!(!state.peek(class, n, now + wait - 1).allowed());
            }
        }
    }

    /// From the smallest to the largest numbers.
    #[test]
    fn extreme_guarantees_are_exact_or_rejected(
        total in proptest::sample::select(EXTREMES), part in proptest::sample::select(EXTREMES),
        steps in proptest::collection::vec((0..50u32, 0..31u32, any::<bool>()), 1..30),
    ) {
        let total = Limit::token_bucket(total).unwrap();
        let guarantees = Guarantees::new(total, [("a", part.parse().unwrap())]);
        let Ok(guarantees) = guarantees else { return Ok(()) };
        let mut state = State::new(&guarantees);
        let mut total = Key::new(guarantees.total());
        let mut now = START;
        for (after, bits, is_debt) in steps {
            now = Micros::new(now + (1u64 << after) / 2).get();
            if is_debt {
                let _ = state.charge(0, 1 << bits, now);
                let _ = total.charge(1 << bits, now);
            }
            let decision = state.check(0, 1 << bits, now);
            if decision.allowed() {
                prop_assert!(total.check(1 << bits, now).allowed());
            }
            if let Wait::Micros(wait) = decision.wait() && now + wait < Micros::MAX.get() {
                prop_assert!(state.peek(0, 1 << bits, now + wait).allowed());
                prop_assert!(!state.peek(0, 1 << bits, now + wait - 1).allowed());
            }
        }
    }
}

/// A fifth of all pairs is possible.
const EXTREMES: &[&str] = &[
    "1/year burst 1",
    "1/year burst 100",
    "7/10years burst 90",
    "13/month burst 60",
    "1000/day",
    "99991/day burst 70000",
    "60000000/365d burst 1000000",
    "1000/7s",
    "999983/s",
    "1000000/s burst 1000000000",
    "10000000/s burst 1000000000",
    "66999999/s",
    "4000000000/ms burst 4000000000",
];

#[test]
fn many_extreme_guarantees_are_possible() {
    let is_possible = |total: &str, part: &str| {
        let total = Limit::token_bucket(total).unwrap();
        Guarantees::new(total, [("a", part.parse().unwrap())]).is_ok()
    };
    let pairs = EXTREMES.iter().flat_map(|total| EXTREMES.iter().map(move |part| (total, part)));
    let possible = pairs.filter(|(total, part)| is_possible(total, part)).count();
    assert!(possible >= EXTREMES.len() * EXTREMES.len() / 5, "{possible}");
}

fn partners() -> Guarantees {
    let total = Limit::token_bucket("350/s").unwrap().named("api");
    Guarantees::new(total, [("a", "200/s".parse().unwrap())]).unwrap()
}

/// Of 350 requests per second, 200 are guaranteed to partners (class 0). Others (class 1) flood.
#[test]
fn partners_get_their_200_of_350_per_second() {
    let mut state = State::new(&partners());
    let (mut of_partners, mut of_others, mut denied) = (0, 0, 0);
    // 10 seconds. Others send 1,000 per second throughout, partners 200 per second from the 5th second on.
    for ms in 0..10_000 {
        let now = START + ms * 1_000;
        of_others += u64::from(state.check(1, 1, now).allowed());
        if ms >= 5_000 && ms % 5 == 0 {
            match state.check(0, 1, now).allowed() {
                true => of_partners += 1,
                false => denied += 1,
            }
        }
    }
    assert_eq!((of_partners, denied), (1_000, 0));
    // 150 at once and 350 per second while partners are idle; then the 150 per second that they leave.
    let expected = 150 + 5 * 350 + 5 * 150;
    assert!((expected - 1..=expected + 1).contains(&of_others), "{of_others} of {expected}");
}

#[test]
fn the_wait_is_the_shorter_one_of_both_ways() {
    let mut state = State::new(&partners());
    assert!(state.check(1, 150, START).is_borrowed());
    // Borrowing 1 takes the flow of 350 per second, because the guarantee is full: 1/350 s.
    assert_eq!(state.check(1, 1, START).wait(), Wait::Micros(2_858));
    assert!(!state.check(0, 200, START).is_borrowed());
    // Now the guarantee refills too: partners get 1 in 1/200 s, others in 1/150 s.
    assert_eq!(state.check(0, 1, START).wait(), Wait::Micros(5_000));
    assert_eq!(state.check(1, 1, START).wait(), Wait::Micros(6_667));
    // Others can have 150 in a second, and no more: then both are full.
    assert_eq!(state.check(1, 150, START).wait(), Wait::Micros(1_000_000));
    assert_eq!(state.check(1, 151, START).wait(), Wait::Never);
    assert_eq!(state.check(0, 200, START).wait(), Wait::Micros(1_000_000));
    assert_eq!(state.check(0, 201, START).wait(), Wait::Never);
}

#[test]
fn a_debt_is_paid_by_the_class_that_made_it() {
    let total = Limit::token_bucket("100/s").unwrap();
    let rates = [("a", "60/s".parse().unwrap()), ("b", "40/s".parse().unwrap())];
    let mut state = State::new(&Guarantees::new(total, rates).unwrap());
    let _ = state.charge(0, 100, START);
    assert_eq!(state.check(1, 40, START).wait(), Wait::Micros(400_000), "the total is empty");
    // After that time the total has 40, and they are held back for b.
    let at = START + 400_000;
    assert!(!state.peek(0, 1, at).allowed());
    assert!(!state.peek(4, 1, at).allowed());
    assert!(!state.check(1, 40, at).is_borrowed());
}

#[test]
fn errors_say_by_how_much_guarantees_exceed_the_total() {
    let of = |total: &str, parts: &[(&'static str, &str)]| {
        let parts: Vec<_> =
            parts.iter().map(|(class, rate)| (*class, rate.parse().unwrap())).collect();
        Guarantees::new(Limit::token_bucket(total).unwrap(), parts).map(drop).unwrap_err()
    };
    let rates = of("350/s burst 1000", &[("a", "200/s"), ("b", "9060/minute burst 1")]);
    assert!(matches!(rates, GuaranteesError::Rates { excess: 1, .. }), "{rates}");
    let bursts = of("350/s", &[("a", "200/s burst 300"), ("b", "1/s burst 51")]);
    assert_eq!(
        bursts.to_string(),
        "the bursts of the guarantees sum up to 351, 1 more than the burst 350 of the total 350/s; lower one of them, or raise the burst of the total"
    );
    let fine = of("66999999/s", &[("a", "999983/year")]);
    assert!(matches!(fine, GuaranteesError::NotExact { .. }), "{fine}");
    assert_eq!(of("5/s", &[]), GuaranteesError::Count(0));
    assert_eq!(of("5/s", &[("a", "1/s"), ("a", "2/s")]), GuaranteesError::Duplicate("a".into()));
    let leaky = Limit::leaky_bucket("5/s").unwrap();
    let error = Guarantees::new(leaky, [("a", "1/s".parse().unwrap())]).unwrap_err();
    assert_eq!(error.to_string(), "leaky_bucket has no guarantees; use token_bucket");
}
