//! Ten processes that share one budget over Redis, against a server with a quota.
//!
//! Each process is this program again, in the test [`fleet_process`], which does nothing without its environment
//! variable.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use ratekeeper::client::Outbound;
use ratekeeper_testkit::{Arrival, Quota, QuotaHeader, QuotaServer, RedisServer};
use tokio::task::JoinSet;

use crate::support::*;

const PROCESSES: usize = 10;
const WORKERS: usize = 4;

/// What a process does: the mode, the address of the server, and that of the store.
const ROLE: &str = "RATEKEEPER_TEST_FLEET";

/// A worker without the layer repeats a request so long after a refusal.
const NAIVE_DELAY: Duration = Duration::from_millis(100);

/// One process of the fleet. It prints when it is ready, starts when it reads a line, and ends when its standard input
/// does.
#[test]
fn fleet_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [mode, server, line, redis] = role.split('|').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let report = runtime.block_on(async {
        let ended = tokio::task::spawn_blocking(|| {
            let mut rest = String::new();
            while std::io::stdin().read_line(&mut rest).is_ok_and(|bytes| bytes > 0) {}
        });
        match mode {
            "naive" => {
                let workers = naive_workers(server);
                ended.await.unwrap();
                drop(workers);
                String::from("naive")
            }
            _ => {
                let outbound = Outbound::shared(line, redis).unwrap();
                let failed = Arc::new(AtomicU64::new(0));
                let workers = outbound_workers(&outbound, server, &failed);
                ended.await.unwrap();
                drop(workers);
                let failed = failed.load(Ordering::Relaxed);
                let stats = outbound.stats();
                let store = outbound.limiter().engine().fallback_stats().unwrap();
                format!(
                    "attempts={} refused={} failed={failed} pauses={}+{} store={} local={} deadlines={} nodes={}",
                    stats.attempts,
                    stats.refused,
                    stats.pauses,
                    stats.pauses_shared,
                    store.store,
                    store.local,
                    store.deadlines,
                    store.nodes
                )
            }
        }
    });
    println!("\nreport {report}");
    // What is in flight, and the work in the background, is not waited for.
    std::process::exit(0);
}

