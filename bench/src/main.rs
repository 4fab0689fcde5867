//! Ratekeeper and its peers, interleaved in one run on one machine.
//!
//! `cargo run --release` prints everything, in about eight minutes; `speed`, `algorithms`, `memory`
//! or `clocks` one part; `quick` a short speed run. `ONLY=name` selects contenders for it.
//!
//! `policy` measures what a policy and the layer cost a request, in half a minute.
//!
//! `client` measures what the client layer costs a request, in half a minute.
//!
//! `breaker` measures what a circuit breaker costs a call, in half a minute.
//!
//! `adaptive` measures what a permit of a concurrency limit costs, in half a minute.
//!
//! `gateway` measures the gateway against nginx, in four minutes and the time that it takes to build.
//!
//! `redis` measures scripts and the store on a redis-server that it starts itself, in about five
//! minutes; `redis quick` does the same with less of everything.

mod adaptive;
mod allocations;
mod breaker;
mod client;
mod contenders;
mod gateway;
mod memory;
mod policy;
mod processes;
mod redis;
mod serve;
mod workload;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use contenders::*;
use ratekeeper::Limit;
use workload::{WORKLOADS, Workload};

const ROUNDS: usize = 15;
/// How many checks a thread makes in a round.
const CHECKS: usize = 1 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            clocks();
            speed();
            algorithms();
            memory::report();
        }
        ["speed"] => speed(),
        ["quick"] => quick(),
        ["algorithms"] => algorithms(),
        ["memory"] => memory::report(),
        ["memory", who] => memory::measure_here(who),
        ["clocks"] => clocks(),
        ["gateway"] => gateway::report(gateway::FULL),
        ["gateway", "quick"] => gateway::report(gateway::QUICK),
        ["serve"] => serve::report(serve::FULL),
        ["serve", "quick"] => serve::report(serve::QUICK),
        ["serve-peer", name, port] => serve::peers::run(name, port),
        ["client"] => client::report(),
        ["breaker"] => breaker::report(),
        ["adaptive"] => adaptive::report(),
        ["policy"] => policy::report(),
        ["policy", "layer"] => policy::profile(),
        ["redis"] => redis::report(redis::FULL),
        ["redis", "quick"] => redis::report(redis::QUICK),
        _ => {
            eprintln!(
                "usage: ratekeeper-bench [quick|speed|algorithms|memory|clocks|policy|client|breaker|adaptive|gateway [quick]|serve [quick]|redis [quick]]"
            );
            std::process::exit(2);
        }
    }
}

fn clocks() {
    println!("\n## Reading a clock\n\n| clock | ns |\n|---|---|");
    for (name, ns) in clock_costs() {
        println!("| {name} | {ns:.1} |");
    }
}

/// Nanoseconds a check of one contender, round by round.
#[derive(Default)]
struct Times {
    name: &'static str,
    one_thread: Vec<f64>,
    two_threads: Vec<f64>,
}

type Entry = (&'static str, Box<dyn Fn(&[String], usize) -> f64>);

fn entry<C: Contender + 'static>(name: &'static str, contender: C) -> Entry {
    (name, Box::new(move |requests, threads| run(&contender, requests, threads)))
}

fn contenders(mode: Mode, workload: Workload) -> Vec<Entry> {
    let n = workload.keys;
    vec![
        entry("floor: hash + fetch_add", Floor::new()),
        entry("bare table, cached clock", BareTable::new(mode, n, CachedClock)),
        entry("bare table, TSC", BareTable::new(mode, n, Tsc::calibrate())),
        entry("**ratekeeper**, cached clock", RatekeeperCached::new(mode, n)),
        entry("**ratekeeper**, all numbers read", RatekeeperAll::new(mode, n)),
        entry("**ratekeeper**", Ratekeeper::new(mode, n)),
        entry("governor, foldhash", GovernorFold::new(mode)),
        entry("governor", Governor::new(mode)),
        entry("sharded mutex map", ShardedMutex::new(mode)),
        entry("throttlecrab, mutex", Throttlecrab::new(mode, n)),
    ]
}

/// One thread, all allowed: enough to compare two versions.
fn quick() {
    for workload in WORKLOADS {
        println!("{}", workload.name);
        for Times { name, one_thread, two_threads } in column(Mode::Allowed, workload) {
            println!("  {name:30} {:8.1} {:8.1}", median(&one_thread), median(&two_threads));
        }
    }
}

fn speed() {
    for (mode, title) in [(Mode::Allowed, "all allowed"), (Mode::Denied, "mostly denied")] {
        println!(
            "\n## Token bucket, {title}: ns per check (2 threads: wall time over all checks)\n"
        );
        print!("| |");
        WORKLOADS.iter().for_each(|w| print!(" {} | 2 threads |", w.name));
        println!("\n|{}", "---|".repeat(2 * WORKLOADS.len() + 1));
        let columns: Vec<Vec<Times>> = WORKLOADS.iter().map(|w| column(mode, *w)).collect();
        for row in 0..columns[0].len() {
            print!("| {} |", columns[0][row].name);
            for Times { one_thread, two_threads, .. } in columns.iter().map(|column| &column[row]) {
                print!(" {:.1} | {:.1} |", median(one_thread), median(two_threads));
            }
            println!();
        }
        ratios(&columns);
    }
}

