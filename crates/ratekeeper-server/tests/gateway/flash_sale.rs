//! A flash sale: a partner's client floods the gateway, and other users are not affected.
//!
//! Four processes: an upstream that counts, the gateway, the partner and other flooding clients, and
//! this one, with ordinary users.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use ratekeeper::{Clock, SystemClock};
use ratekeeper_testkit::Helper;

use crate::backend::{Backend, respond};
use crate::client::Client;
use crate::process::Gateway;

const POLICY: &str = "
version: 1
identify:
  api_key: { header: x-api-key }
  user: { header: x-user }
tiers: { of: api_key, members: { k-partner: partner }, default: free }
exempt: [ { path: /healthz } ]
limits:
  - name: api
    match: { header: { x-api-key: true } }
    per: api_key
    rate: { free: 20/s burst 40, partner: 200/s burst 400 }
  - name: user
    match: { header: { x-api-key: false } }
    per: user
    rate: 20/s burst 40
  - name: checkout
    match: { method: POST, path: /checkout }
    per: user
    rate: 5/s burst 10
  - name: backend
    concurrency: 64
";

/// How long the sale lasts.
const SALE_US: u64 = 3_000_000;

/// A client that sends as many requests as it can, and its rate in the policy.
struct Flooder {
    name: &'static str,
    line: &'static str,
    headers: &'static str,
    rate: f64,
    burst: f64,
    threads: usize,
}

const FLOODERS: [Flooder; 3] = [
    // The partner buys for a thousand customers, so only the limit of its API key applies.
    Flooder {
        name: "partner",
        line: "POST /checkout",
        headers: "x-api-key: k-partner\r\nx-user: customer-{n}\r\n",
        rate: 200.0,
        burst: 400.0,
        threads: 8,
    },
    Flooder {
        name: "scraper",
        line: "GET /products",
        headers: "x-user: scraper\r\n",
        rate: 20.0,
        burst: 40.0,
        threads: 2,
    },
    Flooder {
        name: "bot",
        line: "POST //%63heckout/",
        headers: "x-user: bot\r\n",
        rate: 5.0,
        burst: 10.0,
        threads: 2,
    },
];

/// The responses of one flooding client. Times are in microseconds.
#[derive(Debug, Default)]
struct Results {
    served: u64,
    refused: u64,
    others: u64,
    first_sent: u64,
    first_response: u64,
    last_response: u64,
    /// When the last refused request was sent.
    last_refusal_sent: u64,
}

#[test]
fn a_flooding_partner_is_limited_and_other_users_are_unaffected() {
    let mut backend = Helper::test("flash_sale::upstream_process", &[]);
    let port = backend.line();
    let upstream = format!("http://127.0.0.1:{}", port.trim());
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let policy = policy.to_str().unwrap();
    let gateway = Gateway::start(&["--upstream", &upstream, "--admin", "127.0.0.1:0", policy]);

    let address = gateway.address().to_string();
    let mut flooders = Helper::test("flash_sale::flooding_process", &[("GATEWAY", &address)]);
    assert_eq!(flooders.line().trim(), "the partner is refused");
    let served_users: usize = thread::scope(|scope| {
        let users: Vec<_> = (0..30)
            .map(|user| {
                let gateway = &gateway;
                scope.spawn(move || shop(gateway.address(), user))
            })
            .collect();
        users.into_iter().map(|user| user.join().unwrap()).sum()
    });
    assert_eq!(served_users, 30 * 20, "every request of every user was served");

    let output = flooders.rest();
    let counted = counts(port.trim().parse().unwrap());
    for caller in FLOODERS {
        let results = results(&output, caller.name);
        assert_eq!(results.others, 0, "{}: {results:?}", caller.name);
        assert!(results.refused > 0, "{}: too few requests: {results:?}", caller.name);
        assert_eq!(counted[caller.name], results.served, "{}: every admitted request", caller.name);
        assert_within_policy(&caller, &results);
    }
    assert_eq!(counted["user"], 600);
    let most = counted["most in flight"];
    assert!(most <= 64, "the upstream had {most} in flight");
}

/// Asserts that a flooded bucket admitted its burst plus its refill: no more than in the longest time
/// that can have passed, and no less than in the shortest.
fn assert_within_policy(caller: &Flooder, results: &Results) {
    let Flooder { name, rate, burst, .. } = caller;
    let secs = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let most = burst + rate * secs(results.first_sent, results.last_response);
    assert!(results.served as f64 <= most, "{name}: {} served, {most:.1} at most", results.served);
    let least = burst + rate * secs(results.first_response, results.last_refusal_sent) - 1.0;
    assert!(
        results.served as f64 >= least,
        "{name}: {} served, {least:.1} at least",
        results.served
    );
}

