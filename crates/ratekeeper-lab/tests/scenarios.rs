//! The scenarios of `crates/ratekeeper-lab/scenarios`: each shows what it is said to show.

use std::path::{Path, PathBuf};

use ratekeeper_lab::TextOptions;
use ratekeeper_lab::scenario::{Measures, Scenario, ScenarioResults};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

fn scenario(name: &str) -> Scenario {
    let text = std::fs::read_to_string(file(name)).unwrap();
    Scenario::parse(name, &text, &|_| Ok(Vec::new())).unwrap()
}

fn run(name: &str) -> ScenarioResults {
    scenario(name).run()
}

fn of<'r>(results: &'r ScenarioResults, variant: &str) -> &'r Measures {
    let found = results.runs().iter().find(|run| run.name() == variant);
    found.unwrap_or_else(|| panic!("there is no variant \"{variant}\"")).measures()
}

/// Returns the share of requests that were served among those that ended from second `from` to `until`.
fn served_share(measures: &Measures, from: usize, until: usize) -> f64 {
    let ends = measures.ends(500);
    let column = |second: usize| second * 1_000_000 / ends.width_us as usize;
    let sum = |counts: &[u64]| counts[column(from)..column(until)].iter().sum::<u64>() as f64;
    let (served, failed) = (sum(&ends.admitted), sum(&ends.denied));
    served / (served + failed)
}

/// Returns the attempts that were admitted per second, from second `from` to `until`.
fn admitted_rate(measures: &Measures, from: usize, until: usize) -> f64 {
    let decisions = measures.decisions(500);
    let column = |second: usize| second * 1_000_000 / decisions.width_us as usize;
    let sum: u64 = decisions.admitted[column(from)..column(until)].iter().sum();
    sum as f64 / (until - from) as f64
}

#[test]
fn around_a_boundary_a_fixed_window_admits_twice_the_limit() {
    let results = run("boundary-burst.yaml");
    assert!(of(&results, "fixed window").most_admitted_in_a_second() == Some(200));
    for variant in ["sliding counter", "sliding log"] {
        assert_eq!(of(&results, variant).most_admitted_in_a_second(), Some(100), "{variant}");
    }
    assert!(of(&results, "token bucket, burst 10").most_admitted_in_a_second() == Some(10));
}

#[test]
fn a_herd_without_jitter_multiplies_its_load() {
    let results = run("thundering-herd.yaml");
    let peak = |variant| of(&results, variant).most_attempts_in_a_second().unwrap();
    assert!(peak("every 50 ms") > 10_000, "{}", peak("every 50 ms"));
    assert!(peak("exponential, full jitter") < peak("every 50 ms") / 2);
    let attempts = |variant| of(&results, variant).attempts();
    assert!(attempts("Retry-After, then full jitter") < attempts("exponential, full jitter"));
}

#[test]
fn a_retry_storm_outlives_its_cause_and_a_budget_ends_it() {
    let results = run("retry-storm.yaml");
    // The service is slow from 20 s to 30 s.
    let naive = served_share(of(&results, "naive retries"), 90, 120);
    assert!(naive < 0.2, "a minute later, {naive:.2} are served");
    let budget = served_share(of(&results, "retry budget"), 60, 120);
    assert!(budget > 0.99, "half a minute later, {budget:.2} are served");
    for run in results.runs() {
        assert!(served_share(run.measures(), 5, 20) > 0.99, "{}", run.name());
    }
}

#[test]
fn ten_local_limits_admit_what_comes_and_a_shared_one_the_limit() {
    let results = run("local-or-shared.yaml");
    let rate = |variant| admitted_rate(of(&results, variant), 25, 40);
    let shared = rate("one shared limit of 100/s");
    assert!((99.0..=101.0).contains(&shared), "{shared}");
    assert!(rate("each pod its own limit of 100/s") > 350.0);
    let skewed =
        admitted_rate(of(&results, "each pod a tenth, half of the requests to one"), 0, 20);
    assert!(skewed < 60.0, "a tenth of the limit for half of 80/s: {skewed}");
}

