//! Promises about limits with guarantees.

use ratekeeper_core::{Algorithm, Decision, Guarantees, Limit, Micros, Wait};

use super::{Random, Reference, START, cost, limit, limits, one};
use crate::{Charge, ChargesError, Op, Store, StoreError};

const CLASSES: [&str; 4] = ["a", "b", "c", "without a guarantee"];

fn guarantees(name: &str, total: &str, parts: &[&str]) -> Guarantees {
    let total = limit(Algorithm::TokenBucket, total).named(name);
    let parts =
        CLASSES.iter().zip(parts).map(|(class, rate)| (class, rate.parse().expect("a rate")));
    Guarantees::new(total, parts).expect("guarantees within the total")
}

/// Some with numbers that are too fine for a state of one word, some with the largest numbers.
fn awkward() -> Vec<Guarantees> {
    [
        ("350/s", &["200/s"][..]),
        ("50/97ms", &["2/7ms", "1/13ms burst 5", "1/91ms burst 40"]),
        ("1013/103ms burst 40", &["3/7ms burst 20", "500/103ms burst 10"]),
        ("4099/ms burst 9", &["1019/ms burst 2", "7/ms burst 7"]),
        ("7/1000ms", &["1/1000ms burst 1", "1/s burst 2", "5/1000ms burst 4"]),
        ("10000000/s burst 1000000000", &["1000000/s burst 900000000", "1/ms burst 1"]),
        ("70/10years burst 28", &["1/year burst 1", "1/10years burst 14"]),
    ]
    .iter()
    .map(|(total, parts)| guarantees(&format!("guaranteed {total}"), total, parts))
    .collect()
}

/// Random operations on a few keys, decided as the core alone would: every store to the bit.
pub async fn guarantees_give_the_cores_decisions<S: Store>(store: &S) {
    let (groups, mut random, mut reference) = (awkward(), Random(7), Reference::default());
    let classes: Vec<_> =
        groups.iter().flat_map(|group| CLASSES.iter().map(|class| group.class(class))).collect();
    let mut now = START;
    let (mut guaranteed, mut borrowed, mut denied) = (0, 0, 0);
    for step in 0..10_000 {
        let (time_scale, cost_scale) = match random.below(20) {
            0 => (1 << random.below(47), 1 << random.below(31)),
            _ => (3_000, 8),
        };
        now = (now + random.below(2) * random.below(time_scale)).min(Micros::MAX.get());
        let at = Micros::new(now);
        let charge = Charge::guaranteed(random.pick(&classes), random.pick(&["k", "l"]));
        let charge = charge.cost(random.cost(cost_scale)).kind(random.kind());
        let mut charge = charge.max_debt(random.max_debt());
        charge.is_borrowed = random.below(2) == 0;
        let charged_at = Micros::new(now - random.below(5_000));
        let op = match random.below(40) {
            0 => Op::Charge,
            1..4 => Op::Refund { charged_at },
            4..8 => Op::Peek,
            _ => Op::Check,
        };
        let decision = *store.apply(op, &[charge], at).await.expect("a verdict");
        let expected = reference.apply(op, &charge, at);
        assert_eq!(decision, expected, "step {step}: {op:?} {charge:?} at {now}");
        match (decision.allowed(), decision.is_borrowed()) {
            (true, false) => guaranteed += 1,
            (true, true) => borrowed += 1,
            (false, _) => denied += 1,
        }
    }
    let all_occur = [guaranteed, borrowed, denied].iter().all(|n| *n > 1_000);
    assert!(all_occur, "{guaranteed} guaranteed, {borrowed} borrowed, {denied} denied");
}

