//! The conformance suite for concurrency controllers: scenarios of overload in virtual time.
//!
//! The default controller is held to bars. The others, models of other projects, and the code of
//! tower-resilience are measured; the table is in `docs/adaptive-concurrency.md`. To accept what has changed:
//! `SNAPSHOTS=overwrite cargo test -p ratekeeper-lab --test controllers`.

use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use ratekeeper_control::Micros;
use ratekeeper_control::adaptive::SampleOutcome;
use ratekeeper_lab::service::{
    ConcurrencyLimiter, Load, Measures, PROTECTIONS, Protection, Scenario, ServiceTime, scenarios,
    simulate, simulate_behind, step,
};
use tower_resilience_adaptive::{self as resilience, ConcurrencyAlgorithm};

const DEFAULT: Protection = Protection::Knee;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
const SECOND: Duration = Duration::from_secs(1);

fn scenario(name: &str) -> Scenario {
    let found = scenarios().into_iter().find(|scenario| scenario.name() == name);
    found.unwrap_or_else(|| panic!("there is no scenario \"{name}\""))
}

/// Runs a scenario with each seed.
fn for_seeds(scenario: &Scenario, check: impl Fn(&Measures, &str)) {
    for seed in SEEDS {
        let measures = simulate(scenario, DEFAULT, seed);
        check(&measures, &format!("{}, seed {seed}", scenario.name()));
    }
}

fn hold_throughput_and_latency(measures: &Measures, context: &str) {
    let (goodput, p99) = (measures.overload_goodput(), measures.p99_over_unloaded());
    assert!(goodput >= 0.95, "{context}: goodput {goodput:.3} of the capacity");
    assert!(p99 <= 3.0, "{context}: the p99 is {p99:.2} times the unloaded one");
}

fn within_10_s(after: Option<Duration>) -> bool {
    after.is_some_and(|after| after <= 10 * SECOND)
}

#[test]
fn overload_costs_neither_throughput_nor_latency() {
    for name in ["step overload ×2", "step overload ×10"] {
        for_seeds(&scenario(name), |measures, context| {
            hold_throughput_and_latency(measures, context);
            let converged = measures.converged_after();
            assert!(within_10_s(converged), "{context}: converged after {converged:?}");
            let recovered = measures.recovered_after();
            assert!(within_10_s(recovered), "{context}: recovered after {recovered:?}");
        });
    }
}

#[test]
fn the_bars_hold_for_services_of_other_sizes_and_distributions() {
    let ms = Duration::from_millis;
    let services = [
        (4, ServiceTime::Constant(ms(4))),
        (8, ServiceTime::LogNormal { median: ms(10), sigma: 1.0 }),
        (16, ServiceTime::Exponential(ms(8))),
        (50, ServiceTime::Constant(ms(50))),
        (50, ServiceTime::Bimodal { fast: ms(5), slow: ms(95), slow_share: 0.5 }),
        (200, ServiceTime::LogNormal { median: ms(100), sigma: 0.7 }),
    ];
    for (workers, service_time) in services {
        for times in [2.0, 10.0] {
            for seed in 1..=3 {
                let scenario = step("step", workers, service_time, times);
                let measures = simulate(&scenario, DEFAULT, seed);
                let context = format!("{workers} × {service_time:?}, ×{times}, seed {seed}");
                hold_throughput_and_latency(&measures, &context);
                assert!(within_10_s(measures.recovered_after()), "{context}");
            }
        }
    }
}

#[test]
fn no_scenario_costs_more_than_a_fifth_of_the_possible() {
    for scenario in scenarios() {
        for_seeds(&scenario, |measures, context| {
            let goodput = measures.goodput();
            assert!(goodput >= 0.8, "{context}: goodput {goodput:.3}");
        });
    }
}

#[test]
fn the_limit_converges_under_modest_overload() {
    for name in ["modest overload ×1.05", "sustained overload ×1.3"] {
        for_seeds(&scenario(name), |measures, context| {
            // 50 workers; not counting the first half minute.
            let highest = measures.limits().skip(30).max().unwrap();
            assert!(highest <= 150, "{context}: the limit is up to {highest}");
        });
    }
}

#[test]
fn the_baseline_comes_back_after_an_hour_of_slowness() {
    let scenario = scenario("slow dependency for an hour");
    for_seeds(&scenario, |measures, context| {
        let recovered = measures.recovered_after();
        assert!(within_10_s(recovered), "{context}: recovered after {recovered:?}");
        let last = measures.limits().last().unwrap();
        assert!(last <= 40, "{context}: the limit of 10 workers is {last}");
    });
}

#[test]
fn an_idle_service_does_not_drift() {
    for_seeds(&scenario("idle, then a burst"), |measures, context| {
        let limits: Vec<_> = measures.limits().collect();
        // Not every second has a request; those without have no limit.
        let idle = limits[21..320].iter().filter(|limit| **limit > 0);
        let highest = *idle.max().unwrap();
        assert!(highest <= limits[19], "{context}: from {} to {highest}", limits[19]);
    });
}