/// Measures all contenders on one workload, interleaved by round.
fn column(mode: Mode, workload: Workload) -> Vec<Times> {
    let (all, requests) = (workload.all_keys(), workload.requests());
    let mut entries = contenders(mode, workload);
    if let Ok(only) = std::env::var("ONLY") {
        entries.retain(|(name, _)| name.contains(&only));
    }
    for (_, run) in &entries {
        run(&all, 1);
    }
    let named = |(name, _): &Entry| Times { name, ..Times::default() };
    let mut column: Vec<Times> = entries.iter().map(named).collect();
    for round in 0..ROUNDS {
        eprint!("\r{}: round {} of {ROUNDS}  ", workload.name, round + 1);
        for ((_, run), times) in entries.iter().zip(&mut column) {
            times.one_thread.push(run(&requests, 1));
            times.two_threads.push(run(&requests, 2));
        }
    }
    eprint!("\r{:40}\r", "");
    column
}

fn ratios(columns: &[Vec<Times>]) {
    println!("\n| ratio |{}", WORKLOADS.map(|w| format!(" {} |", w.name)).concat());
    println!("|{}", "---|".repeat(WORKLOADS.len() + 1));
    let line = |title: &str, ratio: &dyn Fn(&[Times]) -> f64| {
        let cells = columns.iter().map(|column| format!(" {:.2} |", ratio(column)));
        println!("| {title} |{}", cells.collect::<String>());
    };
    let of = |column: &[Times], name: &str, other: &str| {
        let [this, that] = [name, other].map(|name| {
            &column.iter().find(|times| times.name == name).expect("a contender").one_thread
        });
        ratio(this, that)
    };
    let ours = "**ratekeeper**";
    line("times faster than governor with foldhash", &|c| of(c, "governor, foldhash", ours));
    line("times faster than governor", &|c| of(c, "governor", ours));
    line("throughput of 2 threads over 1", &|c| {
        let times = c.iter().find(|times| times.name == ours).expect("a contender");
        ratio(&times.one_thread, &times.two_threads)
    });
    line("time over the bare table with TSC", &|c| of(c, ours, "bare table, TSC"));
    line("time over the bare table, both with a cached clock", &|c| {
        of(c, "**ratekeeper**, cached clock", "bare table, cached clock")
    });
}

fn algorithms() {
    println!("\n## The algorithms: ns per check, 1 thread, all allowed\n");
    println!("| |{}", WORKLOADS.map(|w| format!(" {} |", w.name)).concat());
    println!("|{}", "---|".repeat(WORKLOADS.len() + 1));
    let mut rows: [(&str, String); 7] = Default::default();
    for workload in WORKLOADS {
        let requests = workload.requests();
        let limits = limits_of(workload);
        let limiters = limits
            .each_ref()
            .map(|(_, limit)| Ratekeeper::with_limit(limit.clone(), workload.keys));
        let mut times = limiters.each_ref().map(|_| Vec::new());
        for _ in 0..=ROUNDS {
            for (limiter, times) in limiters.iter().zip(&mut times) {
                times.push(run(limiter, &requests, 1));
            }
        }
        for (row, ((name, _), ns)) in rows.iter_mut().zip(limits.iter().zip(&times)) {
            row.0 = name;
            row.1 += &format!(" {:.1} ({:.2}) |", median(ns), ratio(ns, &times[0]));
        }
    }
    rows.iter().for_each(|(name, row)| println!("| {name} |{row}"));
    println!(
        "\nIn brackets: over the token bucket. With a million keys, every check finds that a new"
    );
    println!(
        "window of 1 ms has begun; the windows above are of a second, or with a million keys a minute."
    );
}

/// As much as a sliding counter can count, so that all but the hottest is allowed.
fn limits_of(workload: Workload) -> [(&'static str, Limit); 7] {
    let window = if workload.keys < 1_000_000 { "67000000/s" } else { "67000000/minute" };
    let limits = [
        ("token_bucket", Limit::token_bucket(Mode::Allowed.ratekeeper())),
        ("fixed_window", Limit::fixed_window(window)),
        ("sliding_counter", Limit::sliding_counter(window)),
        ("fixed_window of 1 ms", Limit::fixed_window("67000000/ms")),
        ("sliding_counter of 1 ms", Limit::sliding_counter("67000000/ms")),
        ("leaky_bucket", Limit::leaky_bucket(Mode::Allowed.ratekeeper())),
        ("token_bucket of 66,999,999/s, too fine for one word", Limit::token_bucket("66999999/s")),
    ];
    limits.map(|(name, limit)| (name, limit.unwrap()))
}

/// Returns the wall time per check in nanoseconds, from the start of the first thread to the end of the
/// last. The threads read the clock themselves, because no other thread may get a core.
fn run<C: Contender>(contender: &C, requests: &[String], threads: usize) -> f64 {
    let rounds = (CHECKS / requests.len()).max(1);
    let waiting = AtomicUsize::new(threads);
    let work = |thread: usize| {
        let (later, sooner) = requests.split_at(requests.len() / threads * thread);
        let mut allowed = 0u64;
        // Spins, because threads that are woken together may start on one core.
        waiting.fetch_sub(1, SeqCst);
        while waiting.load(SeqCst) > 0 {
            std::hint::spin_loop();
        }
        let started = Instant::now();
        for part in [sooner, later].into_iter().cycle().take(2 * rounds) {
            for key in part {
                allowed += u64::from(contender.check(key));
            }
        }
        std::hint::black_box(allowed);
        (started, Instant::now())
    };
    let (started, done): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().map(|worker| worker.join().expect("it checks")).unzip()
    });
    let took =
        done.into_iter().max().zip(started.into_iter().min()).map(|(done, started)| done - started);
    took.expect("a thread").as_nanos() as f64 / (rounds * requests.len() * threads) as f64
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the median of the ratios within each round, in which both had the same conditions.
fn ratio(these: &[f64], those: &[f64]) -> f64 {
    let ratios: Vec<f64> = these.iter().zip(those).map(|(this, that)| this / that).collect();
    median(&ratios)
}
