//! What a limit of `100/minute` really admits: for every algorithm and several kinds of traffic, over many seeds.
//!
//! The table is in `docs/algorithms.md`. Speed and memory beside it are those of `bench/README.md`. To accept what
//! has changed: `SNAPSHOTS=overwrite cargo test -p ratekeeper-lab --test accuracy`.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use std::{env, fs};

use ratekeeper_core::{ALGORITHMS, Algorithm, Limit, Micros, Rate};
use ratekeeper_lab::{Pattern, Traffic, compare};

const RATE: &str = "100/minute";
const COUNT: u64 = 100;
const MINUTES: u64 = 10;
const SEEDS: u64 = 100;
const MINUTE_US: u64 = 60_000_000;

/// One client.
struct Shape {
    name: &'static str,
    pattern: Pattern,
    offered: &'static str,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "steady, half the limit", pattern: Pattern::Steady, offered: "50/minute" },
    Shape { name: "random, just the limit", pattern: Pattern::Poisson, offered: "100/minute" },
    Shape { name: "steady, twice the limit", pattern: Pattern::Steady, offered: "200/minute" },
    Shape { name: "random, twice the limit", pattern: Pattern::Poisson, offered: "200/minute" },
    Shape {
        name: "300 at once, every three minutes",
        pattern: Pattern::Burst,
        offered: "100/minute",
    },
    Shape {
        name: "the limit before and after a boundary",
        pattern: Pattern::Boundary,
        offered: "100/minute",
    },
];

/// What one algorithm did with one kind of traffic.
#[derive(Clone, Debug)]
struct Accuracy {
    /// Admitted in percent of what was intended, for each seed.
    admitted: Vec<f64>,
    /// The most in any minute, over all seeds.
    most: u64,
}

impl Accuracy {
    fn mean(&self) -> f64 {
        self.admitted.iter().sum::<f64>() / self.admitted.len() as f64
    }

    fn extremes(&self) -> (f64, f64) {
        let fold = |pick: fn(f64, f64) -> f64| self.admitted.iter().copied().reduce(pick).unwrap();
        (fold(f64::min), fold(f64::max))
    }

    /// How much more than the limit was admitted in the worst minute, in percent of the limit.
    fn worst_excess(&self) -> u64 {
        self.most.saturating_sub(COUNT) * 100 / COUNT
    }
}

/// Returns what each algorithm does with one kind of traffic.
fn measure(shape: &Shape) -> Vec<Accuracy> {
    let rate: Rate = RATE.parse().unwrap();
    let limits: Vec<_> =
        ALGORITHMS.iter().map(|algorithm| Limit::new(rate, *algorithm).unwrap()).collect();
    let none = Accuracy { admitted: Vec::new(), most: 0 };
    let mut all = vec![none; limits.len()];
    for seed in 0..SEEDS {
        // Traffic begins at another time of the minute for each seed.
        let start = MINUTE_US * 1_000 + seed * MINUTE_US / SEEDS;
        let duration = Duration::from_secs(60 * MINUTES);
        let traffic = Traffic::new(shape.pattern, rate, duration)
            .with_rate(shape.offered.parse().unwrap())
            .with_start(Micros::new(start))
            .with_seed(seed);
        let arrivals = traffic.arrivals().map(Ok);
        let report = compare(&limits, arrivals, Some(traffic.span()), 1_000).unwrap();
        for (accuracy, run) in all.iter_mut().zip(report.runs()) {
            let summary = run.summary();
            let intended = summary.offered().min(COUNT * MINUTES);
            accuracy.admitted.push(summary.admitted() as f64 * 100.0 / intended as f64);
            accuracy.most = accuracy.most.max(summary.most_in_a_period().unwrap());
        }
    }
    all
}

/// Returns what each algorithm does with each kind of traffic. Measured once, for all tests.
fn measured() -> &'static [Vec<Accuracy>] {
    static MEASURED: LazyLock<Vec<Vec<Accuracy>>> =
        LazyLock::new(|| SHAPES.iter().map(measure).collect());
    &MEASURED
}

