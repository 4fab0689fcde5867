//! The story of a flash sale: a partner's client has gone wild, and nobody else notices.
//!
//! Four processes: a backend that counts, the gateway, the partner and other greedy callers, and
//! this one, with ordinary users.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use ratekeeper::{Clock, SystemClock};

use crate::backend::{Backend, answer};
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

/// Callers who ask for as much as they can, and what the policy grants them.
struct Greedy {
    name: &'static str,
    line: &'static str,
    headers: &'static str,
    rate: f64,
    burst: f64,
    threads: usize,
}

const GREEDY: [Greedy; 3] = [
    // The partner buys for a thousand customers, so that only its own limit holds it.
    Greedy {
        name: "partner",
        line: "POST /checkout",
        headers: "x-api-key: k-partner\r\nx-user: customer-{n}\r\n",
        rate: 200.0,
        burst: 400.0,
        threads: 8,
    },
    Greedy {
        name: "scraper",
        line: "GET /products",
        headers: "x-user: scraper\r\n",
        rate: 20.0,
        burst: 40.0,
        threads: 2,
    },
    Greedy {
        name: "bot",
        line: "POST //%63heckout/",
        headers: "x-user: bot\r\n",
        rate: 5.0,
        burst: 10.0,
        threads: 2,
    },
];

/// What one greedy caller saw. Times are in microseconds.
#[derive(Debug, Default)]
struct Seen {
    served: u64,
    refused: u64,
    others: u64,
    first_sent: u64,
    first_answered: u64,
    last_answered: u64,
    /// When the last one that was refused was sent.
    last_refusal_sent: u64,
}

#[test]
fn a_partner_gone_wild_is_held_to_its_limit_and_nobody_else_notices() {
    let mut backend = Other::start("flash_sale::as_the_backend", &[]);
    let port = backend.line();
    let upstream = format!("http://127.0.0.1:{}", port.trim());
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let policy = policy.to_str().unwrap();
    let gateway = Gateway::start(&["--upstream", &upstream, "--admin", "127.0.0.1:0", policy]);

    let address = gateway.address().to_string();
    let mut greedy = Other::start("flash_sale::as_the_greedy", &[("GATEWAY", &address)]);
    assert_eq!(greedy.line().trim(), "the partner is wild");
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

    let told = greedy.rest();
    let counted = counts(port.trim().parse().unwrap());
    for caller in GREEDY {
        let seen = seen(&told, caller.name);
        assert_eq!(seen.others, 0, "{}: {seen:?}", caller.name);
        assert!(seen.refused > 0, "{}: not greedy enough: {seen:?}", caller.name);
        assert_eq!(counted[caller.name], seen.served, "{}: all that was admitted", caller.name);
        is_within_the_policy(&caller, &seen);
    }
    assert_eq!(counted["user"], 600);
    let most = counted["most in flight"];
    assert!(most <= 64, "the backend had {most} at a time");
}

/// A bucket that is never left alone admits exactly its burst and what has come since: no more over
/// the longest time that can have passed, and no less over the shortest.
fn is_within_the_policy(caller: &Greedy, seen: &Seen) {
    let Greedy { name, rate, burst, .. } = caller;
    let secs = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let most = burst + rate * secs(seen.first_sent, seen.last_answered);
    assert!(seen.served as f64 <= most, "{name}: {} served, {most:.1} at most", seen.served);
    let least = burst + rate * secs(seen.first_answered, seen.last_refusal_sent) - 1.0;
    assert!(seen.served as f64 >= least, "{name}: {} served, {least:.1} at least", seen.served);
}

