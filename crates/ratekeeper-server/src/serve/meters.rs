//! What the doors have been asked and how long they took, for those who run the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratekeeper::histogram::Histogram;

use crate::listener::ConnectionLimit;
use crate::metrics::{Labels, Page};
use crate::top::Top;

/// A meter for each door, and the list of keys that all of them feed.
#[derive(Default)]
pub(crate) struct Meters {
    pub(crate) http: Arc<DoorMeter>,
    /// Forward-auth, which is asked over HTTP too.
    pub(crate) auth: Arc<DoorMeter>,
    pub(crate) resp: Arc<DoorMeter>,
    pub(crate) grpc: Arc<DoorMeter>,
    pub(crate) top: Arc<Top>,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    /// It could not be understood, or not be answered.
    Error,
    /// Something else was asked than whether it may pass.
    Other,
}

const OUTCOMES: [(&str, Outcome); 4] = [
    ("allowed", Outcome::Allowed),
    ("denied", Outcome::Denied),
    ("error", Outcome::Error),
    ("other", Outcome::Other),
];

/// How many questions came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally([u64; OUTCOMES.len()]);

/// What a door has been asked.
#[derive(Default)]
pub(crate) struct DoorMeter {
    asked: [AtomicU64; OUTCOMES.len()],
    time: Histogram,
    /// Its connections, if it has any of its own.
    seats: OnceLock<Arc<ConnectionLimit>>,
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

impl DoorMeter {
    /// Counts questions that were answered together, and how long that took.
    #[inline]
    pub(crate) fn record(&self, tally: &Tally, took: Duration) {
        for (counter, times) in self.asked.iter().zip(tally.0).filter(|(_, times)| *times > 0) {
            counter.fetch_add(times, Ordering::Relaxed);
        }
        self.time.record(took, tally.total());
    }

    /// Counts something that is no question, and that nobody waits for.
    pub(crate) fn count(&self, outcome: Outcome) {
        self.asked[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many questions there were.
    pub(crate) fn total(&self) -> u64 {
        self.asked.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

impl Meters {
    pub(crate) fn new(top: Arc<Top>) -> Arc<Self> {
        Arc::new(Self { top, ..Self::default() })
    }

    /// Where the connections of a door are counted.
    pub(crate) fn seated(&self, door: &str, seats: &Arc<ConnectionLimit>) {
        if let Some((_, meter)) = self.all().into_iter().find(|(name, _)| *name == door) {
            let _ = meter.seats.set(Arc::clone(seats));
        }
    }

    fn all(&self) -> [(&'static str, &DoorMeter); 4] {
        let Self { http, auth, resp, grpc, .. } = self;
        [("http", http), ("auth", auth), ("resp", resp), ("grpc", grpc)]
    }

    pub(crate) fn tell_metrics(&self, page: &mut Page) {
        let all = self.all();
        let asked = all.iter().flat_map(|(door, meter)| {
            OUTCOMES.map(|(name, outcome)| {
                let labels = Labels(vec![("door", *door), ("outcome", name)]);
                (labels, meter.asked[outcome as usize].load(Ordering::Relaxed))
            })
        });
        page.counter("ratekeeper_requests_total", "What the doors were asked.", asked);
        let door = |door| Labels(vec![("door", door)]);
        let took = all.iter().map(|(name, meter)| (door(name), meter.time.counts()));
        let help =
            "From a question to its answer. Questions that come together are answered together.";
        page.histogram("ratekeeper_request_duration_seconds", help, took);
        let seats: Vec<_> =
            all.iter().filter_map(|(name, meter)| Some((door(name), meter.seats.get()?))).collect();
        let told = |tell: fn(&ConnectionLimit) -> u64| {
            seats.iter().map(move |(door, seats)| (door.clone(), tell(seats)))
        };
        let help = "Connections that are open.";
        page.gauge("ratekeeper_connections", help, told(|seats| seats.open() as u64));
        let help = "Connections that came.";
        page.counter(
            "ratekeeper_connections_accepted_total",
            help,
            told(ConnectionLimit::accepted),
        );
        let help = "Connections that were turned away because there were too many.";
        page.counter(
            "ratekeeper_connections_rejected_total",
            help,
            told(ConnectionLimit::rejected),
        );
    }
}