/// Sends the requests of an ordinary user, and returns how many were served.
fn shop(gateway: SocketAddr, user: usize) -> usize {
    let mut client = Client::connect(gateway);
    let mut send = |line: &str| {
        let request = format!(
            "{line} HTTP/1.1\r\nHost: shop\r\nx-user: user-{user}\r\nx-actor: user\r\ncontent-length: 0\r\n\r\n"
        );
        let response = client.request(&request);
        assert_eq!(response.status(), 200, "user {user}: {line}: {}", response.body);
        1
    };
    (0..20).map(|i| send(if i % 4 == 3 { "POST /checkout" } else { "GET /products" })).sum()
}

#[test]
#[ignore = "the upstream's process"]
fn upstream_process() {
    let counts: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let in_flight = Arc::new(Mutex::new((0_u64, 0_u64)));
    let backend = Backend::start(move |head, wire| {
        if head.line.starts_with("GET /counts") {
            let mut counts = counts.lock().unwrap().clone();
            counts.insert("most in flight".into(), in_flight.lock().unwrap().1);
            let lines: Vec<_> = counts.iter().map(|(name, n)| format!("{name}={n}")).collect();
            return respond(wire, &lines.join("\n"));
        }
        {
            let mut in_flight = in_flight.lock().unwrap();
            in_flight.0 += 1;
            in_flight.1 = in_flight.1.max(in_flight.0);
        }
        *counts.lock().unwrap().entry(head.get("x-actor").unwrap_or_default()).or_default() += 1;
        let is_read = wire.try_body(&head).is_ok();
        in_flight.lock().unwrap().0 -= 1;
        is_read && respond(wire, "sold")
    });
    Helper::serve(backend.address().port());
}

#[test]
#[ignore = "the process of the flooding clients"]
fn flooding_process() {
    let gateway: SocketAddr = std::env::var("GATEWAY").unwrap().parse().unwrap();
    thread::scope(|scope| {
        for caller in &FLOODERS {
            scope.spawn(move || {
                let results = flood(gateway, caller);
                let numbers = results.numbers().map(|n| n.to_string()).join(" ");
                println!("\n{}: {numbers}", caller.name);
            });
        }
    });
}

fn flood(gateway: SocketAddr, caller: &Flooder) -> Results {
    let (results, is_done) = (Mutex::new(Results::default()), AtomicBool::new(false));
    let start = SystemClock.now().get();
    thread::scope(|scope| {
        for thread in 0..caller.threads {
            let (results, is_done) = (&results, &is_done);
            scope.spawn(move || {
                let mut client = Client::connect(gateway);
                for n in 0.. {
                    let customer = format!("{}", (n * caller.threads + thread) % 1_000);
                    let (line, headers) = (caller.line, caller.headers.replace("{n}", &customer));
                    let actor = caller.name;
                    let sent = SystemClock.now().get();
                    let response = client.request(&format!(
                        "{line} HTTP/1.1\r\nHost: shop\r\n{headers}x-actor: {actor}\r\ncontent-length: 0\r\n\r\n"
                    ));
                    let received = SystemClock.now().get();
                    let is_first = results.lock().unwrap().record(response.status(), sent, received);
                    if is_first && actor == "partner" {
                        println!("\nthe partner is refused");
                    }
                    if received > start + SALE_US {
                        is_done.store(true, Ordering::Relaxed);
                    }
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
    });
    results.into_inner().unwrap()
}

impl Results {
    /// Records a response, and returns whether it is the first refusal.
    fn record(&mut self, status: u16, sent: u64, received: u64) -> bool {
        let first = |known: u64, new: u64| if known == 0 { new } else { known.min(new) };
        self.first_sent = first(self.first_sent, sent);
        self.first_response = first(self.first_response, received);
        self.last_response = self.last_response.max(received);
        match status {
            200 => self.served += 1,
            429 => {
                self.refused += 1;
                self.last_refusal_sent = self.last_refusal_sent.max(sent);
            }
            _ => self.others += 1,
        }
        status == 429 && self.refused == 1
    }

    fn numbers(&self) -> [u64; 7] {
        let Self { served, refused, others, first_sent, first_response, .. } = *self;
        let last = [self.last_response, self.last_refusal_sent];
        [served, refused, others, first_sent, first_response, last[0], last[1]]
    }

    fn from_numbers(numbers: [u64; 7]) -> Self {
        let [served, refused, others, first_sent, first_response, last_response, last_refusal_sent] =
            numbers;
        Self {
            served,
            refused,
            others,
            first_sent,
            first_response,
            last_response,
            last_refusal_sent,
        }
    }
}

fn results(output: &str, name: &str) -> Results {
    let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let numbers = line.unwrap_or_else(|| panic!("no results of the {name}: {output}"));
    let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
    Results::from_numbers(numbers.try_into().expect("seven numbers"))
}

fn counts(port: u16) -> BTreeMap<String, u64> {
    let response = Client::connect(([127, 0, 0, 1], port).into()).get("/counts");
    let pairs = response.body.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, n)| (name.to_string(), n.parse().unwrap())).collect()
}