/// Limits of all algorithms and with guarantees, in any order.
pub async fn guarantees_are_charged_together_with_others<S: Store>(store: &S) {
    let (groups, others) = (awkward(), limits());
    let (mut random, mut reference) = (Random(8), Reference::default());
    let mut now = START;
    for step in 0..2_000 {
        now += random.below(2) * random.below(3_000);
        let at = Micros::new(now);
        let classes: Vec<_> =
            groups.iter().map(|group| group.class(random.pick(&CLASSES[..]) as &str)).collect();
        let mut charges: Vec<_> = Vec::new();
        for i in 0..1 + random.below(6) as usize {
            let key = random.pick(&["a", "b"]);
            let charge = match random.below(2) {
                0 => Charge::guaranteed(&classes[i], key),
                _ => Charge::new(&others[(step + 7 * i) % others.len()], key),
            };
            charges.push(charge.cost(random.cost(3)).kind(random.kind()));
        }
        let verdict = store.apply(Op::Check, &charges, at).await.expect("a verdict");
        assert_eq!(verdict.decisions(), reference.check_all(&charges, at), "step {step}");
        if verdict.allowed() && random.below(4) == 0 {
            let decided = charges.iter().zip(verdict.decisions());
            let charged: Vec<_> = decided.map(|(charge, one)| charge.decided(one)).collect();
            let refund = Op::Refund { charged_at: verdict.at() };
            let refunded = store.apply(refund, &charged, at).await.expect("a verdict");
            let expected: Vec<Decision> =
                charged.iter().map(|charge| reference.apply(refund, charge, at)).collect();
            assert_eq!(refunded.decisions(), expected, "step {step}");
        }
    }
}

/// Of 350 requests per second 200 are guaranteed to partners, while others send as much as they can.
pub async fn a_guarantee_is_always_there_and_what_is_unused_is_lent<S: Store>(store: &S) {
    let guarantees = guarantees("api", "350/s", &["200/s"]);
    let (partner, other) = (guarantees.class("a"), guarantees.class("b"));
    let (partner, other) = (Charge::guaranteed(&partner, "eu"), Charge::guaranteed(&other, "eu"));
    let (mut of_partners, mut of_others) = (0, 0);
    for ms in (0..4_000).step_by(2) {
        of_others += u64::from(one(store, Op::Check, other, ms * 1_000).await.allowed());
        if ms >= 2_000 && ms % 10 == 0 {
            let decision = one(store, Op::Check, partner.cost(cost(2)), ms * 1_000).await;
            assert!(decision.allowed() && !decision.is_borrowed(), "at {ms} ms");
            of_partners += 2;
        }
    }
    assert_eq!(of_partners, 400);
    let expected = 150 + 2 * 350 + 2 * 150;
    assert!((expected - 2..=expected + 2).contains(&of_others), "{of_others} of {expected}");
}

/// By the guarantee or by borrowing, whichever is possible earlier.
pub async fn the_wait_for_a_guarantee_is_exact<S: Store>(store: &S) {
    let guarantees = guarantees("waits", "350/s", &["200/s"]);
    let (partner, other) = (guarantees.class("a"), guarantees.class("b"));
    let (partner, other) = (Charge::guaranteed(&partner, "eu"), Charge::guaranteed(&other, "eu"));
    assert!(one(store, Op::Check, other.cost(cost(150)), 0).await.is_borrowed());
    let wait = async |charge| one(store, Op::Check, charge, 0).await.wait();
    assert_eq!(wait(other).await, Wait::Micros(2_858), "1/350 s");
    assert!(one(store, Op::Check, partner.cost(cost(200)), 0).await.allowed());
    assert_eq!(wait(partner).await, Wait::Micros(5_000), "1/200 s, by the guarantee");
    assert_eq!(wait(other).await, Wait::Micros(6_667), "1/150 s, by borrowing");
    assert_eq!(wait(partner.cost(cost(201))).await, Wait::Never);
    for (charge, us) in [(partner, 5_000), (other, 6_667)] {
        assert!(!one(store, Op::Peek, charge, us - 1).await.allowed());
        assert!(one(store, Op::Peek, charge, us).await.allowed());
    }
}

