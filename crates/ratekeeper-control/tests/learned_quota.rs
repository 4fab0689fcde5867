//! Quotas learned from simulated servers, in virtual time.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{LearnedQuota, Micros, QuotaHint};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND;

/// A server that counts the requests of fixed windows.
struct WindowServer {
    quota: u64,
    window_us: u64,
    /// When some window started.
    phase_us: u64,
    current: u64,
    count: u64,
    states_policy: bool,
}

impl WindowServer {
    fn request(&mut self, now: u64) -> (bool, QuotaHint) {
        let elapsed = now - START + self.phase_us;
        let window = elapsed / self.window_us;
        if window != self.current {
            (self.current, self.count) = (window, 0);
        }
        let is_admitted = self.count < self.quota;
        self.count += u64::from(is_admitted);
        let reset_us = self.window_us - elapsed % self.window_us;
        let hint = QuotaHint {
            limit: self.states_policy.then_some(self.quota),
            window: self.states_policy.then_some(Duration::from_micros(self.window_us)),
            remaining: Some(self.quota - self.count),
            reset_after: Some(whole_secs_up(reset_us)),
        };
        (is_admitted, hint)
    }
}

/// A token bucket with headers as Ratekeeper writes them: the reset is the time until it is full,
/// or until the next request is admitted if this one is refused.
struct BucketServer {
    quota: u64,
    window_us: u64,
    /// A unit is `window_us` of credit.
    credit: u64,
    as_of: u64,
}

impl BucketServer {
    fn request(&mut self, now: u64) -> (bool, QuotaHint) {
        let capacity = self.quota * self.window_us;
        self.credit = (self.credit + (now - self.as_of) * self.quota).min(capacity);
        self.as_of = now;
        let is_admitted = self.credit >= self.window_us;
        if is_admitted {
            self.credit -= self.window_us;
        }
        let target = if is_admitted { capacity } else { self.window_us };
        let hint = QuotaHint {
            limit: Some(self.quota),
            window: Some(Duration::from_micros(self.window_us)),
            remaining: Some(self.credit / self.window_us),
            reset_after: Some(whole_secs_up((target - self.credit).div_ceil(self.quota))),
        };
        (is_admitted, hint)
    }
}

fn whole_secs_up(us: u64) -> Duration {
    Duration::from_secs(us.div_ceil(SECOND))
}

