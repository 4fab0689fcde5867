//! Windows of the calendar, which differ in length.

use ratekeeper_core::{Limit, Micros};

use super::{Random, Reference, cost, follow_the_core};
use crate::{Charge, ChargeKind, Op, Store};

const HOUR_US: u64 = 3_600_000_000;
/// 2026-03-29 0:00 in Berlin, where the day has 23 hours.
const SHORT_DAY: u64 = 1_774_738_800_000_000;

fn limits() -> Vec<Limit> {
    let rates = [
        "7/calendar hour in Australia/Lord_Howe",
        "20/calendar day in Europe/Berlin",
        "20/calendar day in America/St_Johns",
        "90/calendar week",
        "300/calendar month from day 31 in America/New_York",
    ];
    rates.iter().map(|rate| rate.parse().expect("a limit")).collect()
}

/// Two years and all operations, some just before a window ends and some just after.
pub async fn calendar_windows_give_the_cores_decisions<S: Store>(store: &S) {
    follow_the_core(store, &limits(), 4_000, Random(4), |random| {
        let after = match random.below(3) {
            0 => 0,
            1 => random.below(16 * HOUR_US),
            // START is 22:13:20, so most of these are next to a full hour.
            _ => 400_000_000 + random.below(4) * HOUR_US - random.below(3) * 100_000_000,
        };
        (after, 1 + random.below(9))
    })
    .await;
}

/// One after the other, two, and several at once.
pub async fn calendar_windows_are_charged_together_with_others<S: Store>(store: &S) {
    let mut limits = limits();
    limits.push("40/day".parse().expect("a limit"));
    limits.push(Limit::fixed_window("30/day").expect("a limit"));
    let (mut random, mut reference) = (Random(5), Reference::default());
    let mut now = SHORT_DAY - 100 * HOUR_US;
    for step in 0..1_500 {
        now += random.below(2) * random.below(5 * HOUR_US);
        let first = random.below(limits.len() as u64) as usize;
        let several = 1 + random.below(4) as usize;
        let charge = |i: usize, random: &mut Random| {
            let charge = Charge::new(&limits[(first + i) % limits.len()], "k");
            charge.cost(random.cost(4)).kind(random.kind())
        };
        let charges: Vec<_> = (0..several).map(|i| charge(i, &mut random)).collect();
        let at = Micros::new(now);
        let verdict = store.apply(Op::Check, &charges, at).await.expect("a verdict");
        assert_eq!(verdict.decisions(), reference.check_all(&charges, at), "step {step}");
    }
}

/// Also one of 23 hours. Nothing is left of a debt or of a refund afterwards.
pub async fn a_calendar_window_ends_when_its_day_does<S: Store>(store: &S) {
    let limit: Limit = "10/calendar day in Europe/Berlin".parse().expect("a limit");
    let apply = async |op, charge: Charge<'_>, at| {
        *store.apply(op, &[charge], Micros::new(at)).await.expect("a verdict")
    };
    let charge = Charge::new(&limit, "k");
    let noon = SHORT_DAY + 11 * HOUR_US;
    assert_eq!(apply(Op::Check, charge.cost(cost(6)), noon).await.remaining(), 4);
    let overdraft = charge.cost(cost(9)).kind(ChargeKind::Overdraft);
    assert!(apply(Op::Check, overdraft, noon).await.allowed());
    for _ in 0..2 {
        let denied = apply(Op::Check, overdraft, noon).await;
        assert_eq!(denied.retry_after().map(|wait| wait.as_secs()), Some(12 * 3_600));
        assert_eq!(denied.reset_after().as_secs(), 12 * 3_600);
    }
    let midnight = SHORT_DAY + 23 * HOUR_US;
    assert!(!apply(Op::Check, charge, midnight - 1).await.allowed());
    let next = apply(Op::Check, charge, midnight).await;
    assert!(next.allowed() && next.remaining() == 9);
    assert_eq!(next.reset_after().as_secs(), 24 * 3_600);
    let refund = Op::Refund { charged_at: Micros::new(noon) };
    assert_eq!(apply(refund, charge.cost(cost(6)), midnight).await.remaining(), 9);
}

/// The count stays if the start is the same, whatever else has changed.
pub async fn a_calendar_window_that_begins_elsewhere_is_a_new_one<S: Store>(store: &S) {
    let at = Micros::new(SHORT_DAY);
    let check = async |rate: &str| {
        let limit = rate.parse::<Limit>().expect("a limit").named("quota");
        let verdict = store.apply(Op::Check, &[Charge::new(&limit, "k")], at).await;
        verdict.expect("a verdict").remaining()
    };
    assert_eq!(check("10/calendar month from day 15 in Europe/Berlin").await, 9);
    assert_eq!(check("20/calendar month from day 15 in Europe/Paris").await, 18);
    assert_eq!(check("10/calendar month from day 14 in Europe/Paris").await, 9);
    assert_eq!(check("10/calendar month from day 14 in Europe/Berlin").await, 8);
    // Another unit has another length, so that usage carries over.
    assert_eq!(check("10/calendar day in Europe/Berlin").await, 7);
}
