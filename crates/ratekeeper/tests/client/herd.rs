//! A thundering herd: 1,000 clients meet a limit that resets. The table in `docs/client.md` compares what strategies of
//! retries do to the server.
//!
//! To accept what has changed:
//! `SNAPSHOTS=overwrite cargo test -p ratekeeper --all-features --test client herd`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use ratekeeper::Micros;
use ratekeeper::client::{Attempt, Backoff, ClientExt, Jitter};
use ratekeeper_lab::retry::{Failed, RetryModel, TowerBudget};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{ServiceExt, service_fn};

use crate::support::*;

const CLIENTS: u32 = 1_000;
/// The time in which the clients come, evenly.
const ARRIVAL: Duration = SEC;
const WINDOW: Duration = SEC;
/// When the first window begins. Nothing is served before.
const RESET: Duration = Duration::from_secs(5);
/// The latency of the network in each direction, in milliseconds.
const LATENCY_MS: std::ops::RangeInclusive<u64> = 2..=5;

/// The bars for the layer: of the limit in any second after the reset, and attempts per request.
const PEAK_MAX: f64 = 1.2;
const AMPLIFICATION_MAX: f64 = 1.2;

/// What differs between runs.
#[derive(Clone, Copy)]
struct Scenario {
    /// The requests that the server serves in each window.
    limit: usize,
    /// The seed of latencies and of jitter.
    seed: u64,
}

const SCENARIO: Scenario = Scenario { limit: 100, seed: 42 };

/// A server with a fixed window, behind a network.
struct Server {
    limit: usize,
    began: Instant,
    state: Mutex<ServerState>,
}

struct ServerState {
    latency: fastrand::Rng,
    window: u64,
    served: usize,
    arrivals: Vec<Arrival>,
}

/// An attempt that the server received, served or not.
#[derive(Clone, Copy)]
struct Arrival {
    at: Duration,
    is_retry: bool,
}

/// A 429 with its `Retry-After`, in seconds.
#[derive(Clone, Copy)]
struct Refused {
    retry_after: u64,
}

impl Server {
    fn start(scenario: Scenario) -> Arc<Self> {
        let latency = fastrand::Rng::with_seed(scenario.seed);
        let state = ServerState { latency, window: 0, served: 0, arrivals: Vec::new() };
        let state = Mutex::new(state);
        Arc::new(Self { limit: scenario.limit, began: Instant::now(), state })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sends an attempt over the network, and waits for the response.
    async fn call(&self, is_retry: bool) -> Result<(), Refused> {
        self.latency().await;
        let served = self.receive(is_retry);
        self.latency().await;
        served
    }

    async fn latency(&self) {
        let millis = self.state.lock().unwrap().latency.u64(LATENCY_MS);
        sleep(Duration::from_millis(millis)).await;
    }

    fn receive(&self, is_retry: bool) -> Result<(), Refused> {
        let at = self.now();
        let mut state = self.state.lock().unwrap();
        state.arrivals.push(Arrival { at, is_retry });
        let Some(open) = at.checked_sub(RESET) else {
            let wait = RESET - at;
            let retry_after = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            return Err(Refused { retry_after });
        };
        let window = open.as_secs() / WINDOW.as_secs();
        if window != state.window {
            (state.window, state.served) = (window, 0);
        }
        if state.served == self.limit {
            return Err(Refused { retry_after: WINDOW.as_secs() });
        }
        state.served += 1;
        Ok(())
    }
}

/// Whether the state of a strategy, such as its budget, is that of all clients or each has its own.
#[derive(Clone, Copy)]
enum Processes {
    One,
    OnePerClient,
}

/// What became of one request.
struct Ended {
    at: Duration,
    is_served: bool,
}

/// A row of the table.
struct Row {
    name: &'static str,
    limit: usize,
    arrivals: Vec<Arrival>,
    ended: Vec<Ended>,
}

impl Row {
    /// Returns the most arrivals within any second after the reset.
    fn peak(&self, is_counted: impl Fn(&Arrival) -> bool) -> usize {
        let after_reset = |arrival: &&Arrival| arrival.at >= RESET && is_counted(arrival);
        let times: Vec<_> = self.arrivals.iter().filter(after_reset).map(|one| one.at).collect();
        let mut first = 0;
        let spans = times.iter().enumerate().map(|(last, at)| {
            while times[first] + SEC <= *at {
                first += 1;
            }
            last + 1 - first
        });
        spans.max().unwrap_or(0)
    }