/// Starts workers that always want to send.
fn outbound_workers(outbound: &Outbound, url: &str, failed: &Arc<AtomicU64>) -> JoinSet<()> {
    let (client, mut workers) = (client(outbound), JoinSet::new());
    for _ in 0..WORKERS {
        let (client, url, failed) = (client.clone(), url.to_string(), Arc::clone(failed));
        workers.spawn(async move {
            loop {
                if let Err(error) = send(&client, get(&url)).await {
                    eprintln!("{error}");
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    workers
}

fn naive_workers(url: &str) -> JoinSet<()> {
    let (client, mut workers) = (http_client(), JoinSet::new());
    for _ in 0..WORKERS {
        let (client, url) = (client.clone(), url.to_string());
        workers.spawn(async move {
            loop {
                let response = client.request(get(&url)).await.unwrap();
                let is_refused = response.status() == 429;
                response.into_body().collect().await.unwrap();
                if is_refused {
                    tokio::time::sleep(NAIVE_DELAY).await;
                }
            }
        });
    }
    workers
}

/// A process of the fleet, killed on drop.
struct FleetProcess {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl FleetProcess {
    fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fleet::fleet_process", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdin, stdout }
    }

    /// Returns the rest of the next line that starts with this word.
    fn read_after(&mut self, word: &str) -> String {
        let mut lines = (&mut self.stdout).lines().map(Result::unwrap);
        let rest = lines.find_map(|line| line.strip_prefix(word).map(ToString::to_string));
        rest.unwrap_or_else(|| panic!("a process ended without printing {word}"))
    }
}

impl Drop for FleetProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Fleet(Vec<FleetProcess>);

impl Fleet {
    /// Starts all processes, and lets them send when all are ready.
    fn start(mode: &str, server: &QuotaServer, line: &str, redis: &str) -> Self {
        let role = format!("{mode}|{}|{line}|{redis}", server.url());
        let mut fleet: Vec<_> = (0..PROCESSES).map(|_| FleetProcess::start(&role)).collect();
        fleet.iter_mut().for_each(|process| drop(process.read_after("ready")));
        for process in &mut fleet {
            process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        }
        Self(fleet)
    }

    /// Ends all processes, and returns their reports.
    fn end(mut self) -> Vec<String> {
        self.0.iter_mut().for_each(|process| drop(process.stdin.take()));
        self.0.iter_mut().map(|process| process.read_after("report ")).collect()
    }
}

/// What a server has seen of a fleet, in a time from its first request.
#[derive(Debug)]
struct Seen {
    accepted: usize,
    refused: usize,
    /// The accepted requests in parts of what a token bucket of this rate and burst can accept in that time.
    used: f64,
    refused_part: f64,
}

impl Seen {
    fn of(log: &[Arrival], time: Duration, per_sec: f64, burst: f64) -> Self {
        let began = log.first().expect("a request").at;
        let seen: Vec<_> = log.iter().filter(|arrival| arrival.at - began <= time).collect();
        let accepted = seen.iter().filter(|arrival| arrival.is_accepted).count();
        let refused = seen.len() - accepted;
        let used = accepted as f64 / (burst + per_sec * time.as_secs_f64());
        Self { accepted, refused, used, refused_part: refused as f64 / seen.len() as f64 }
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { accepted, refused, used, refused_part } = self;
        let (used, refused_part) = (used * 100.0, refused_part * 100.0);
        write!(
            f,
            "{accepted} accepted ({used:.1}% of the quota), {refused} refused ({refused_part:.2}%)"
        )
    }
}

/// One fleet at a time.
static FLEETS: Mutex<()> = Mutex::new(());

/// How often a fleet is run whose store did not respond within its 100 ms: then the host is too busy, and processes
/// decide by their share, beside the store.
const TRIES_MAX: usize = 3;

#[test]
fn a_fleet_uses_the_quota_of_a_server_and_is_hardly_refused() {
    let _one = FLEETS.lock().unwrap_or_else(PoisonError::into_inner);
    const TIME: Duration = Duration::from_secs(20);
    const NAIVE_TIME: Duration = Duration::from_secs(4);
    let quota = Quota::token_bucket(100, SEC);
    let headers = [QuotaHeader::RetryAfter, QuotaHeader::RateLimit];
    let start = || QuotaServer::builder(quota).headers(&headers).delay(5 * MS).start();

    let run = || {
        let (redis, server) = (RedisServer::start(), start());
        let fleet = Fleet::start("outbound", &server, "100/s per host", &redis.url());
        std::thread::sleep(TIME + SEC / 2);
        let log = server.log();
        let reports = fleet.end();
        for report in &reports {
            println!("{report}");
            assert!(report.contains(" failed=0 "), "a request was not served: {report}");
        }
        let is_by_store = reports.iter().all(|report| report.contains(" local=0 "));
        (Seen::of(&log, TIME, 100.0, 100.0), is_by_store)
    };
    let mut runs = (0..TRIES_MAX).map(|_| run());
    let fleet = runs.find_map(|(seen, is_by_store)| is_by_store.then_some(seen));
    let fleet = fleet.expect("the store responds in time");

    let server = start();
    let naive = Fleet::start("naive", &server, "", "");
    std::thread::sleep(NAIVE_TIME + SEC / 2);
    let log = server.log();
    naive.end();
    let naive = Seen::of(&log, NAIVE_TIME, 100.0, 100.0);
    println!("fleet of {PROCESSES} for {TIME:?}: {fleet}");
    println!("fleet of {PROCESSES} with naive retries for {NAIVE_TIME:?}: {naive}");

    // Of all that the bucket of the server can accept in that time, its burst included.
    assert!(fleet.used >= 0.95, "{fleet}");
    assert!(fleet.refused_part <= 0.01, "{fleet}");
    assert!(naive.refused_part > 10.0 * fleet.refused_part.max(0.01), "{naive}");
}

#[test]
fn a_fleet_goes_on_without_its_store_and_recovers() {
    let _one = FLEETS.lock().unwrap_or_else(PoisonError::into_inner);
    const RATE: f64 = 100.0;
    const BURST: f64 = 20.0;
    /// So long after the start all processes know their number: they announce themselves every two seconds.
    const KILLED: Duration = Duration::from_secs(5);
    const RESTARTED: Duration = Duration::from_secs(8);
    /// A process notices after at most 1.5 s that the store is back.
    const NOTICED: Duration = Duration::from_millis(9_500);
    const END: Duration = Duration::from_secs(12);
    let (redis, server) =
        (RedisServer::start(), QuotaServer::builder(Quota::token_bucket(100, SEC)).start());
    let began = Instant::now();
    let fleet = Fleet::start("outbound", &server, "100/s burst 20 per host", &redis.url());
    let wait_until = |time: Duration| std::thread::sleep(time.saturating_sub(began.elapsed()));
    wait_until(KILLED);
    redis.kill();
    wait_until(RESTARTED);
    redis.restart();
    let restarted = began.elapsed();
    wait_until(END);
    let log = server.log();
    for report in fleet.end() {
        println!("{report}");
        assert!(report.contains(" failed=0 "), "a request was not served: {report}");
    }
    let between = |from: Duration, to: Duration| {
        let is_between = |arrival: &&Arrival| (from..to).contains(&(arrival.at - began));
        log.iter().filter(is_between).count() as f64 / (to - from).as_secs_f64()
    };
    let refused = log.iter().filter(|arrival| !arrival.is_accepted).count();
    let (without, after) = (between(KILLED + SEC / 2, RESTARTED), between(NOTICED, END));
    println!(
        "store killed at {KILLED:?} and back at {restarted:?}: {without:.0}/s without it, {after:.0}/s after that, \
         {refused} of {} refused",
        log.len()
    );
    // Each process has a tenth of the limit.
    assert!(without >= 0.5 * RATE, "{without}");
    assert!(after >= 0.8 * RATE, "{after}");
    // The bound of `docs/fleet.md`, R·T + 3·B, and what shares admit beside the store until all have noticed that it
    // is back: R·1.5 s.
    assert_no_faster(log.iter().map(|arrival| arrival.at), began, RATE, 3.0 * BURST + 1.5 * RATE);
}

#[tokio::test]
async fn a_hot_limit_is_leased() {
    let redis = RedisServer::start();
    let server = QuotaServer::builder(Quota::token_bucket(1_000_000, SEC)).start();
    let policy = ratekeeper::Policy::one_line("100000/s per host").unwrap();
    let store = ratekeeper::policy::StoreSettings {
        deadline: Some(SEC),
        leased: true,
        ..ratekeeper::policy::StoreSettings::at(&redis.url())
    };
    let outbound = Outbound::with_policy(policy.with_store(store)).unwrap();
    let url = server.url();
    let results = send_all(&client(&outbound), 8, 2_000, move |_| get(&url)).await;
    assert_eq!(served(&results), 2_000);
    let leases = outbound.limiter().engine().lease_stats().unwrap();
    // How many units a batch has depends on how fast requests follow each other.
    assert!(leases.local > leases.store_calls, "{leases:?}");
}
