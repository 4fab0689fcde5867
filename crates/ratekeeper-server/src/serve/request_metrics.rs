//! Counts and durations of requests, per protocol.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratekeeper::histogram::{DurationCounts, Histogram};

use crate::console::Readings;
use crate::listener::ConnectionLimit;
use crate::metrics::{Labels, Page};
use crate::top::Top;

/// The metrics of each protocol, and the top keys, which all of them feed.
#[derive(Default)]
pub(crate) struct RequestMetrics {
    pub(crate) http: Arc<ProtocolMetrics>,
    /// Forward auth, over the HTTP listener.
    pub(crate) forward_auth: Arc<ProtocolMetrics>,
    pub(crate) resp: Arc<ProtocolMetrics>,
    pub(crate) grpc: Arc<ProtocolMetrics>,
    pub(crate) top: Arc<Top>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    /// It was invalid, or could not be served.
    Error,
    /// It was not for a decision.
    Other,
}

const OUTCOMES: [(&str, Outcome); 4] = [
    ("allowed", Outcome::Allowed),
    ("denied", Outcome::Denied),
    ("error", Outcome::Error),
    ("other", Outcome::Other),
];

/// How many requests had which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally([u64; OUTCOMES.len()]);

/// The metrics of one protocol.
#[derive(Default)]
pub(crate) struct ProtocolMetrics {
    requests: [AtomicU64; OUTCOMES.len()],
    duration: Histogram,
    /// The connections of its listener, if it has one of its own.
    connections: OnceLock<Arc<ConnectionLimit>>,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        OUTCOMES[self as usize].0
    }

    pub(crate) fn of(is_allowed: bool) -> Self {
        if is_allowed { Self::Allowed } else { Self::Denied }
    }
}

impl Tally {
    pub(crate) fn one(outcome: Outcome) -> Self {
        let mut tally = Self::default();
        tally.add(outcome);
        tally
    }

    #[inline]
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }

    fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total() == 0
    }
}

impl ProtocolMetrics {
    /// Counts requests that were served together, and how long that took.
    #[inline]
    pub(crate) fn record(&self, tally: &Tally, took: Duration) {
        for (counter, times) in self.requests.iter().zip(tally.0).filter(|(_, times)| *times > 0) {
            counter.fetch_add(times, Ordering::Relaxed);
        }
        self.duration.record(took, tally.total());
    }

    /// Counts a request whose duration is not measured.
    pub(crate) fn count(&self, outcome: Outcome) {
        self.requests[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many requests there were.
    pub(crate) fn total(&self) -> u64 {
        self.requests.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

impl RequestMetrics {
    pub(crate) fn new(top: Arc<Top>) -> Arc<Self> {
        Arc::new(Self { top, ..Self::default() })
    }

    /// Sets where the connections of a listener are counted.
    pub(crate) fn set_connections(&self, listener: &str, connections: &Arc<ConnectionLimit>) {
        if let Some((_, metrics)) = self.all().into_iter().find(|(name, _)| *name == listener) {
            let _ = metrics.connections.set(Arc::clone(connections));
        }
    }

    fn all(&self) -> [(&'static str, &ProtocolMetrics); 4] {
        let Self { http, forward_auth, resp, grpc, .. } = self;
        [("http", http), ("forward_auth", forward_auth), ("resp", resp), ("grpc", grpc)]
    }

    /// Adds the counters of each protocol, and the durations of all.
    pub(crate) fn read(&self, readings: &mut Readings) {
        let mut durations = DurationCounts::default();
        for (name, metrics) in self.all() {
            let count = |i: usize| metrics.requests[i].load(Ordering::Relaxed);
            readings.protocol(name, std::array::from_fn(count));
            durations += metrics.duration.counts();
        }
        readings.durations("request", durations);
    }

    pub(crate) fn collect(&self, page: &mut Page) {
        let all = self.all();
        let requests = all.iter().flat_map(|(protocol, metrics)| {
            OUTCOMES.map(|(name, outcome)| {
                let labels = Labels(vec![("protocol", *protocol), ("outcome", name)]);
                (labels, metrics.requests[outcome as usize].load(Ordering::Relaxed))
            })
        });
        page.counter("ratekeeper_requests_total", "Requests by protocol and outcome.", requests);
        let durations = all.iter().map(|(protocol, metrics)| {
            (Labels(vec![("protocol", *protocol)]), metrics.duration.counts())
        });
        let help = "Duration of requests. Those that arrive together take as long as all of them.";
        page.histogram("ratekeeper_request_duration_seconds", help, durations);
        let connections: Vec<_> = all
            .iter()
            .filter_map(|(name, metrics)| {
                Some((Labels(vec![("listener", *name)]), metrics.connections.get()?))
            })
            .collect();
        let read = |value: fn(&ConnectionLimit) -> u64| {
            connections.iter().map(move |(labels, limit)| (labels.clone(), value(limit)))
        };
        let help = "Open connections.";
        page.gauge("ratekeeper_connections", help, read(|limit| limit.open() as u64));
        let help = "Connections that were accepted.";
        page.counter(
            "ratekeeper_connections_accepted_total",
            help,
            read(ConnectionLimit::accepted),
        );
        let help = "Connections that were rejected at the connection limit.";
        page.counter(
            "ratekeeper_connections_rejected_total",
            help,
            read(ConnectionLimit::rejected),
        );
    }
}
