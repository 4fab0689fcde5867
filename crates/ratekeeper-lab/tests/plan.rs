//! Plans: from capacity to the digit, and from logs against replays.

use std::fmt::Write;
use std::sync::Arc;

use ratekeeper_core::{ALGORITHMS, Limit};
use ratekeeper_lab::plan::{
    Capacity, Dependency, Division, Latencies, LatencyModel, LimitSearch, LoggedTraffic,
    Percentile, PlanReport, QueueModel, Searched, Split,
};
use ratekeeper_lab::replay::{Logs, ReadOptions, ReplayOptions, replay};
use ratekeeper_policy::Policy;

fn ten_pods() -> Capacity {
    Capacity::new(10, 40, 800_000, "70%".parse().unwrap()).unwrap()
}

#[test]
fn the_worked_numbers_are_right_to_the_digit() {
    let plan = ten_pods().plan().unwrap();
    let steps: Vec<_> = plan.steps().iter().map(|step| (&*step.name, &*step.result)).collect();
    let expected = [
        ("total concurrency", "400"),
        ("ceiling", "500/s"),
        ("safe rate", "350/s"),
        ("safe concurrency", "280"),
        ("largest burst", "120"),
    ];
    assert_eq!(steps, expected);
    let division = "partner=200/s,public=rest".parse::<Split>().unwrap();
    let per_user = "5/s".parse().unwrap();
    let division = division.divide(&plan, Some(per_user), None).unwrap();
    let users: Vec<_> = division.classes().iter().map(|class| class.users()).collect();
    assert_eq!(users, [Some(40), Some(30)]);
}

#[test]
fn the_lowest_ceiling_is_the_weakest_link() {
    let add = |capacity: Capacity, text: &str| {
        capacity.with_dependency(text.parse::<Dependency>().unwrap())
    };
    let capacity = add(ten_pods(), "inventory=300/s,amplification=2");
    let plan = add(capacity, "mail=9000/minute,amplification=0.5").plan().unwrap();
    assert_eq!(plan.weakest().unwrap().name(), "inventory");
    assert_eq!((plan.ceiling_text(), plan.rate()), ("150/s".into(), "105/s".parse().unwrap()));
    let plan = add(ten_pods(), "cache=9000/s").plan().unwrap();
    assert_eq!((plan.weakest(), plan.rate()), (None, "350/s".parse().unwrap()));
}

#[test]
fn a_burst_above_the_room_is_warned_of() {
    let plan = ten_pods().plan().unwrap();
    assert_eq!(plan.burst_warning(120), None);
    assert!(plan.burst_warning(121).unwrap().contains("121 + 280 = 401 requests in flight"));
}

#[test]
fn percentiles_are_values_that_occurred() {
    let latencies = Latencies::new((1..=1_000).rev().map(|n| n * 1_000).collect()).unwrap();
    let percentiles = [Percentile::P50, Percentile::P95, Percentile::P99];
    let found = percentiles.map(|percentile| latencies.percentile_us(percentile));
    assert_eq!(found, [500_000, 950_000, 990_000]);
}

#[test]
fn an_overloaded_service_has_no_response_times() {
    let plan = Capacity::new(1, 10, 100_000, "100%".parse().unwrap()).unwrap().plan().unwrap();
    let latencies = LatencyModel::Measured(Latencies::new(vec![100_000]).unwrap());
    let loads = QueueModel::new(&plan, &latencies).loads();
    assert_eq!(loads[0].response_times.unwrap().p99_us, 100_000);
    assert_eq!(loads[2].response_times, None, "all of the time is used");
    let division = Division::undivided(&plan, None, None).unwrap();
    let objective = "p99=150ms".parse().unwrap();
    assert!(!PlanReport::new(&plan, &division, &latencies, &[objective]).is_kept());
}

/// A log of callers of which each sends more than the one before, in bursts.
fn log() -> String {
    let mut text = String::new();
    for second in 0..600u64 {
        for caller in 1..=20u64 {
            let requests = if (second * 7 + caller) % 97 < caller { caller / 4 } else { 0 };
            for _ in 0..requests {
                let (minute, second) = (second / 60, second % 60);
                let time = format!("10/Oct/2026:13:{minute:02}:{second:02} +0000");
                writeln!(text, "192.0.2.{caller} - - [{time}] \"GET / HTTP/1.1\" 200 1").unwrap();
            }
        }
    }
    text
}

fn logs(text: &str, policy: &Policy) -> Logs {
    let input = std::io::Cursor::new(text.as_bytes().to_vec());
    Logs::open([("access.log", input)], ReadOptions::default(), &[policy]).unwrap()
}

/// Returns how many requests a limit refuses, by `ratekeeper replay`.
fn refused(text: &str, limit: &Limit) -> u64 {
    let policy = format!(
        "version: 1\nlimits:\n  - {{ name: one, per: ip, rate: {}, algorithm: {} }}\n",
        limit.rate(),
        limit.algorithm()
    );
    let policy = Arc::new(Policy::parse("p.yaml", &policy, &ratekeeper_policy::NoSources).unwrap());
    let result = replay(logs(text, &policy), &policy, None, ReplayOptions::default());
    result.policies[0].refused
}

#[test]
fn the_limit_found_is_the_smallest_and_a_replay_agrees() {
    let text = log();
    let policy = Arc::new(Policy::one_line("1/s per ip").unwrap());
    let (traffic, _) = LoggedTraffic::read(logs(&text, &policy), policy.clone()).unwrap();
    let searched = Searched::Count { period: "1/minute".parse().unwrap(), burst: None };
    let search = LimitSearch::new(&traffic, "2%".parse().unwrap(), searched, 0);
    for algorithm in ALGORITHMS {
        let found = search.find(*algorithm).unwrap();
        let limit =
            |n: u64| Limit::new(format!("{n}/minute").parse().unwrap(), *algorithm).unwrap();
        let allowed = traffic.requests() as u64 * 2 / 100;
        let (at, below) =
            (refused(&text, &limit(found.smallest)), refused(&text, &limit(found.smallest - 1)));
        assert_eq!(at, found.requests_refused, "{algorithm}");
        assert!(at <= allowed && below > allowed, "{algorithm}: {at} and {below} of {allowed}");
        let (low, high) = found.band;
        assert!(low <= found.smallest && found.smallest <= high, "{algorithm}: {low} to {high}");
    }
}
