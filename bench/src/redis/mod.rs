//! Redis: our scripts and our store compared with common ones, on a server that is started here.
//!
//! Every contender runs in every round. The server has its own core, and the callers share another.

mod library;
mod scripts;
mod server;
mod space;

use std::time::Duration;

use crate::median;
use library::{BareClient, HotKey, Library, Served, runtime, serve, store};
use ratekeeper_stores::LeasedStore;
use scripts::{Contender, Load};
use server::Server;

/// How many keys there are, but for logs.
const KEYS: usize = 10_000;
/// How many requests a key gets on average before anything is measured, so that nearly all are there
/// and no table of the server is growing.
const SEEN: usize = 6;
/// How many requests a log gets while it fills, on average, and until all are surely full.
const FILLING: usize = 80;
const SURELY_FULL: usize = 160;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Size {
    rounds: usize,
    /// Of each script in a round.
    requests: usize,
    /// How long callers of the library run in a round.
    within: Duration,
}

pub const FULL: Size = Size { rounds: 5, requests: 300_000, within: Duration::from_secs(2) };
pub const QUICK: Size = Size { rounds: 3, requests: 60_000, within: Duration::from_millis(500) };

pub fn report(size: Size) {
    let mut server = Server::start();
    println!("\n# Redis {}", server.info("server", "redis_version"));
    speed_of_scripts(&mut server, size);
    speed_of_library(&mut server, size);
    speed_of_leases(&mut server, size);
    bytes_a_key(&mut server);
}

fn speed_of_leases(server: &mut Server, size: Size) {
    println!("\n## Leases: one hot key, 64 callers on one thread\n");
    let runtime = runtime();
    let url = server.url();
    let (mut exact, mut leased) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let exactly = HotKey::new(store(&url));
        let on_lease = HotKey::new(LeasedStore::new(store(&url)));
        for _ in 0..size.rounds {
            exact.push(serve(&exactly, 64, size.within).await.per_second);
            leased.push(serve(&on_lease, 64, size.within).await.per_second);
        }
    });
    let (exact, leased) = (median(&exact), median(&leased));
    println!("| | requests/s |\n|---|---|");
    println!("| every request calls the store | {exact:.0} |\n| leased | {leased:.0} |");
    bars();
    at_least("speed of leases over calling the store every time", leased / exact, 20.0);
}

fn speed_of_scripts(server: &mut Server, size: Size) {
    println!("\n## Scripts: `redis-benchmark -c 50 -P 16`, {KEYS} keys, nearly all allowed\n");
    println!(
        "`redis-benchmark` cannot send the bytes that our scripts take as their third argument. They are\n\
         written into the script here, and as many others are sent in their place.\n"
    );
    let contenders = scripts::contenders();
    let mut times = vec![(Vec::new(), Vec::new()); contenders.len()];
    for round in 0..size.rounds {
        eprint!("\rscripts: round {} of {}  ", round + 1, size.rounds);
        for (contender, (total, inside)) in contenders.iter().zip(&mut times) {
            let (per_second, us) = measure_script(server, contender, size.requests);
            total.push(1e6 / per_second);
            inside.push(us);
        }
    }
    eprint!("\r{:40}\r", "");
    println!("| | µs a call | of these in the command | requests/s |\n|---|---|---|---|");
    let mut medians = Vec::new();
    for (contender, (total, inside)) in contenders.iter().zip(times) {
        let (us, inside) = (median(&total), median(&inside));
        println!("| {} | {us:.2} | {inside:.2} | {:.0} |", contender.name, 1e6 / us);
        medians.push((contender.name, us));
    }
    let of = |name: &str| of(&medians, name);
    bars();
    at_least(
        "speed of our token bucket over the naive hash",
        of(scripts::NAIVE_HASH) / of(scripts::BUCKET),
        1.3,
    );
    at_least(
        "speed of our sliding counter over our fixed window",
        of(scripts::WINDOW) / of(scripts::COUNTER),
        0.6,
    );
    at_most(
        "time of two token buckets over one",
        of(scripts::TWO_BUCKETS) / of(scripts::BUCKET),
        1.6,
    );
    at_most(
        "time of token bucket and fixed window over the token bucket",
        of(scripts::BUCKET_AND_WINDOW) / of(scripts::BUCKET),
        1.6,
    );
}

/// Returns requests per second, and the microseconds that the server spends within each command.
fn measure_script(server: &mut Server, contender: &Contender, requests: usize) -> (f64, f64) {
    server.flush_all();
    let hash = match contender.source() {
        Some(source) => server.command(&["SCRIPT", "LOAD", source]),
        None => String::new(),
    };
    let command = contender.command(&hash);
    let (keys, before) = match contender.load {
        Load::Many => (KEYS, SEEN * KEYS),
        Load::Filling => (requests / FILLING, 0),
        Load::Full => (requests / SURELY_FULL, requests),
    };
    if before > 0 {
        server.benchmark(before, keys, &command);
    }
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    let per_second = server.benchmark(requests, keys, &command);
    let stats = server.info("commandstats", &format!("cmdstat_{}", command[0].to_lowercase()));
    let field = |name: &str| {
        let field = stats.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field.and_then(|number| number.parse::<f64>().ok()).expect("a number in commandstats")
    };
    assert_eq!(field("failed_calls"), 0.0, "{}: {stats}", contender.name);
    (per_second, field("usec_per_call"))
}

