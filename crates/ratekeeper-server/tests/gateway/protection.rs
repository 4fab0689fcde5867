//! Adaptive limits and load shedding in front of an upstream that is overloaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use ratekeeper::{Clock, SystemClock};

use crate::backend::{Backend, respond};
use crate::limits::{PolicyFile, admin, gateway};

const WORKERS: usize = 8;
const SERVICE_TIME: Duration = Duration::from_millis(20);
/// Five times as many as can be served at once.
const CLIENTS: usize = 5 * WORKERS;

const POLICY: &str = "
priorities: [ { class: checkout, match: { path: /checkout } }, { class: others } ]
shedding: { queue_time: 20ms }
limits:
  - name: shop
    concurrency: { adaptive: { min: 4, initial: 40, max: 100 } }
";

/// Waits without a response to wait for.
fn pause(time: Duration) {
    let (_sender, receiver): (Sender<()>, Receiver<()>) = channel();
    let _ = receiver.recv_timeout(time);
}

/// Starts an upstream whose requests wait for one of its workers.
fn upstream() -> Backend {
    let (free, freed) = (Mutex::new(WORKERS), Condvar::new());
    Backend::start(move |head, wire| {
        if wire.try_body(&head).is_err() {
            return false;
        }
        let mut workers = freed.wait_while(free.lock().unwrap(), |free| *free == 0).unwrap();
        *workers -= 1;
        drop(workers);
        pause(SERVICE_TIME);
        *free.lock().unwrap() += 1;
        freed.notify_one();
        respond(wire, "sold")
    })
}

/// What clients got.
#[derive(Default)]
struct Counts {
    served: AtomicU64,
    refused: AtomicU64,
}

/// Sends requests for a while, each client one after the other, and returns what was served in a second.
fn load(gateway: &crate::process::Gateway, clients: usize, time: Duration) -> (f64, u64) {
    let counts = Counts::default();
    let began = SystemClock.now();
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = gateway.connect();
                while SystemClock.now().since(began) < time {
                    let response = client.get("/prefetch");
                    if response.status() == 200 {
                        counts.served.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(response.status(), 503, "{}", response.body);
                    assert!(response.head.get("retry-after").is_some());
                    let is_explained = response.body.contains("\"limit\":\"shop\"")
                        || response.body.contains("\"class\":\"others\"");
                    assert!(is_explained, "{}", response.body);
                    pause(SERVICE_TIME);
                }
            });
        }
    });
    let took = SystemClock.now().since(began).as_secs_f64();
    let served = counts.served.load(Ordering::Relaxed) as f64 / took;
    (served, counts.refused.load(Ordering::Relaxed))
}

#[test]
fn goodput_holds_while_an_upstream_is_overloaded() {
    let (backend, policy) = (upstream(), PolicyFile::new(POLICY));
    let gateway = gateway(&backend, &policy, &[]);
    // What it can serve, with as many clients as workers.
    let (capacity, _) = load(&gateway, WORKERS, Duration::from_secs(2));
    let (goodput, refused) = load(&gateway, CLIENTS, Duration::from_secs(6));
    assert!(goodput > 0.7 * capacity, "{goodput} of {capacity} per second");
    assert!(refused > 0, "more came than the upstream can serve");
    let metrics = admin(&gateway, "GET /metrics").body;
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let limit = value("ratekeeper_concurrency_limit{limit=\"shop\"}");
    assert!((4.0..40.0).contains(&limit), "the limit is {limit}, and began with 40\n{metrics}");
    let shed = value("ratekeeper_shedding_requests_total{class=\"others\",outcome=\"shed\"}");
    let rejected =
        value("ratekeeper_concurrency_rejected_total{limit=\"shop\",reason=\"queue_full\"}");
    assert_eq!(shed + rejected, refused as f64);
    assert_eq!(value("ratekeeper_concurrency_in_flight{limit=\"shop\"}"), 0.0);
}
