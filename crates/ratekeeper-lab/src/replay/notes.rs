//! What a policy reads and the logs lack, and what of a policy is not replayed.

use ratekeeper_policy::{
    AttributeUse, ConcurrencyRule, LimitAction, LimitRule, Mode, Permits, Policy, ReadAttribute,
    WithoutAttribute,
};

use crate::access_log::LogFields;

/// How many parts of a policy a note names.
const NAMED_MAX: usize = 3;

/// Returns what differs from a running limiter: a line for each attribute that the policy reads and the logs lack, and one
/// for each feature that is not replayed.
///
/// ```
/// use ratekeeper_lab::access_log::LogFields;
/// use ratekeeper_lab::replay::policy_notes;
/// use ratekeeper_policy::Policy;
///
/// let policy = Policy::one_line("10/s per ip")?;
/// let notes = policy_notes(&policy, &LogFields::default());
/// assert!(notes[0].starts_with("the log does not have the client's address"), "{notes:?}");
/// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
/// ```
#[must_use]
pub fn policy_notes(policy: &Policy, fields: &LogFields) -> Vec<String> {
    let reads = policy.reads();
    let missing = reads.iter().filter(|(read, _)| !fields.have(read));
    let missing = missing.flat_map(|(read, uses)| note(read, uses));
    missing.chain(not_replayed(policy, fields)).collect()
}

/// Says which features of the policy are replayed in part or not at all.
fn not_replayed(policy: &Policy, fields: &LogFields) -> impl Iterator<Item = String> {
    let has_duration = fields.have(&ReadAttribute::Duration);
    let limits_with = |has: &dyn Fn(&LimitRule) -> bool| {
        let limits = policy.limits().iter().filter(|limit| limit.mode() != Mode::Off && has(limit));
        let names: Vec<_> = limits.map(|limit| limit.name()).collect();
        (!names.is_empty()).then(|| named(&names))
    };
    let permits_with = |has: fn(&ConcurrencyRule) -> bool| {
        let names = limits_with(&|limit| limit.service_permits().is_some_and(has));
        names.filter(|_| has_duration)
    };
    let in_flight = limits_with(&LimitRule::is_concurrency).filter(|_| has_duration);
    let queues = permits_with(|rule| rule.queue.is_some());
    let adaptive = permits_with(|rule| matches!(rule.permits, Permits::Adaptive(_)));
    let stale = limits_with(&|of| matches!(of.when_limited(), LimitAction::ServeStale(_)));
    let dependencies: Vec<_> = policy.dependencies().iter().map(|of| of.name()).collect();
    let notes = [
        in_flight.map(|names| {
            format!("limit {names}: a request counts as in flight for as long as the log says")
        }),
        queues.map(|names| {
            format!(
                "not replayed: the queue of limit {names}: a request that would wait is refused"
            )
        }),
        adaptive.map(|names| {
            format!("not replayed: how limit {names} adapts: it has its highest value all the time")
        }),
        stale.map(|names| {
            format!("not replayed: serve_stale of limit {names}: such requests count as refused")
        }),
        policy.shedding().map(|_| {
            "not replayed: load shedding: the log does not have the load, and no request is shed"
                .to_string()
        }),
        (!dependencies.is_empty()).then(|| {
            let names = named(&dependencies);
            format!("not replayed: dependency {names}: no request is refused because of it")
        }),
    ];
    notes.into_iter().flatten()
}

/// Lists names; of many, the first ones and how many more there are.
fn named(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn note(read: &ReadAttribute, uses: &[AttributeUse]) -> Option<String> {
    let mut by_meaning: Vec<(WithoutAttribute, Vec<&str>)> = Vec::new();
    for AttributeUse { part, without, .. } in uses {
        match by_meaning.iter_mut().find(|(known, _)| known == without) {
            Some((_, parts)) => parts.push(part),
            None => by_meaning.push((*without, vec![part])),
        }
    }
    let meanings = by_meaning.iter().map(|(without, parts)| {
        let is_list = parts.len() > NAMED_MAX;
        format!("{}{} {without}", named(parts), if is_list { ":" } else { "" })
    });
    let meanings = meanings.collect::<Vec<_>>().join("; ");
    (!meanings.is_empty()).then(|| format!("the log does not have {read}: {meanings}"))
}

#[cfg(test)]
mod tests {
    use ratekeeper_policy::NoSources;

    use super::*;
    use crate::access_log::LogFormat;

    #[test]
    fn each_feature_that_is_not_replayed_is_noted_once() {
        let policy = "
version: 1
priorities: [{ class: checkout, match: { path: /checkout } }, { class: others }]
shedding: { queue_time: 20ms }
dependencies: { stock: { match: { path: /stock/** }, concurrency: 40 } }
limits:
  - { name: service, concurrency: { adaptive: true, queue: { max: 10, wait: 1s } } }
  - { name: jobs, per: ip, concurrency: 2 }
  - { name: pages, per: ip, rate: 5/s, when_limited: { serve_stale: 1m } }
";
        let policy = Policy::parse("policy.yaml", policy, &NoSources).unwrap();
        let format = LogFormat::of_log_format("$msec $remote_addr $request_time $request").unwrap();
        let fields = format.fields(&[]);
        assert_eq!(
            policy_notes(&policy, &fields),
            [
                "limit service, jobs: a request counts as in flight for as long as the log says",
                "not replayed: the queue of limit service: a request that would wait is refused",
                "not replayed: how limit service adapts: it has its highest value all the time",
                "not replayed: serve_stale of limit pages: such requests count as refused",
                "not replayed: load shedding: the log does not have the load, and no request is shed",
                "not replayed: dependency stock: no request is refused because of it",
            ]
        );
    }
}