fn measured_of(algorithm: Algorithm) -> impl Iterator<Item = &'static Accuracy> {
    let index = ALGORITHMS.iter().position(|one| *one == algorithm).unwrap();
    measured().iter().map(move |accuracies| &accuracies[index])
}

#[test]
fn a_sliding_log_and_the_releases_of_a_leaky_bucket_never_exceed_the_limit() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::LeakyBucket] {
        for accuracy in measured_of(algorithm) {
            assert_eq!(accuracy.worst_excess(), 0, "{algorithm}");
        }
    }
}

#[test]
fn no_algorithm_exceeds_its_stated_bound() {
    for algorithm in ALGORITHMS {
        for accuracy in measured_of(*algorithm) {
            assert!(accuracy.most <= 2 * COUNT, "{algorithm}: {}", accuracy.most);
        }
    }
}

#[test]
fn what_is_below_the_limit_is_admitted_in_full() {
    for (algorithm, accuracy) in ALGORITHMS.iter().zip(&measured()[0]) {
        assert_eq!(accuracy.extremes(), (100.0, 100.0), "{algorithm}");
    }
}

const BEGIN: &str =
    "<!-- table: SNAPSHOTS=overwrite cargo test -p ratekeeper-lab --test accuracy -->\n";
const END: &str = "<!-- end of table -->\n";

#[test]
fn the_table_in_the_docs_is_the_measured_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs/algorithms.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the begin of the table");
    let (_, after) = rest.split_once(END).expect("the page has the end of the table");
    let bench = fs::read_to_string(root.join("bench/README.md")).unwrap();
    let expected = format!("{before}{BEGIN}{}{END}{after}", table(&bench));
    if env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        fs::write(&path, &expected).unwrap();
    } else if page != expected {
        panic!(
            "the table in docs/algorithms.md is not what is measured:\n{expected}\nto accept it: SNAPSHOTS=overwrite cargo test -p ratekeeper-lab --test accuracy"
        );
    }
}

fn table(bench: &str) -> String {
    let names: Vec<_> = ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
    let mut text = format!("\n| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let mut row = |name: &str, cells: Vec<String>| {
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    };
    for (shape, accuracies) in SHAPES.iter().zip(measured()) {
        row(shape.name, accuracies.iter().map(cell).collect());
    }
    row("ns per check, one key", names.iter().map(|name| nanoseconds(bench, name)).collect());
    row("bytes per key", names.iter().map(|name| bytes(bench, name)).collect());
    text + "\n"
}

/// The mean, the extremes and the worst excess.
fn cell(accuracy: &Accuracy) -> String {
    let (min, max) = accuracy.extremes();
    let excess = accuracy.worst_excess();
    match max - min < 0.05 {
        true => format!("{:.1}% · +{excess}%", accuracy.mean()),
        false => format!("{:.1}% ({min:.1} to {max:.1}) · +{excess}%", accuracy.mean()),
    }
}

/// The time of a check with one hot key, from the benchmarks.
fn nanoseconds(bench: &str, algorithm: &str) -> String {
    let (_, table) = bench.split_once("## The algorithms").expect("a table of algorithms");
    let row = table.lines().find(|line| line.starts_with(&format!("| {algorithm} |")));
    let cell = row.and_then(|row| row.split('|').nth(2)).unwrap_or(" –");
    cell.split_whitespace().next().unwrap().to_string()
}

/// The memory of a key, from the benchmarks.
fn bytes(bench: &str, algorithm: &str) -> String {
    let (_, memory) = bench.split_once("## Memory").expect("a section about memory");
    if algorithm == Algorithm::SlidingLog.name() {
        let (_, full) = memory.split_once("A sliding log of 100 entries").expect("its memory");
        let (_, bytes) = full.split_once(": ").unwrap();
        return bytes.split_whitespace().next().unwrap().to_string();
    }
    let row = memory.lines().find(|line| line.starts_with("| ratekeeper |")).expect("its memory");
    row.split('|').nth(2).unwrap().trim().to_string()
}