/// The total and all guarantees.
pub async fn a_reset_makes_a_key_with_guarantees_new<S: Store>(store: &S) {
    let guarantees = guarantees("reset", "10/s", &["4/s", "2/10s"]);
    let classes = CLASSES.map(|class| guarantees.class(class));
    let charges = classes.each_ref().map(|class| Charge::guaranteed(class, "k"));
    let ttl = async || store.usage_ttl(&charges[3], Micros::new(START)).await.expect("a time");
    assert_eq!(ttl().await.as_micros(), 0);
    assert!(one(store, Op::Check, charges[0].cost(cost(4)), 0).await.allowed());
    assert!(one(store, Op::Check, charges[1].cost(cost(2)), 0).await.allowed());
    assert!(one(store, Op::Check, charges[3].cost(cost(4)), 0).await.allowed());
    let denied = one(store, Op::Check, charges[3], 0).await;
    assert_eq!(denied.reset_after().as_secs(), 10, "the slowest guarantee");
    let until_new = ttl().await;
    assert!((10_000_000..=10_000_001).contains(&until_new.as_micros()), "{until_new:?}");
    store.reset(&charges[3]).await.expect("a reset");
    assert_eq!(ttl().await.as_micros(), 0);
    for (charge, left) in charges.iter().zip([4, 4, 4, 4]) {
        assert_eq!(one(store, Op::Peek, *charge, 0).await.remaining(), left);
    }
    assert_eq!(
        one(store, Op::Check, charges[1].cost(cost(2)), 0).await.reset_after().as_secs(),
        10
    );
}

/// When guarantees or rates change, the total holds, and waits are exact.
pub async fn usage_carries_over_when_guarantees_change<S: Store>(store: &S) {
    let plain = limit(Algorithm::TokenBucket, "100/s").named("changed");
    assert!(one(store, Op::Check, Charge::new(&plain, "k").cost(cost(90)), 0).await.allowed());
    for (total, parts) in [
        ("100/s", &["60/s"][..]),
        ("100/s", &["60/s", "40/s"]),
        ("80/s", &["30/s burst 20", "10/s"]),
        ("1013/s burst 100", &["1009/3s burst 90"]),
    ] {
        let guarantees = guarantees("changed", total, parts);
        for class in CLASSES {
            let class = guarantees.class(class);
            let charge = Charge::guaranteed(&class, "k").cost(cost(15));
            let denied = one(store, Op::Check, charge, 0).await;
            assert!(!denied.allowed() && denied.remaining() <= 10, "{total}: {denied:?}");
            if let Wait::Micros(wait) = denied.wait() {
                assert!(!one(store, Op::Peek, charge, wait - 1).await.allowed(), "{total}");
                assert!(one(store, Op::Peek, charge, wait).await.allowed(), "{total}");
            }
        }
    }
}

/// Two classes, a class and none, or other guarantees.
pub async fn a_request_is_of_one_class<S: Store>(store: &S) {
    let group = guarantees("one class", "10/s", &["4/s"]);
    let (own, none) = (group.class("a"), group.class("b"));
    let other = guarantees("one class", "10/s", &["5/s"]).class("a");
    let plain: Limit = group.total().clone();
    let charges = [
        [Charge::guaranteed(&own, "k"), Charge::guaranteed(&none, "k")],
        [Charge::guaranteed(&own, "k"), Charge::new(&plain, "k")],
        [Charge::guaranteed(&own, "k"), Charge::guaranteed(&other, "k")],
    ];
    for charges in charges {
        let refused = store.apply(Op::Check, &charges, Micros::new(START)).await;
        let is_conflict =
            matches!(refused, Err(StoreError::Charges(ChargesError::ConflictingClasses(_))));
        assert!(is_conflict, "{refused:?}");
    }
    let twice = [Charge::guaranteed(&own, "k").cost(cost(2)); 2];
    let verdict = store.apply(Op::Check, &twice, Micros::new(START)).await.expect("a verdict");
    assert!(verdict.allowed() && !verdict.is_borrowed(), "4 of 4");
    let apart = [Charge::guaranteed(&none, "k"), Charge::guaranteed(&none, "l")];
    assert!(store.apply(Op::Check, &apart, Micros::new(START)).await.is_ok());
}