#[test]
fn an_outage_does_what_the_failure_mode_says() {
    let results = run("store-outage.yaml");
    let rate = |variant| admitted_rate(of(&results, variant), 25, 40);
    let local = rate("local");
    assert!((90.0..=101.0).contains(&local), "{local}");
    assert!(rate("fail open") > 280.0);
    assert_eq!(rate("fail closed"), 0.0);
    for run in results.runs() {
        let after = admitted_rate(run.measures(), 45, 60);
        assert!((95.0..=101.0).contains(&after), "{}: {after}", run.name());
    }
}

#[test]
fn leases_stay_within_the_limit_and_save_the_way_to_the_store() {
    let results = run("leases.yaml");
    let (calls, leases) = (of(&results, "a call for each request"), of(&results, "leases"));
    // The rate for 30 s and the burst.
    assert!(leases.admitted() <= 31_000 && calls.admitted() <= 31_000);
    assert!(leases.admitted() > 29_000, "{}", leases.admitted());
    assert!(calls.latency_us(99) > 80_000, "far nodes call the store: {}", calls.latency_us(99));
    assert!(leases.latency_us(50) < calls.latency_us(99) / 2);
}

#[test]
fn every_scenario_is_the_same_for_the_same_seed_and_can_be_drawn() {
    for entry in std::fs::read_dir(file("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (scenario, again) = (scenario(&name).run(), run(&name));
        assert_eq!(scenario.to_json(), again.to_json(), "{name}");
        let text = scenario.to_text(TextOptions::default());
        assert!(text.lines().count() > 10, "{name}: {text}");
        assert_eq!(scenario.dropped(), 0, "{name}");
    }
}

#[test]
fn all_variants_get_the_same_requests() {
    for name in ["retry-storm.yaml", "store-outage.yaml", "local-or-shared.yaml"] {
        let results = run(name);
        let requests: Vec<_> = results.runs().iter().map(|run| run.measures().requests()).collect();
        assert!(requests.iter().all(|n| *n == requests[0]), "{name}: {requests:?}");
    }
}

#[test]
fn another_seed_is_another_run() {
    let scenario = scenario("day.yaml");
    assert_ne!(scenario.clone().with_seed(8).run().to_json(), scenario.run().to_json());
}

fn errors(text: &str) -> String {
    let errors = Scenario::parse("s.yaml", text, &|name| Err(format!("cannot open {name}")));
    errors.unwrap_err().to_string()
}

#[test]
fn mistakes_have_their_line_and_column() {
    let text = "duration: 10s\nclients: [{ rate: 5/x, retri: naive }]\nlimiter: { rate: 5/s, mode: lokal }\n";
    let found = errors(text);
    for expected in [
        "s.yaml:2:21: ",
        "s.yaml:2:24: there is no field \"retri\"; did you mean \"retry\"?",
        "s.yaml:3:29: use shared, local, divided, leased",
    ] {
        assert!(found.contains(expected), "{expected}\n{found}");
    }
    let found = errors("duration: 10s\nclients: [{ name: a }]\n");
    assert!(found.contains("s.yaml:2:11: clients need exactly one of rate, load"), "{found}");
    let found = errors("duration: 10s\nclients: [{ trace: t.csv }]\n");
    assert!(found.contains("s.yaml:2:20: cannot open t.csv"), "{found}");
    assert!(errors("").contains("there is no scenario"));
}

#[test]
fn a_mistake_in_a_variant_is_where_it_is_written() {
    let text = "duration: 10s\nclients: [{ rate: 5/s }]\nlimiter: { rate: 5/s }\nvariants:\n  - { name: a }\n  - { name: b, limiter: { rate: 0/s } }\n";
    let found = errors(text);
    assert!(found.starts_with("s.yaml:6:33: "), "{found}");
}