/// Waits as the quota says, sends a request, and takes in the response after `latency`. Returns
/// the time of the response, and whether it was admitted.
fn request_obediently(
    quota: &mut LearnedQuota,
    server: impl FnOnce(u64) -> (bool, QuotaHint),
    now: u64,
    latency: u64,
) -> (u64, bool) {
    let mut now = now;
    while let Some(wait) = quota.wait(1, Micros::new(now)) {
        now += wait.as_micros() as u64;
    }
    quota.charge(1, Micros::new(now));
    let (is_admitted, hint) = server(now);
    now += latency;
    quota.observe(&hint, 0, Micros::new(now));
    (now, is_admitted)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_window_is_not_overrun(
        quota in 1..40u64, window in 3..120u64, phase in 0..120 * SECOND, states_policy: bool,
        pace in 1..8u64, steps in prop::collection::vec((0..1_000u64, 0..50_000u64), 200),
    ) {
        let window_us = window * SECOND;
        let mut server = WindowServer {
            quota, window_us, phase_us: phase % window_us, current: 0, count: 0, states_policy,
        };
        let mut learned = LearnedQuota::default();
        let mut now = START;
        for (think, latency) in steps {
            // From at once to several times the pace that the window allows.
            now += think * window_us * pace / quota / 2_000;
            let request = |now| server.request(now);
            let (later, is_admitted) = request_obediently(&mut learned, request, now, latency);
            prop_assert!(is_admitted, "refused at {} µs", later - START);
            now = later;
        }
    }

    #[test]
    fn a_refilling_server_is_used_at_its_rate(
        quota in 1..200u64, window in 1..120u64, level in 0..=100u64, latency_percent in 0..50u64,
    ) {
        let window_us = window * SECOND;
        let mut server = BucketServer {
            quota, window_us, credit: quota * window_us / 100 * level, as_of: START,
        };
        // What refills during a request is known only from the next response. A small bucket may
        // be full before, so its loss is the latency.
        let latency_percent = if quota < 10 { latency_percent % 5 } else { latency_percent };
        let latency = window_us / quota * latency_percent / 100;
        let mut learned = LearnedQuota::default();
        let (mut now, mut admitted, mut refused) = (START, 0u64, 0u64);
        while now < START + 100 * window_us {
            let request = |now| server.request(now);
            let (later, is_admitted) = request_obediently(&mut learned, request, now, latency);
            admitted += u64::from(is_admitted);
            refused += u64::from(!is_admitted);
            now = later;
        }
        prop_assert!(admitted * 100 >= 100 * quota * 95, "{admitted} of {}", 100 * quota);
        // Only the first request is sent without knowing what remains.
        prop_assert!(refused <= 1, "{refused} refused");
    }

    #[test]
    fn waits_are_bounded(
        hints in prop::collection::vec((any_hint(), 0..100u64, 0..200 * SECOND), 1..10),
        cost: u64, later in 0..100 * SECOND, back in 0..100 * SECOND,
    ) {
        let mut learned = LearnedQuota::default();
        let mut longest = Duration::ZERO;
        for (hint, in_flight, at) in hints {
            let now = Micros::new(START + at);
            learned.observe(&hint, in_flight, now);
            longest = longest.max(hint.reset_after.unwrap_or_default());
            for at in [now.get(), now.get() + later, now.get() - back] {
                let wait = learned.wait(cost, Micros::new(at)).unwrap_or_default();
                prop_assert!(wait <= longest, "{wait:?} > {longest:?}");
            }
        }
    }

    #[test]
    fn waits_of_what_was_charged_are_bounded(
        hint in any_hint(), charges in prop::collection::vec((any::<u64>(), 0..SECOND), 0..10),
    ) {
        let mut learned = LearnedQuota::default();
        let mut now = START;
        learned.observe(&hint, 0, Micros::new(now));
        for (cost, later) in charges {
            learned.charge(cost, Micros::new(now));
            now += later;
            let wait = learned.wait(cost, Micros::new(now)).unwrap_or_default();
            let slack = Duration::from_secs(2);
            let longest = hint.reset_after.unwrap_or_default();
            let bound = longest.max(hint.window.unwrap_or_default().saturating_add(slack));
            prop_assert!(wait <= bound, "{wait:?} > {bound:?}");
        }
    }

    #[test]
    fn after_the_reset_of_a_window_there_is_no_constraint(
        remaining in 0..10u64, reset in 0..100u64, cost: u64,
    ) {
        let hint = window_hint(remaining, reset);
        let mut learned = LearnedQuota::default();
        learned.observe(&hint, 0, Micros::new(START));
        prop_assert_eq!(learned.wait(cost, Micros::new(START + reset * SECOND)), None);
    }
}

/// While only few responses were seen, a window may look like a bucket.
#[test]
fn a_window_is_not_overrun_from_any_moment_of_it_on() {
    for (quota, window) in [(1, 3), (2, 3), (2, 60), (3, 5), (3, 30), (5, 10), (20, 4), (40, 20)] {
        let window_us = window * SECOND;
        for phase_us in (0..window_us).step_by(50_000) {
            let mut server = WindowServer {
                quota,
                window_us,
                phase_us,
                current: 0,
                count: 0,
                states_policy: true,
            };
            let mut learned = LearnedQuota::default();
            let mut now = START;
            for _ in 0..3 * quota {
                let request = |now| server.request(now);
                let (later, is_admitted) = request_obediently(&mut learned, request, now, 1_000);
                assert!(is_admitted, "{quota} in {window} s, {phase_us} µs after its start");
                now = later;
            }
        }
    }
}

fn any_hint() -> impl Strategy<Value = QuotaHint> {
    let number =
        || prop_oneof![Just(None), (0..100u64).prop_map(Some), any::<u64>().prop_map(Some)];
    (number(), number(), number(), number()).prop_map(|(limit, window, remaining, reset)| {
        QuotaHint {
            limit,
            window: window.map(Duration::from_secs),
            remaining,
            reset_after: reset.map(Duration::from_secs),
        }
    })
}

fn window_hint(remaining: u64, reset_secs: u64) -> QuotaHint {
    QuotaHint {
        remaining: Some(remaining),
        reset_after: Some(Duration::from_secs(reset_secs)),
        ..QuotaHint::default()
    }
}

fn policy_hint(limit: u64, window_secs: u64, remaining: u64, reset_secs: u64) -> QuotaHint {
    QuotaHint {
        limit: Some(limit),
        window: Some(Duration::from_secs(window_secs)),
        ..window_hint(remaining, reset_secs)
    }
}

fn at(ms: u64) -> Micros {
    Micros::new(START + ms * 1_000)
}

fn millis(wait: Option<Duration>) -> Option<u128> {
    wait.map(|wait| wait.as_millis())
}