/// Callers of one kind, round after round.
struct Row {
    name: String,
    served: Vec<Served>,
}

impl Row {
    fn median(&self, of: fn(&Served) -> f64) -> f64 {
        median(&self.served.iter().map(of).collect::<Vec<_>>())
    }
}

fn speed_of_library(server: &mut Server, size: Size) {
    println!("\n## The library: token bucket, {KEYS} keys, all callers on one thread\n");
    let contenders = scripts::contenders();
    let bucket = contenders.iter().find(|contender| contender.name == scripts::BUCKET);
    let bucket = bucket.expect("our token bucket");
    let mut rows: Vec<Row> = Vec::new();
    let mut pipelined = Vec::new();
    for round in 0..size.rounds {
        eprint!("\rlibrary: round {} of {}  ", round + 1, size.rounds);
        pipelined.push(measure_script(server, bucket, size.requests).0);
        for (i, (name, served)) in callers(server, size.within).into_iter().enumerate() {
            if round == 0 {
                rows.push(Row { name, served: Vec::new() });
            }
            rows[i].served.push(served);
        }
    }
    eprint!("\r{:40}\r", "");
    let pipelined = median(&pipelined);
    println!("| | requests/s | over `redis-benchmark` | p50 µs | p99 µs |\n|---|---|---|---|---|");
    println!("| `redis-benchmark -c 50 -P 16`, our script | {pipelined:.0} | 1.00 | | |");
    for row in &rows {
        let per_second = row.median(|served| served.per_second);
        println!(
            "| {} | {per_second:.0} | {:.2} | {:.0} | {:.0} |",
            row.name,
            per_second / pipelined,
            row.median(|served| served.p50_us),
            row.median(|served| served.p99_us)
        );
    }
    bars();
    for row in rows.iter().filter(|row| row.name.contains("ratekeeper")) {
        let ratio = row.median(|served| served.per_second) / pipelined;
        at_least(&format!("throughput of {} over `redis-benchmark`", row.name), ratio, 0.9);
    }
}

/// Runs all kinds of callers once.
fn callers(server: &mut Server, within: Duration) -> Vec<(String, Served)> {
    let url = server.url();
    let mut all = Vec::new();
    for callers in [64, 512] {
        // A runtime for each, so that no connection outlives its run.
        server.flush_all();
        let served =
            runtime().block_on(async { serve(&Library::new(&url), callers, within).await });
        all.push((format!("**ratekeeper**, {callers} callers"), served));
        server.flush_all();
        let served = runtime().block_on(async {
            serve(&BareClient::with_our_script(&url).await, callers, within).await
        });
        all.push((format!("bare redis-rs, our script, {callers} callers"), served));
        server.flush_all();
        let served = runtime().block_on(async {
            serve(&BareClient::with_naive_hash(&url).await, callers, within).await
        });
        all.push((format!("bare redis-rs, naive hash, {callers} callers"), served));
    }
    all
}

fn bytes_a_key(server: &mut Server) {
    println!("\n## Bytes a key: `MEMORY USAGE`, key `customer:00000001`, limit `api`\n");
    println!("| | bytes |\n|---|---|");
    let sizes = space::measure(server);
    sizes.iter().for_each(|(name, bytes)| println!("| {name} | {bytes} |"));
    let sizes: Vec<_> = sizes.into_iter().map(|(name, bytes)| (name, bytes as f64)).collect();
    bars();
    let ratio = of(&sizes, space::BUCKET) / of(&sizes, space::HASH);
    at_most("bytes of our token bucket over the naive hash", ratio, 0.75);
    at_most("bytes of our sliding log of 100", of(&sizes, space::LOG), 1200.0);
}

fn of(all: &[(&str, f64)], name: &str) -> f64 {
    all.iter().find(|entry| entry.0 == name).expect("a contender of that name").1
}

fn bars() {
    println!("\n| ratio | | aim | |\n|---|---|---|---|");
}

fn at_least(what: &str, measured: f64, bar: f64) {
    let verdict = if measured >= bar { "met" } else { "**missed**" };
    println!("| {what} | {measured:.2} | ≥ {bar} | {verdict} |");
}

fn at_most(what: &str, measured: f64, bar: f64) {
    let verdict = if measured <= bar { "met" } else { "**missed**" };
    println!("| {what} | {measured:.2} | ≤ {bar} | {verdict} |");
}