/// An ordinary user: some products, some of them bought.
fn shop(gateway: SocketAddr, user: usize) -> usize {
    let mut client = Client::connect(gateway);
    let mut ask = |line: &str| {
        let request = format!(
            "{line} HTTP/1.1\r\nHost: shop\r\nx-user: user-{user}\r\nx-actor: user\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = client.ask(&request);
        assert_eq!(answer.status(), 200, "user {user}: {line}: {}", answer.body);
        1
    };
    (0..20).map(|i| ask(if i % 4 == 3 { "POST /checkout" } else { "GET /products" })).sum()
}

#[test]
#[ignore = "the backend's process"]
fn as_the_backend() {
    let counts: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let in_flight = Arc::new(Mutex::new((0_u64, 0_u64)));
    let backend = Backend::start(move |head, wire| {
        if head.line.starts_with("GET /counts") {
            let mut counts = counts.lock().unwrap().clone();
            counts.insert("most in flight".into(), in_flight.lock().unwrap().1);
            let lines: Vec<_> = counts.iter().map(|(name, n)| format!("{name}={n}")).collect();
            return answer(wire, &lines.join("\n"));
        }
        {
            let mut in_flight = in_flight.lock().unwrap();
            in_flight.0 += 1;
            in_flight.1 = in_flight.1.max(in_flight.0);
        }
        *counts.lock().unwrap().entry(head.get("x-actor").unwrap_or_default()).or_default() += 1;
        let is_read = wire.try_body(&head).is_ok();
        in_flight.lock().unwrap().0 -= 1;
        is_read && answer(wire, "sold")
    });
    println!("\n{}", backend.address().port());
    // Until the story is over.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
#[ignore = "the process of the partner, and of others who ask for too much"]
fn as_the_greedy() {
    let gateway: SocketAddr = std::env::var("GATEWAY").unwrap().parse().unwrap();
    thread::scope(|scope| {
        for caller in &GREEDY {
            scope.spawn(move || {
                let seen = ask_for_all(gateway, caller);
                let numbers = seen.numbers().map(|n| n.to_string()).join(" ");
                println!("\n{}: {numbers}", caller.name);
            });
        }
    });
}

fn ask_for_all(gateway: SocketAddr, caller: &Greedy) -> Seen {
    let (seen, is_over) = (Mutex::new(Seen::default()), AtomicBool::new(false));
    let start = SystemClock.now().get();
    thread::scope(|scope| {
        for thread in 0..caller.threads {
            let (seen, is_over) = (&seen, &is_over);
            scope.spawn(move || {
                let mut client = Client::connect(gateway);
                for n in 0.. {
                    let customer = format!("{}", (n * caller.threads + thread) % 1_000);
                    let (line, headers) = (caller.line, caller.headers.replace("{n}", &customer));
                    let actor = caller.name;
                    let sent = SystemClock.now().get();
                    let answer = client.ask(&format!(
                        "{line} HTTP/1.1\r\nHost: shop\r\n{headers}x-actor: {actor}\r\ncontent-length: 0\r\n\r\n"
                    ));
                    let answered = SystemClock.now().get();
                    let is_first = seen.lock().unwrap().note(answer.status(), sent, answered);
                    if is_first && actor == "partner" {
                        println!("\nthe partner is wild");
                    }
                    if answered > start + SALE_US {
                        is_over.store(true, Ordering::Relaxed);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
    });
    seen.into_inner().unwrap()
}

impl Seen {
    /// Returns whether it was the first to be refused.
    fn note(&mut self, status: u16, sent: u64, answered: u64) -> bool {
        let first = |known: u64, new: u64| if known == 0 { new } else { known.min(new) };
        self.first_sent = first(self.first_sent, sent);
        self.first_answered = first(self.first_answered, answered);
        self.last_answered = self.last_answered.max(answered);
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
        let Self { served, refused, others, first_sent, first_answered, .. } = *self;
        let last = [self.last_answered, self.last_refusal_sent];
        [served, refused, others, first_sent, first_answered, last[0], last[1]]
    }

    fn from_numbers(numbers: [u64; 7]) -> Self {
        let [served, refused, others, first_sent, first_answered, last_answered, last_refusal_sent] =
            numbers;
        Self {
            served,
            refused,
            others,
            first_sent,
            first_answered,
            last_answered,
            last_refusal_sent,
        }
    }
}

fn seen(told: &str, name: &str) -> Seen {
    let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let numbers = line.unwrap_or_else(|| panic!("no word of the {name}: {told}"));
    let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
    Seen::from_numbers(numbers.try_into().expect("as many as were told"))
}

fn counts(port: u16) -> BTreeMap<String, u64> {
    let answer = Client::connect(([127, 0, 0, 1], port).into()).get("/counts");
    let pairs = answer.body.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, n)| (name.to_string(), n.parse().unwrap())).collect()
}

/// This program once more, in another role. It ends with its standard input.
struct Other {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(role: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([role, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// The first line that is not the test harness's own.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended without a word");
            let is_ours = !line.trim().is_empty()
                && !line.starts_with("running ")
                && !line.starts_with("test ");
            if is_ours {
                return line;
            }
        }
    }

    fn rest(&mut self) -> String {
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
