//! The console: pages on the admin listener that show a running server, and what they read.
//!
//! `history` samples counters once a second, `status` is what pages show, `events` sends it to them, `keys` looks up
//! and resets keys. The pages themselves are the files in `console/` (`assets`), which hold no data: every request for
//! data needs the admin token, if there is one.

mod assets;
mod attention;
mod events;
mod history;
mod keys;
mod protection;
mod simulation;
mod status;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::ACCEPT;
use http::{HeaderMap, Response, StatusCode};
use ratekeeper::PolicyLimiter;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::Admin;
use assets::Asset;
pub(crate) use events::EventStream;
use events::Events;
use history::{History, Reading, Span};
pub(crate) use keys::{InvalidKeyRequest, lookup, reset};
pub(crate) use simulation::InvalidSimulation;
use simulation::Simulator;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Adds what a program knows beside the counters of the policy: its protocols and how long they take.
pub(crate) type MoreReadings = Box<dyn Fn(&mut Readings) + Send + Sync>;

/// The counters of protocols and durations at one time.
pub(crate) struct Readings(Reading);

impl Readings {
    /// Adds the requests of a protocol: allowed, denied, errors and others.
    pub(crate) fn protocol(&mut self, name: &'static str, counts: [u64; 4]) {
        self.0.protocols.push((name, counts));
    }

    /// Adds how long something took.
    pub(crate) fn durations(
        &mut self,
        name: &'static str,
        counts: ratekeeper::histogram::DurationCounts,
    ) {
        self.0.durations.push((name, counts));
    }
}

/// What the console knows.
#[derive(Default)]
pub(crate) struct Console {
    history: Mutex<History>,
    events: Events,
    simulator: Simulator,
}

/// The query of `/v1/history` is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid query; use span=5m, 1h or 24h, and a limit=NAME of the policy")]
pub(crate) struct InvalidQuery;

impl Console {
    /// Samples the counters once a second, for ever.
    pub(crate) async fn run(&self, admin: &Admin) {
        let mut samples = interval(SAMPLE_INTERVAL);
        samples.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            samples.tick().await;
            let reading = read(admin.policy.limiter(), &admin.more_readings);
            self.lock().add(&reading);
            if self.events.has_viewers() {
                self.events.send(&self.status(admin).to_string());
            }
        }
    }

    /// Returns the status of the server.
    pub(crate) fn status(&self, admin: &Admin) -> Value {
        let loads = admin.policy.status();
        let not_ready = (admin.not_ready)();
        let mut status = status::status(admin.policy.limiter(), &loads, not_ready, &self.lock());
        if let Some(upstreams) = &admin.upstreams {
            status["protection"]["upstreams"] = upstreams();
        }
        status
    }

    /// Returns what happened, by a query such as `span=1h&limit=search`.
    ///
    /// # Errors
    ///
    /// If the query is invalid, or names a limit without history.
    pub(crate) fn history(&self, query: Option<&str>) -> Result<Value, InvalidQuery> {
        let (mut span, mut limit) = (Span::FiveMinutes, None);
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "span" => {
                    let named = Span::ALL.into_iter().find(|span| span.name() == value);
                    span = named.ok_or(InvalidQuery)?;
                }
                "limit" => limit = Some(value),
                _ => return Err(InvalidQuery),
            }
        }
        status::history(&self.lock(), span, limit.as_deref()).ok_or(InvalidQuery)
    }

    /// Simulates a limit, as described by JSON.
    ///
    /// # Errors
    ///
    /// If the description is invalid, or another simulation is running.
    pub(crate) async fn simulate(&self, body: &[u8]) -> Result<Value, InvalidSimulation> {
        self.simulator.run(body).await
    }

    /// Returns the status now and once a second, or `None` if too many pages are open.
    pub(crate) fn subscribe(&self, admin: &Admin) -> Option<EventStream> {
        self.events.subscribe(&self.status(admin).to_string())
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(limiter: &PolicyLimiter, more: &MoreReadings) -> Reading {
    let limits = limiter.telemetry().limits().into_iter().map(|limit| {
        (limit.name, [limit.allowed, limit.near_limit, limit.denied, limit.shadow_denied])
    });
    let reading = Reading {
        at_us: limiter.engine().now().get(),
        limits: limits.collect(),
        ..Reading::default()
    };
    let mut readings = Readings(reading);
    more(&mut readings);
    readings.durations("store", limiter.engine().store_time());
    readings.0
}

/// Returns a file of the console. The page itself is only for browsers: other clients get text at `/`.
pub(crate) fn file(path: &str, headers: &HeaderMap) -> Option<Response<&'static str>> {
    let Asset { text, .. } = assets::find(path)?;
    let is_browser = || {
        let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        accepted.is_some_and(|accepted| accepted.contains("text/html"))
    };
    if path == "/" && !is_browser() {
        return None;
    }
    let mut response = Response::new(*text);
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = assets::find(path)?.headers();
    Some(response)
}
