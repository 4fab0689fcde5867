//! The promises of the rules for retries.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{
    AttemptState, Backoff, Failure, Jitter, Micros, NextStep, Pushback, QuotaHint, ResponseHints,
    RetryBudget, RetryBudgetConfig, RetryRules, StopReason,
};

const NOW: Micros = Micros::new_unchecked(1_790_000_000_000_000);
const MAX: Duration = Duration::from_secs(60);

/// The first attempt of a request that may be repeated.
const REPEATABLE: AttemptState = AttemptState {
    number: 1,
    elapsed: Duration::ZERO,
    previous_delay: Duration::ZERO,
    time_left: None,
    is_safe: true,
    is_replayable: true,
};

fn hints(change: impl FnOnce(&mut ResponseHints)) -> ResponseHints {
    let mut hints = ResponseHints::default();
    change(&mut hints);
    hints
}

fn next(failure: Failure, hints: &ResponseHints, attempt: &AttemptState) -> NextStep {
    let mut budget = RetryBudget::default();
    RetryRules::DEFAULT.next(&failure, hints, attempt, &mut budget, NOW, 0)
}

fn any_failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        Just(Failure::NotSent),
        Just(Failure::Broken),
        prop::sample::select(&[200, 400, 403, 429, 500, 502, 503, 504][..])
            .prop_map(Failure::Status),
        (0..17u16).prop_map(Failure::Grpc),
    ]
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        3 => (0..100_000u64).prop_map(Duration::from_millis),
        1 => any::<u64>().prop_map(Duration::from_micros),
        1 => Just(Duration::MAX),
    ]
}

fn any_hints() -> impl Strategy<Value = ResponseHints> {
    let pushback = prop_oneof![
        4 => Just(None),
        1 => any_duration().prop_map(|wait| Some(Pushback::After(wait))),
        1 => Just(Some(Pushback::DoNotRetry)),
    ];
    let quota = (0..3u64, any_duration()).prop_map(|(remaining, reset)| QuotaHint {
        remaining: Some(remaining),
        reset_after: Some(reset),
        ..QuotaHint::default()
    });
    (
        prop::option::of(any_duration()),
        prop::option::of(any::<bool>()),
        pushback,
        prop::option::of(quota),
    )
        .prop_map(|(retry_after, should_retry, pushback, requests)| {
            hints(|hints| {
                hints.retry_after = retry_after;
                hints.should_retry = should_retry;
                hints.pushback = pushback;
                hints.requests = requests;
            })
        })
}

fn any_attempt() -> impl Strategy<Value = AttemptState> {
    let times = (any_duration(), any_duration(), prop::option::of(any_duration()));
    (1..6u32, times, any::<bool>(), any::<bool>()).prop_map(
        |(number, (elapsed, previous_delay, time_left), is_safe, is_replayable)| AttemptState {
            number,
            elapsed,
            previous_delay,
            time_left,
            is_safe,
            is_replayable,
        },
    )
}

