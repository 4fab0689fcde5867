//! A flash sale: more customers than the database can serve, with and without a policy.
//!
//! Processes: `ratekeeper gateway` ─► orders ─► inventory ─► PostgreSQL. A customer gives up after a second, and comes
//! again. What they gave up is still worked on, so without protection, soon all work is for customers who are gone.

#![allow(clippy::disallowed_methods, reason = "customers wait in real time")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ratekeeper::{Clock, Micros, SystemClock};
use ratekeeper_testkit::http1::Wire;
use ratekeeper_testkit::{Helper, PostgresConnection, PostgresServer, Server, ServerBuilder};

use super::services::{CONNECTIONS, DATABASE_ADDRESS, INVENTORY, INVENTORY_ADDRESS, ORDERS, SALE};

/// As many calls as the database has connections; what waits longer than for one more sale is rejected.
pub(crate) const POLICY: &str = "\
version: 1
dependencies:
  inventory:
    match: { path: /checkout }
    concurrency: { max: 40, queue: { max: 40, wait: 200ms } }
    breaker: { failure_rate: 50%, wait: 1s }
limits: []
";

/// A checkout is good within this time.
pub(crate) const GOOD: Duration = Duration::from_millis(800);

/// A customer gives up after this time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

const CUSTOMERS: usize = 400;
const READERS: usize = 8;
const SALE_LASTS: Duration = Duration::from_secs(6);

/// The first part of the sale, which is not counted.
const ONSET: Duration = Duration::from_secs(2);

/// Good checkouts in a row that end the recovery.
const RECOVERED: usize = 20;

/// The longest recovery that is waited for.
const RECOVERY_MAX: Duration = Duration::from_secs(20);

/// The checkouts per second that the database can serve.
pub(crate) fn capacity() -> f64 {
    CONNECTIONS as f64 / SALE.as_secs_f64()
}

/// What customers saw during the sale, and afterwards.
#[derive(Debug)]
pub(crate) struct Report {
    /// Checkouts served within [`GOOD`], per second.
    pub(crate) goodput: f64,
    /// Checkouts that were not rejected.
    pub(crate) checkouts: Latencies,
    /// Checkouts that were rejected.
    pub(crate) rejected: Latencies,
    /// Pages of the catalogue, which need no inventory.
    pub(crate) pages: Latencies,
    /// From the end of the sale until checkouts were good again.
    pub(crate) recovery: Duration,
    /// Checkouts that customers know of, and all that are in the database.
    pub(crate) known: u64,
    pub(crate) sold: u64,
}

/// Latencies, in order. What was given up has the time until then.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the 95th percentile; zero if there are none.
    pub(crate) fn p95(&self) -> Duration {
        self.0.get(self.0.len() * 95 / 100).copied().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Served,
    Rejected,
    GivenUp,
}

struct Attempt {
    began: Micros,
    took: Duration,
    outcome: Outcome,
}

/// Holds a sale in front of a gateway with or without the policy. `start` starts this program in another role.
pub(crate) fn hold(
    ratekeeper: &str,
    is_protected: bool,
    start: impl Fn(&str, &[(&str, &str)]) -> Helper,
) -> Report {
    let database = PostgresServer::start(CONNECTIONS + 5);
    let mut counting = PostgresConnection::open(database.address()).expect("a connection");
    counting.query("create unlogged table sold (item int)").expect("a table");
    let url = database.address().to_string();
    let mut inventory = start(INVENTORY, &[(DATABASE_ADDRESS, &url)]);
    let inventory_address = format!("127.0.0.1:{}", inventory.line().trim());
    let mut orders = start(ORDERS, &[(INVENTORY_ADDRESS, &inventory_address)]);
    let orders_url = format!("http://127.0.0.1:{}", orders.line().trim());
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).expect("a policy file");
    let gateway = gateway(ratekeeper, &orders_url, is_protected.then_some(&*policy));

    let began = SystemClock.now();
    let (checkouts, pages) = rush(gateway.gateway(), began.after(SALE_LASTS));
    let recovery = recover(gateway.gateway());
    let of = |attempts: &[Attempt], is_such: fn(&Attempt) -> bool| {
        let counted = attempts.iter().filter(|one| one.began >= began.after(ONSET));
        Latencies::of(counted.filter(|one| is_such(one)).map(|one| one.took).collect())
    };
    let is_good = |one: &Attempt| one.outcome == Outcome::Served && one.took <= GOOD;
    let known = checkouts.iter().filter(|one| one.outcome == Outcome::Served).count();
    let sold = counting.query("select count(*) from sold").expect("a count");
    Report {
        goodput: of(&checkouts, is_good).count() as f64 / (SALE_LASTS - ONSET).as_secs_f64(),
        checkouts: of(&checkouts, |one| one.outcome != Outcome::Rejected),
        rejected: of(&checkouts, |one| one.outcome == Outcome::Rejected),
        pages: of(&pages, |_| true),
        recovery,
        known: known as u64,
        sold: sold[0].parse().expect("a number"),
    }
}