    fn peak_of_limit(&self) -> f64 {
        self.peak(|_| true) as f64 / self.limit as f64
    }

    fn peak_retries(&self) -> usize {
        self.peak(|arrival| arrival.is_retry)
    }

    fn amplification(&self) -> f64 {
        self.arrivals.len() as f64 / self.ended.len() as f64
    }

    fn served(&self) -> usize {
        self.ended.iter().filter(|ended| ended.is_served).count()
    }

    fn gave_up(&self) -> usize {
        self.ended.len() - self.served()
    }

    fn end(&self) -> Duration {
        self.ended.iter().map(|ended| ended.at).max().unwrap_or_default()
    }
}

/// Runs the clients in virtual time. Each is a future that says whether its request was served.
fn run<F>(
    name: &'static str,
    scenario: Scenario,
    clients: impl FnOnce(&Arc<Server>) -> Vec<F>,
) -> Row
where
    F: Future<Output = bool> + Send + 'static,
{
    fastrand::seed(scenario.seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
        let server = Server::start(scenario);
        let mut tasks = JoinSet::new();
        for (n, client) in (0..CLIENTS).zip(clients(&server)) {
            let server = Arc::clone(&server);
            tasks.spawn(async move {
                sleep(ARRIVAL * n / CLIENTS).await;
                let is_served = client.await;
                Ended { at: server.now(), is_served }
            });
        }
        let ended = tasks.join_all().await;
        let arrivals = std::mem::take(&mut server.state.lock().unwrap().arrivals);
        Row { name, limit: scenario.limit, arrivals, ended }
    })
}

fn micros(time: Duration) -> Micros {
    Micros::new(time.as_micros() as u64)
}

/// Runs clients that retry by a strategy.
fn with_strategy(name: &'static str, processes: Processes, make: impl Fn() -> RetryModel) -> Row {
    run(name, SCENARIO, |server| {
        let strategies = processes.per_client(|| Arc::new(Mutex::new(make())));
        let clients = strategies.into_iter().map(|strategy| {
            let server = Arc::clone(server);
            async move {
                let mut retries = 0;
                loop {
                    let Err(refused) = server.call(retries > 0).await else {
                        strategy.lock().unwrap().served(retries, micros(server.now()));
                        return true;
                    };
                    retries += 1;
                    let failed =
                        Failed { retry_after: Some(Duration::from_secs(refused.retry_after)) };
                    let now = micros(server.now());
                    let delay = strategy
                        .lock()
                        .unwrap()
                        .delay(retries, failed, now, &mut || fastrand::u64(..));
                    let Some(delay) = delay else { return false };
                    sleep(delay).await;
                }
            }
        });
        clients.collect()
    })
}

/// Runs clients behind the layer.
fn with_layer(name: &'static str, scenario: Scenario, processes: Processes, lines: &[&str]) -> Row {
    run(name, scenario, |server| {
        let outbounds = processes.per_client(|| outbound(lines));
        let clients = outbounds.into_iter().map(|outbound| {
            let server = Arc::clone(server);
            let client = service_fn(move |request: Request<Body>| {
                let server = Arc::clone(&server);
                async move {
                    let is_retry = request.extensions().get::<Attempt>().is_some();
                    Ok::<_, Infallible>(match server.call(is_retry).await {
                        Ok(()) => response(200, &[]),
                        Err(Refused { retry_after }) => {
                            response(429, &[("retry-after", &retry_after.to_string())])
                        }
                    })
                }
            });
            let client = client.layer(outbound);
            async move { client.oneshot(get("https://api.example.com/")).await.is_ok() }
        });
        clients.collect()
    })
}

impl Processes {
    /// Returns what each client uses.
    fn per_client<T: Clone>(self, make: impl Fn() -> T) -> Vec<T> {
        match self {
            Self::One => vec![make(); CLIENTS as usize],
            Self::OnePerClient => (0..CLIENTS).map(|_| make()).collect(),
        }
    }
}