#[test]
fn a_service_that_is_well_rejects_nobody() {
    let service_time = ServiceTime::Exponential(Duration::from_millis(50));
    let load = Load::constant(100.0, 180 * SECOND);
    let scenario = Scenario::new("light load", 50, service_time, load);
    for_seeds(&scenario, |measures, context| assert_eq!(measures.rejected(), 0, "{context}"));
    // Unlike a controller that probes.
    assert!(simulate(&scenario, Protection::EnvoyGradient, 1).rejected() > 0);
}

#[test]
fn every_controller_keeps_its_bounds_in_every_scenario() {
    let guarded = [Protection::Knee, Protection::Gradient2, Protection::Vegas, Protection::Aimd];
    for scenario in scenarios() {
        for protection in guarded {
            let measures = simulate(&scenario, protection, 1);
            let highest = measures.limits().max().unwrap();
            assert!(highest <= 1_000, "{}, {}: {highest}", scenario.name(), protection.name());
            assert!(measures.successes().sum::<u64>() > 0);
        }
    }
}

#[test]
fn a_scenario_is_the_same_for_the_same_seed() {
    let scenario = scenario("retry storm");
    let run = |seed| {
        let measures = simulate(&scenario, DEFAULT, seed);
        (measures.successes().collect::<Vec<_>>(), measures.rejected(), measures.p99())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

const BEGIN: &str =
    "<!-- table: SNAPSHOTS=overwrite cargo test -p ratekeeper-lab --test controllers -->\n";
const END: &str = "<!-- end of table -->\n";

#[test]
fn the_table_in_the_docs_is_the_measured_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/adaptive-concurrency.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the begin of the table");
    let (_, after) = rest.split_once(END).expect("the page has the end of the table");
    let expected = format!("{before}{BEGIN}{}{END}{after}", tables());
    if env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        fs::write(&path, &expected).unwrap();
    } else if page != expected {
        panic!(
            "the table in docs/adaptive-concurrency.md is not what is measured:\n{expected}\nto accept it: SNAPSHOTS=overwrite cargo test -p ratekeeper-lab --test controllers"
        );
    }
}

/// The code of tower-resilience's adaptive limiter, which has neither a clock nor a task. A request that times
/// out is an error, as with a timeout layer inside of it.
struct TowerResilience(resilience::Algorithm);

impl ConcurrencyLimiter for TowerResilience {
    fn limit(&self) -> u32 {
        self.0.limit() as u32
    }

    fn record(&mut self, outcome: SampleOutcome, latency: Duration, in_flight: u32, _: Micros) {
        match outcome {
            SampleOutcome::Success => self.0.record_success_with_load(latency, in_flight as usize),
            _ => self.0.record_failure(),
        }
    }

    /// Its permit is released when the response begins.
    fn holds_streams(&self) -> bool {
        false
    }
}

/// The algorithms of tower-resilience by name, with their default settings but for one: the latency above which
/// AIMD shrinks is 250 ms, a little more than the p99 without load, instead of 100 ms.
fn tower_resilience() -> [(&'static str, TowerResilience); 3] {
    let aimd = resilience::Aimd::builder().latency_threshold(Duration::from_millis(250));
    let algorithms = [
        ("Aimd", resilience::Algorithm::Aimd(aimd.build().unwrap())),
        ("Vegas", resilience::Algorithm::Vegas(resilience::Vegas::builder().build().unwrap())),
        (
            "Gradient2",
            resilience::Algorithm::Gradient2(resilience::Gradient2::builder().build().unwrap()),
        ),
    ];
    algorithms.map(|(name, algorithm)| (name, TowerResilience(algorithm)))
}

fn names() -> Vec<String> {
    let theirs = tower_resilience().map(|(name, _)| format!("tower-resilience {name}"));
    PROTECTIONS.iter().map(|protection| protection.name()).chain(theirs).collect()
}

fn measure_all(scenario: &Scenario) -> Vec<Measures> {
    let ours = PROTECTIONS.iter().map(|protection| simulate(scenario, *protection, 1));
    let theirs = tower_resilience();
    let theirs = theirs.into_iter().map(|(_, mut one)| simulate_behind(scenario, &mut one, 1));
    ours.chain(theirs).collect()
}

fn tables() -> String {
    let runs: Vec<(String, Vec<Measures>)> = scenarios()
        .iter()
        .map(|scenario| (scenario.name().to_string(), measure_all(scenario)))
        .collect();
    let p99 = |measures: &Measures| {
        format!("{:.2} · {:.1}×", measures.goodput(), measures.p99_over_unloaded())
    };
    let times = |measures: &Measures| {
        let secs = |after: Option<Duration>| {
            after.map_or("never".to_string(), |after| format!("{} s", after.as_secs()))
        };
        let (converged, recovered) = (measures.converged_after(), measures.recovered_after());
        format!("{} · {} · {}", secs(converged), secs(recovered), measures.queue_max())
    };
    format!(
        "\nGoodput · p99 of admitted requests:\n\n{}\nConverged · recovered · longest queue:\n\n{}\n",
        table(&runs, p99),
        table(&runs, times)
    )
}

fn table(runs: &[(String, Vec<Measures>)], cell: impl Fn(&Measures) -> String) -> String {
    let names = names();
    let mut text = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for (name, measures) in runs {
        let cells: Vec<_> = measures.iter().map(&cell).collect();
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    text
}