fn gateway(ratekeeper: &str, upstream: &str, policy: Option<&Path>) -> Server {
    let policy = policy.map(|policy| policy.to_str().expect("a path in UTF-8"));
    let args = ["--upstream", upstream].into_iter().chain(policy);
    ServerBuilder::gateway(ratekeeper).args(args).start()
}

/// Lets all customers check out, and readers look at the catalogue, until a time.
fn rush(gateway: SocketAddr, until: Micros) -> (Vec<Attempt>, Vec<Attempt>) {
    let (checkouts, pages) = (Mutex::default(), Mutex::default());
    thread::scope(|scope| {
        let come = |path: &'static str, into: &Mutex<Vec<Attempt>>| {
            let mut connection = None;
            while SystemClock.now() < until {
                let attempt = request(gateway, path, &mut connection);
                if attempt.outcome == Outcome::Rejected {
                    thread::sleep(CLIENT_TIMEOUT); // as Retry-After says
                }
                into.lock().unwrap().push(attempt);
            }
        };
        let (checkouts, pages) = (&checkouts, &pages);
        (0..CUSTOMERS).for_each(|_| _ = scope.spawn(move || come("/checkout", checkouts)));
        (0..READERS).for_each(|_| _ = scope.spawn(move || come("/catalogue", pages)));
    });
    (checkouts.into_inner().unwrap(), pages.into_inner().unwrap())
}

/// Checks out one after the other until checkouts are good again, and returns how long that took.
fn recover(gateway: SocketAddr) -> Duration {
    let began = SystemClock.now();
    let (mut connection, mut good, mut last) = (None, 0, began);
    while good < RECOVERED && SystemClock.now().since(began) < RECOVERY_MAX {
        let attempt = request(gateway, "/checkout", &mut connection);
        if attempt.outcome == Outcome::Served && attempt.took <= GOOD {
            good += 1;
        } else {
            good = 0;
            last = SystemClock.now();
        }
    }
    match good {
        RECOVERED => last.since(began),
        _ => RECOVERY_MAX,
    }
}

/// Sends one request, over the connection of the last one if that was not given up.
fn request(gateway: SocketAddr, path: &str, connection: &mut Option<Wire>) -> Attempt {
    let began = SystemClock.now();
    let status = exchange(gateway, path, connection);
    if status.is_err() {
        *connection = None;
    }
    let outcome = match status {
        Ok(200) => Outcome::Served,
        Ok(429 | 503) => Outcome::Rejected,
        _ => Outcome::GivenUp,
    };
    Attempt { began, took: SystemClock.now().since(began), outcome }
}

fn exchange(gateway: SocketAddr, path: &str, connection: &mut Option<Wire>) -> io::Result<u16> {
    if connection.is_none() {
        *connection = Some(Wire::new(TcpStream::connect(gateway)?));
    }
    let wire = connection.as_mut().expect("it was opened");
    wire.stream().set_read_timeout(Some(CLIENT_TIMEOUT))?;
    wire.try_send(format!("GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n"))?;
    let head = wire.try_head()?;
    wire.try_body(&head)?;
    Ok(head.status())
}