fn rows() -> Vec<Row> {
    use Processes::{One, OnePerClient};
    const EXPONENTIAL: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(20));
    let fixed = |delay| move || RetryModel::Fixed(delay);
    let tower_budget = || RetryModel::TowerBudget(TowerBudget::default());
    let half = Scenario { limit: SCENARIO.limit / 2, ..SCENARIO };
    vec![
        with_strategy("loop with a pause of 50 ms", OnePerClient, fixed(50 * MS)),
        with_strategy("fixed delay of 1 s", OnePerClient, fixed(SEC)),
        with_strategy("exponential backoff, no jitter", OnePerClient, || {
            RetryModel::Exponential(EXPONENTIAL.with_jitter(Jitter::None))
        }),
        with_strategy("exponential backoff, full jitter", OnePerClient, || {
            RetryModel::Exponential(EXPONENTIAL)
        }),
        with_strategy("`Retry-After`, then backoff with full jitter", OnePerClient, || {
            RetryModel::RetryAfterAndExponential(EXPONENTIAL)
        }),
        with_strategy("OpenAI SDK", OnePerClient, || RetryModel::OpenAi),
        with_strategy("AWS SDK, one process", One, RetryModel::aws_standard),
        with_strategy("AWS SDK, 1,000 processes", OnePerClient, RetryModel::aws_standard),
        with_strategy("tower's retry budget, one process", One, tower_budget),
        with_strategy("tower's retry budget, 1,000 processes", OnePerClient, tower_budget),
        with_layer("**`Outbound`, `100/s per host`**", SCENARIO, One, &["100/s per host"]),
        with_layer("`Outbound` without a limit", SCENARIO, One, &[]),
        with_layer("the same, and the server allows 50/s", half, One, &[]),
        with_layer(
            "`Outbound`, 1,000 processes that share nothing",
            SCENARIO,
            OnePerClient,
            &["100/s per host"],
        ),
    ]
}

fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| clients | peak, of the limit | peak of retries | attempts per request | served | gave up | all ended after |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        let _ = writeln!(
            table,
            "| {} | {:.2} | {}/s | {:.2} | {} | {} | {:.1} s |",
            row.name,
            row.peak_of_limit(),
            row.peak_retries(),
            row.amplification(),
            row.served(),
            row.gave_up(),
            row.end().as_secs_f64(),
        );
    }
    table
}

#[test]
fn a_herd_keeps_to_a_limit_that_resets() {
    for seed in SCENARIO.seed..SCENARIO.seed + 20 {
        let scenario = Scenario { seed, ..SCENARIO };
        let row = with_layer("", scenario, Processes::One, &["100/s per host"]);
        let (peak, amplification) = (row.peak_of_limit(), row.amplification());
        assert!(peak <= PEAK_MAX, "seed {seed}: {peak} of the limit");
        assert!(amplification <= AMPLIFICATION_MAX, "seed {seed}: {amplification} attempts");
        assert_eq!(row.gave_up(), 0, "seed {seed}");
    }
}

/// The rows of the README.
fn short_table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| 1,000 clients, a limit of 100/s that resets | peak, of the limit | attempts per request | all served after |\n\
         |---|---:|---:|---:|\n",
    );
    let is_shown = |row: &&Row| row.gave_up() == 0 && !row.name.contains("server allows 50/s");
    for row in rows.iter().filter(is_shown) {
        let (peak, attempts, end) = (row.peak_of_limit(), row.amplification(), row.end());
        let end = end.as_secs_f64();
        let _ = writeln!(table, "| {} | {peak:.2} | {attempts:.2} | {end:.1} s |", row.name);
    }
    table
}

#[test]
fn the_tables_of_herds_are_those_of_the_docs() {
    let rows = rows();
    assert_shown("docs/client.md", &table(&rows));
    assert_shown("README.md", &short_table(&rows));
}

/// Asserts that a page has this table between its markers, or writes it there.
fn assert_shown(page: &str, table: &str) {
    const BEGIN: &str = "<!-- herd -->\n";
    const END: &str = "<!-- /herd -->";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page has the marker <!-- herd -->");
    let (shown, after) = rest.split_once(END).expect("the page has the marker <!-- /herd -->");
    if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        std::fs::write(&file, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert!(
        shown == table,
        "the table in {page} is not what the clients do. If the change is meant, run\n\
         SNAPSHOTS=overwrite cargo test -p ratekeeper --all-features --test client herd\n\n\
         {page}:\n{shown}\nnow:\n{table}"
    );
}
