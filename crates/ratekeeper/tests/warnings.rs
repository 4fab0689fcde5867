//! Warnings of a policy: they are logged when it becomes active, and they are right.
#![cfg(feature = "tower")]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use ratekeeper::policy::{NoSources, RequestAttributes};
use ratekeeper::{ManualClock, Policy, PolicyLimiter};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

fn policy(limits: &str) -> Policy {
    let text = format!("version: 1\nlimits:\n{limits}");
    Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Collects the messages of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn warnings_are_logged_once_for_each_policy_that_becomes_active() {
    let warnings = Warnings::default();
    let logged = || std::mem::take(&mut *warnings.0.lock().unwrap());
    tracing::subscriber::with_default(warnings.clone(), || {
        let limiter = PolicyLimiter::new(policy("  - { name: a, rate: 5/s, mode: off }")).unwrap();
        assert_eq!(logged(), ["policy: \"a\" is off: it does not count requests"]);
        limiter.policy().replace(policy("  - { name: b, rate: 5/s }")).unwrap();
        assert_eq!(logged(), [""; 0]);
        limiter.policy().replace(policy("  - { name: c, rate: 5/s, mode: off }")).unwrap();
        assert_eq!(logged(), ["policy: \"c\" is off: it does not count requests"]);
    });
}

/// Two rates of one algorithm, each with a cost. There are few numbers, so that one is often stricter.
fn two_rates() -> impl Strategy<Value = (String, String)> {
    let algorithms = vec!["token_bucket", "fixed_window", "sliding_log", "sliding_counter"];
    let period = prop::sample::select(vec!["100ms", "200ms", "300ms", "s"]);
    let rate = (1..8u32, period, prop::option::of(1..12u32), 1..3u32);
    (prop::sample::select(algorithms), rate.clone(), rate).prop_map(|(algorithm, one, other)| {
        let written = |(count, period, burst, cost): (u32, &str, Option<u32>, u32)| {
            let burst = burst.filter(|_| algorithm == "token_bucket");
            let burst = burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
            format!("rate: {count}/{period}{burst}, algorithm: {algorithm}, cost: {cost}")
        };
        (written(one), written(other))
    })
}

/// Requests in bursts and after pauses in milliseconds, from two clients.
fn traces() -> impl Strategy<Value = Vec<(u64, bool)>> {
    let pause = prop_oneof![3 => Just(0), 1 => 1..150u64, 1 => Just(1_000)];
    prop::collection::vec((pause, any::<bool>()), 30..100)
}

/// Returns whether each request is admitted. Requests come after these pauses in milliseconds, from two
/// clients.
fn decisions(policy: Policy, trace: &[(u64, bool)]) -> Vec<bool> {
    let clock = ManualClock::new();
    let limiter = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut decisions = Vec::new();
        for (pause_ms, is_other) in trace {
            clock.advance(Duration::from_millis(*pause_ms));
            let peer = Some([192, 0, 2, u8::from(*is_other)].into());
            let request = RequestAttributes { peer, ..RequestAttributes::new("GET", "/") };
            decisions.push(limiter.decide(&request).await.is_admitted());
        }
        decisions
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, max_global_rejects: 50_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_limit_without_effect_changes_no_decision(
        (one, other) in two_rates(),
        (is_per_ip, is_other_per_ip) in (any::<bool>(), any::<bool>()),
        trace in traces(),
    ) {
        let per = |is_per_ip: bool| if is_per_ip { "per: ip, " } else { "" };
        let one = format!("  - {{ name: one, {}{one} }}\n", per(is_per_ip));
        let other = format!("  - {{ name: other, {}{other} }}\n", per(is_other_per_ip));
        let both = policy(&format!("{one}{other}"));
        let redundant = both.warnings().iter().find(|warning| warning.message().contains("has no effect"));
        prop_assume!(redundant.is_some());
        let redundant = redundant.unwrap();
        let strict = if redundant.message().starts_with("\"one\"") { &other } else { &one };
        let message = redundant.message().to_string();
        prop_assert_eq!(decisions(policy(strict), &trace), decisions(both, &trace), "{}{}{}", one, other, message);
    }
}