#[test]
fn responses_of_one_window_count_in_any_order() {
    let mut learned = LearnedQuota::default();
    learned.observe(&window_hint(3, 30), 0, at(0));
    // An earlier request whose response came late.
    learned.observe(&window_hint(5, 30), 0, at(200));
    assert_eq!(learned.wait(3, at(200)), None);
    assert_eq!(millis(learned.wait(4, at(200))), Some(29_800));
    // A response of the window before.
    learned.observe(&window_hint(0, 1), 0, at(300));
    assert_eq!(learned.wait(3, at(300)), None);
    // One of the next window.
    learned.observe(&window_hint(9, 60), 0, at(400));
    assert_eq!(learned.wait(9, at(400)), None);
}

#[test]
fn what_is_in_flight_is_taken_off() {
    let mut learned = LearnedQuota::default();
    learned.observe(&window_hint(5, 30), 3, at(0));
    assert_eq!(learned.wait(2, at(0)), None);
    assert_eq!(millis(learned.wait(3, at(0))), Some(30_000));
    learned.observe(&policy_hint(10, 60, 0, 60), 3, at(60_000));
    assert_eq!(millis(learned.wait(1, at(60_000))), Some(6_000));
}

#[test]
fn a_bucket_is_told_from_a_window() {
    // 10 in 60 s: a unit each 6 s.
    for (remaining, reset, wait_ms) in [
        (0, 60, 6_000),
        (0, 55, 6_000), // a part of a unit is there
        (5, 30, 6_000 * 5),
        (9, 60, 60_000), // only a window has used one unit and resets after 60 s
        (5, 50, 50_000),
        (0, 10, 10_000), // too early for a full bucket: nothing comes back before
        (0, 1, 1_000),
    ] {
        let mut learned = LearnedQuota::default();
        learned.observe(&policy_hint(10, 60, remaining, reset), 0, at(0));
        let cost = if remaining == 0 { 1 } else { 10 };
        assert_eq!(millis(learned.wait(cost, at(0))), Some(wait_ms), "r={remaining};t={reset}");
    }
}

#[test]
fn once_a_window_always_a_window() {
    let mut learned = LearnedQuota::default();
    learned.observe(&policy_hint(10, 60, 9, 60), 0, at(0));
    // It fits a bucket too.
    learned.observe(&policy_hint(10, 60, 5, 30), 0, at(30_000));
    assert_eq!(millis(learned.wait(6, at(30_000))), Some(30_000));
}

#[test]
fn the_refusal_of_a_bucket_does_not_make_it_a_window() {
    let mut learned = LearnedQuota::default();
    // Refused: the reset is when the next request is admitted.
    learned.observe(&policy_hint(10, 60, 0, 6), 0, at(0));
    assert_eq!(millis(learned.wait(1, at(0))), Some(6_000));
    learned.observe(&policy_hint(10, 60, 0, 60), 0, at(6_000));
    assert_eq!(millis(learned.wait(1, at(6_000))), Some(6_000));
}

#[test]
fn a_short_window_is_taken_for_a_bucket() {
    let mut learned = LearnedQuota::default();
    learned.observe(&policy_hint(100, 1, 0, 1), 0, at(0));
    assert_eq!(millis(learned.wait(1, at(0))), Some(10));
    assert_eq!(millis(learned.wait(1_000, at(0))), Some(1_000), "no more than until it is full");
}

#[test]
fn what_is_not_said_does_not_constrain() {
    for hint in [
        QuotaHint::default(),
        QuotaHint { remaining: Some(0), ..QuotaHint::default() },
        QuotaHint { reset_after: Some(Duration::from_secs(9)), ..QuotaHint::default() },
        QuotaHint { limit: Some(0), ..QuotaHint::default() },
    ] {
        let mut learned = LearnedQuota::default();
        learned.observe(&hint, 0, at(0));
        learned.charge(1, at(0));
        assert_eq!(learned.wait(u64::MAX, at(0)), None, "{hint:?}");
    }
}

#[test]
fn resets_of_a_second_without_a_window_say_too_little() {
    let mut quota = LearnedQuota::default();
    let hint = |reset| QuotaHint {
        limit: Some(5),
        remaining: Some(0),
        reset_after: Some(Duration::from_secs(reset)),
        ..QuotaHint::default()
    };
    let now = Micros::new(1_790_000_000_000_000);
    quota.observe(&hint(1), 0, now);
    assert_eq!(quota.wait(1, now), None, "it may be a bucket that refills in milliseconds");
    quota.observe(&hint(30), 0, now);
    assert_eq!(quota.wait(1, now), Some(Duration::from_secs(30)));
    let later = now.after(Duration::from_secs(29));
    quota.observe(&hint(1), 0, later);
    assert_eq!(quota.wait(1, later), Some(Duration::from_secs(1)), "the end of a longer window");
}