fn any_rules() -> impl Strategy<Value = RetryRules> {
    let jitter = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated];
    (0..5u32, any_duration(), any_duration(), prop::sample::select(jitter.to_vec())).prop_map(
        |(attempts, total, retry_after, jitter)| {
            RetryRules::DEFAULT
                .with_attempts_max(attempts)
                .with_total_max(total)
                .with_retry_after_max(retry_after)
                .with_backoff(Backoff::DEFAULT.with_jitter(jitter))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_retry_never_comes_before_retry_after(
        failure in any_failure(), rules in any_rules(), hints in any_hints(),
        attempt in any_attempt(), random: u64,
    ) {
        let mut budget = RetryBudget::default();
        let step = rules.next(&failure, &hints, &attempt, &mut budget, NOW, random);
        if let NextStep::Retry { after } = step {
            match hints.pushback {
                Some(pushback) => prop_assert_eq!(pushback, Pushback::After(after)),
                None => prop_assert!(after >= hints.retry_after.unwrap_or_default()),
            }
        }
    }

    #[test]
    fn callers_that_were_refused_together_are_spread(retry_after_ms in 0..60_000u64, random: u64) {
        let asked = Duration::from_millis(retry_after_ms);
        let hints = hints(|hints| hints.retry_after = Some(asked));
        let rules = RetryRules::DEFAULT.with_total_max(Duration::MAX);
        let mut budget = RetryBudget::default();
        let step = rules.next(&Failure::Status(429), &hints, &REPEATABLE, &mut budget, NOW, random);
        let NextStep::Retry { after } = step else { panic!("{step:?}") };
        let latest = asked + asked / 10 + Duration::from_millis(100);
        prop_assert!((asked..=latest).contains(&after));
    }

    #[test]
    fn attempts_are_bounded(
        failure in any_failure(), rules in any_rules(), attempts_max in 0..5u32, hints in any_hints(),
        random: u64,
    ) {
        let rules = rules.with_attempts_max(attempts_max);
        let config = RetryBudgetConfig::DEFAULT.with_floor_per_sec(1_000);
        let mut budget = RetryBudget::new(config).unwrap();
        let mut attempt = REPEATABLE;
        while let NextStep::Retry { after } =
            rules.next(&failure, &hints, &attempt, &mut budget, NOW, random)
        {
            attempt.number += 1;
            attempt.previous_delay = after;
            attempt.elapsed = attempt.elapsed.saturating_add(after);
        }
        prop_assert!(attempt.number <= attempts_max.max(1));
    }

    #[test]
    fn what_is_not_safe_is_not_repeated(
        failure in any_failure(), rules in any_rules(), hints in any_hints(),
        attempt in any_attempt(), random: u64,
    ) {
        let attempt = AttemptState { is_safe: false, ..attempt };
        let mut budget = RetryBudget::default();
        let step = rules.next(&failure, &hints, &attempt, &mut budget, NOW, random);
        prop_assert!(matches!(step, NextStep::Stop(_)) || failure == Failure::NotSent);
    }

    #[test]
    fn a_retry_is_within_the_deadline_and_the_total_time(
        failure in any_failure(), rules in any_rules(), total_max in any_duration(),
        hints in any_hints(), attempt in any_attempt(), random: u64,
    ) {
        let mut budget = RetryBudget::default();
        let rules = rules.with_total_max(total_max);
        let step = rules.next(&failure, &hints, &attempt, &mut budget, NOW, random);
        if let NextStep::Retry { after } = step {
            prop_assert!(attempt.elapsed.saturating_add(after) <= total_max);
            prop_assert!(attempt.time_left.is_none_or(|left| after < left));
        }
    }

    #[test]
    fn a_stopped_retry_leaves_the_budget_alone(
        failure in any_failure(), rules in any_rules(), hints in any_hints(),
        attempt in any_attempt(), random: u64,
    ) {
        let mut budget = RetryBudget::default();
        let before = budget.balance(NOW);
        let step = rules.next(&failure, &hints, &attempt, &mut budget, NOW, random);
        let withdrawn = u64::from(matches!(step, NextStep::Retry { .. }));
        prop_assert_eq!(budget.balance(NOW), before - withdrawn);
    }
}

#[test]
fn failures_are_retryable_or_not() {
    let retryable = |failure, hints: &ResponseHints| {
        let step = next(failure, hints, &REPEATABLE);
        assert!(
            matches!(step, NextStep::Retry { .. } | NextStep::Stop(StopReason::NotRetryable)),
            "{failure:?}: {step:?}"
        );
        matches!(step, NextStep::Retry { .. })
    };
    let none = ResponseHints::default();
    assert!(retryable(Failure::NotSent, &none) && retryable(Failure::Broken, &none));
    for status in 100..600 {
        let expected = matches!(status, 429 | 502 | 503 | 504);
        assert_eq!(retryable(Failure::Status(status), &none), expected, "{status}");
        let wanted = hints(|hints| hints.should_retry = Some(true));
        assert_eq!(retryable(Failure::Status(status), &wanted), status >= 400, "{status}");
    }
    for status in 0..17 {
        let expected = matches!(status, 8 | 14);
        assert_eq!(retryable(Failure::Grpc(status), &none), expected, "{status}");
    }
    let secondary_limit = hints(|hints| {
        hints.status = 403;
        hints.retry_after = Some(Duration::from_secs(1));
    });
    assert!(retryable(Failure::Status(403), &secondary_limit));
}

#[test]
fn each_reason_to_stop() {
    let none = ResponseHints::default();
    let retry_after = |secs| hints(|hints| hints.retry_after = Some(Duration::from_secs(secs)));
    let no = [
        hints(|hints| hints.should_retry = Some(false)),
        hints(|hints| hints.pushback = Some(Pushback::DoNotRetry)),
    ];
    let too_long = StopReason::RetryAfterTooLong { retry_after: Duration::from_secs(61), max: MAX };
    let spent = hints(|hints| {
        hints.status = 429;
        hints.requests = Some(QuotaHint {
            remaining: Some(0),
            reset_after: Some(Duration::from_secs(61)),
            ..QuotaHint::default()
        });
    });
    let pushback = hints(|hints| hints.pushback = Some(Pushback::After(Duration::from_secs(61))));
    let time_left = Some(Duration::from_secs(5));
    for (hints, attempt, reason) in [
        (no[0], REPEATABLE, StopReason::ServerSaysNo),
        (no[1], REPEATABLE, StopReason::ServerSaysNo),
        (none, AttemptState { is_safe: false, ..REPEATABLE }, StopReason::NotSafe),
        (none, AttemptState { is_replayable: false, ..REPEATABLE }, StopReason::NotReplayable),
        (none, AttemptState { number: 3, ..REPEATABLE }, StopReason::Attempts),
        (none, AttemptState { elapsed: MAX * 2, ..REPEATABLE }, StopReason::TotalTime),
        (retry_after(5), AttemptState { time_left, ..REPEATABLE }, StopReason::Deadline),
        (retry_after(61), REPEATABLE, too_long),
        (spent, REPEATABLE, too_long),
        (pushback, REPEATABLE, too_long),
    ] {
        let step = next(Failure::Status(429), &hints, &attempt);
        assert_eq!(step, NextStep::Stop(reason), "{hints:?} {attempt:?}");
    }
    let unsafe_but_not_sent = AttemptState { is_safe: false, ..REPEATABLE };
    let step = next(Failure::NotSent, &none, &unsafe_but_not_sent);
    assert!(matches!(step, NextStep::Retry { .. }));
}

#[test]
fn a_spent_budget_stops_retries() {
    let config = RetryBudgetConfig::DEFAULT.with_floor_per_sec(0);
    let mut budget = RetryBudget::new(config).unwrap();
    let none = ResponseHints::default();
    let step = RetryRules::DEFAULT.next(&Failure::Broken, &none, &REPEATABLE, &mut budget, NOW, 0);
    assert_eq!(step, NextStep::Stop(StopReason::BudgetSpent));
}
