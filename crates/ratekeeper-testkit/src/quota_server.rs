//! An HTTP/1 server with a quota, for tests of clients that have to stay under it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bounded_log::BoundedLog;
use crate::http_server::{CONNECTIONS_MAX, HttpServer, Running, listener};
use crate::http1::{Head, Wire, encode_response_to};
use crate::quota::{Quota, QuotaCounter, milliseconds_ceil, seconds_ceil};

/// Seconds of the histogram; later arrivals are counted in the last one.
const HISTOGRAM_SECONDS_MAX: usize = 3600;

/// Different values of a header that are counted; further ones are not.
const HEADER_VALUES_MAX: usize = 10_000;

/// A family of headers that tell a client about a quota. Times in seconds are rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaHeader {
    /// `Retry-After` in seconds, on refusals only.
    RetryAfter,
    /// `retry-after-ms`, on refusals only.
    RetryAfterMs,
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft, for the policy `"default"`.
    RateLimit,
    /// `X-RateLimit-Limit`, `-Remaining`, and `-Reset` as the seconds that are left.
    XRateLimitDelta,
    /// `X-RateLimit-Limit`, `-Remaining`, and `-Reset` as seconds since 1970.
    XRateLimitEpoch,
}

/// How to start a [`QuotaServer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct QuotaServerBuilder {
    quota: Quota,
    refusal_status: u16,
    headers: Vec<QuotaHeader>,
    is_refusals_only: bool,
    delay: Duration,
    is_keep_alive: bool,
    count_by: Option<String>,
}

impl QuotaServerBuilder {
    /// Sets the status of refusals, 429 by default.
    pub fn refusal_status(mut self, status: u16) -> Self {
        self.refusal_status = status;
        self
    }

    /// Sets which headers are sent, none by default.
    pub fn headers(mut self, headers: &[QuotaHeader]) -> Self {
        self.headers = headers.to_vec();
        self
    }

    /// Sends headers on refusals only, not on all responses.
    pub fn headers_on_refusals_only(mut self) -> Self {
        self.is_refusals_only = true;
        self
    }

    /// Sets how long after its decision the server responds.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Closes each connection after one response.
    pub fn no_keep_alive(mut self) -> Self {
        self.is_keep_alive = false;
        self
    }

    /// Counts and records the values of this request header, such as the number of an attempt.
    pub fn count_by(mut self, header: &str) -> Self {
        self.count_by = Some(header.to_string());
        self
    }

    /// Starts the server on any free port. Its first window begins now.
    pub fn start(self) -> QuotaServer {
        let state = QuotaServerState {
            counter: QuotaCounter::new(self.quota),
            accepted: 0,
            refused: 0,
            per_second: Vec::new(),
            by_value: BTreeMap::new(),
            log: BoundedLog::new(QuotaServer::ARRIVALS_MAX),
        };
        let started = Instant::now();
        let shared = Arc::new(QuotaServerShared { setup: self, started, state: Mutex::new(state) });
        let serve = {
            let shared = Arc::clone(&shared);
            move |head: Head, wire: &mut Wire, running: &Running| shared.serve(&head, wire, running)
        };
        QuotaServer { server: HttpServer::start(listener(), CONNECTIONS_MAX, serve), shared }
    }
}

/// An HTTP/1.1 server that accepts requests up to its quota and refuses the rest, stopped on drop.
///
/// Responds to any method and path. A refusal takes nothing from the quota. It has a thread for each
/// connection, up to 512 at a time; further connections are closed.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_testkit::{Quota, QuotaHeader, QuotaServer, http1::Client};
///
/// let server = QuotaServer::builder(Quota::fixed_window(1, Duration::from_secs(3600)))
///     .headers(&[QuotaHeader::RetryAfter])
///     .start();
/// let mut client = Client::connect(server.address());
/// assert_eq!(client.get("/").status(), 200);
/// assert_eq!(client.get("/").status(), 429);
/// assert_eq!((server.accepted(), server.refused()), (1, 1));
/// ```
pub struct QuotaServer {
    server: HttpServer,
    shared: Arc<QuotaServerShared>,
}

/// A request as a [`QuotaServer`] recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// When it was decided.
    pub at: Instant,
    /// Whether it was accepted.
    pub is_accepted: bool,
    /// The value of the header that the server [counts by](QuotaServerBuilder::count_by).
    pub value: Option<String>,
}

struct QuotaServerShared {
    setup: QuotaServerBuilder,
    started: Instant,
    state: Mutex<QuotaServerState>,
}

struct QuotaServerState {
    counter: QuotaCounter,
    accepted: u64,
    refused: u64,
    per_second: Vec<u64>,
    by_value: BTreeMap<String, u64>,
    log: BoundedLog<Arrival>,
}

/// The decision on a request, and what its headers say.
struct QuotaDecision {
    is_accepted: bool,
    remaining: u64,
    retry_after: Duration,
    reset_after: Duration,
}

impl QuotaServer {
    /// How many arrivals are recorded; older ones are dropped.
    pub const ARRIVALS_MAX: usize = 65_536;

    /// Prepares a server with this quota of requests.
    pub fn builder(quota: Quota) -> QuotaServerBuilder {
        QuotaServerBuilder {
            quota,
            refusal_status: 429,
            headers: Vec::new(),
            is_refusals_only: false,
            delay: Duration::ZERO,
            is_keep_alive: true,
            count_by: None,
        }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns `http://ADDRESS`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns when its first window began.
    pub fn started(&self) -> Instant {
        self.shared.started
    }

    /// Returns how many requests it has accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// Returns how many requests it has refused.
    pub fn refused(&self) -> u64 {
        self.shared.state().refused
    }

    /// Returns how many requests it has accepted or refused.
    pub fn arrivals(&self) -> u64 {
        let state = self.shared.state();
        state.accepted + state.refused
    }

    /// Returns the arrivals in each second since the start, for an hour; the last entry has all later ones.
    pub fn arrivals_per_second(&self) -> Vec<u64> {
        self.shared.state().per_second.clone()
    }

    /// Returns the arrivals by value of the header that it [counts by](QuotaServerBuilder::count_by), for the
    /// first 10,000 values.
    pub fn arrivals_by_value(&self) -> BTreeMap<String, u64> {
        self.shared.state().by_value.clone()
    }

    /// Returns the newest [`ARRIVALS_MAX`](Self::ARRIVALS_MAX) arrivals, oldest first.
    pub fn log(&self) -> Vec<Arrival> {
        self.shared.state().log.to_vec()
    }

    /// Returns on how many connections it has received requests.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}

impl QuotaServerShared {
    fn state(&self) -> MutexGuard<'_, QuotaServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, head: &Head, wire: &mut Wire, running: &Running) -> bool {
        if wire.try_body(head).is_err() {
            return false;
        }
        let decision = self.decide(head);
        let mut headers = self.headers(&decision);
        let is_keep_alive = self.setup.is_keep_alive && !head.is_close();
        if !is_keep_alive {
            headers.push(("Connection".to_string(), "close".to_string()));
        }
        let (status, body) = match decision.is_accepted {
            true => (200, "accepted\n"),
            false => (self.setup.refusal_status, "refused\n"),
        };
        let response = encode_response_to(head, status, &headers, body.as_bytes());
        running.wait(self.setup.delay) && wire.try_send(response).is_ok() && is_keep_alive
    }

    fn decide(&self, head: &Head) -> QuotaDecision {
        let value = self.setup.count_by.as_ref().and_then(|name| head.get(name));
        let mut state = self.state();
        // Under the lock, so that times never decrease.
        let at = Instant::now();
        let now = at - self.started;
        let retry_after = state.counter.wait_for(1, now).expect("the capacity is at least one");
        let is_accepted = retry_after.is_zero();
        if is_accepted {
            state.counter.take(1, now);
        }
        state.record(now, Arrival { at, is_accepted, value });
        QuotaDecision {
            is_accepted,
            remaining: state.counter.remaining(now),
            retry_after,
            reset_after: state.counter.reset_after(now),
        }
    }

    fn headers(&self, decision: &QuotaDecision) -> Vec<(String, String)> {
        if decision.is_accepted && self.setup.is_refusals_only {
            return Vec::new();
        }
        let (limit, remaining) = (self.setup.quota.limit(), decision.remaining);
        let reset = seconds_ceil(decision.reset_after);
        let mut headers = Vec::new();
        let mut add = |name: &str, value: String| headers.push((name.to_string(), value));
        for header in &self.setup.headers {
            match header {
                QuotaHeader::RetryAfter if !decision.is_accepted => {
                    add("Retry-After", seconds_ceil(decision.retry_after).to_string());
                }
                QuotaHeader::RetryAfterMs if !decision.is_accepted => {
                    add("retry-after-ms", milliseconds_ceil(decision.retry_after).to_string());
                }
                QuotaHeader::RetryAfter | QuotaHeader::RetryAfterMs => {}
                QuotaHeader::RateLimit => {
                    let window = seconds_ceil(self.setup.quota.window());
                    add("RateLimit-Policy", format!("\"default\";q={limit};w={window}"));
                    add("RateLimit", format!("\"default\";r={remaining};t={reset}"));
                }
                QuotaHeader::XRateLimitDelta | QuotaHeader::XRateLimitEpoch => {
                    let reset = match header {
                        QuotaHeader::XRateLimitEpoch => {
                            seconds_ceil(since_epoch() + decision.reset_after)
                        }
                        _ => reset,
                    };
                    add("X-RateLimit-Limit", limit.to_string());
                    add("X-RateLimit-Remaining", remaining.to_string());
                    add("X-RateLimit-Reset", reset.to_string());
                }
            }
        }
        headers
    }
}

impl QuotaServerState {
    fn record(&mut self, now: Duration, arrival: Arrival) {
        match arrival.is_accepted {
            true => self.accepted += 1,
            false => self.refused += 1,
        }
        let second = (now.as_secs() as usize).min(HISTOGRAM_SECONDS_MAX - 1);
        if self.per_second.len() <= second {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += 1;
        if let Some(value) = &arrival.value {
            if let Some(count) = self.by_value.get_mut(value) {
                *count += 1;
            } else if self.by_value.len() < HEADER_VALUES_MAX {
                self.by_value.insert(value.clone(), 1);
            }
        }
        self.log.push(arrival);
    }
}

/// Returns the time since 1970.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::http1::Client;

    const HOUR: Duration = Duration::from_secs(3600);

    fn request(headers: &str) -> String {
        format!("GET / HTTP/1.1\r\nHost: test\r\n{headers}\r\n")
    }

    #[test]
    fn sixteen_threads_get_exactly_the_quota() {
        let server =
            QuotaServer::builder(Quota::fixed_window(100, HOUR)).count_by("x-thread").start();
        let responses: Vec<u16> = thread::scope(|scope| {
            let client = |thread: u32| {
                let mut client = Client::connect(server.address());
                let request = request(&format!("X-Thread: {thread}\r\n"));
                (0..20).map(|_| client.request(&request).status()).collect::<Vec<u16>>()
            };
            let threads: Vec<_> =
                (0..16).map(|thread| scope.spawn(move || client(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(responses.iter().filter(|status| **status == 200).count(), 100);
        assert_eq!(responses.iter().filter(|status| **status == 429).count(), 220);
        assert_eq!((server.accepted(), server.refused(), server.arrivals()), (100, 220, 320));
        assert_eq!(server.arrivals_per_second().iter().sum::<u64>(), 320);
        assert_eq!(server.connections(), 16);
        let by_value = server.arrivals_by_value();
        assert!(by_value.len() == 16 && by_value.values().all(|count| *count == 20));
        let log = server.log();
        assert!(log.is_sorted_by_key(|arrival| arrival.at));
        assert!(log[..100].iter().all(|arrival| arrival.is_accepted));
        assert!(log[100..].iter().all(|arrival| !arrival.is_accepted));
    }

    #[test]
    fn a_short_quota_holds_in_real_time() {
        const WINDOW: Duration = Duration::from_millis(50);
        const LIMIT: u64 = 5;
        for quota in [Quota::fixed_window(LIMIT, WINDOW), Quota::token_bucket(LIMIT, WINDOW)] {
            let server = QuotaServer::builder(quota).start();
            thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| {
                        let mut client = Client::connect(server.address());
                        while server.accepted() <= LIMIT * 3
                            && server.started().elapsed() < crate::TIMEOUT
                        {
                            client.get("/");
                        }
                    });
                }
            });
            // Decided once more from the recorded times.
            let mut counter = QuotaCounter::new(quota);
            for Arrival { at, is_accepted, .. } in server.log() {
                let now = at - server.started();
                assert_eq!(is_accepted, counter.remaining(now) > 0, "{quota:?}");
                counter.take(is_accepted.into(), now);
            }
            assert!(server.accepted() > LIMIT * 3, "{quota:?} is not renewed");
        }
    }

    #[test]
    fn headers_are_those_asked_for() {
        let quota = Quota::token_bucket(2, HOUR);
        let all = [
            QuotaHeader::RetryAfter,
            QuotaHeader::RetryAfterMs,
            QuotaHeader::RateLimit,
            QuotaHeader::XRateLimitDelta,
        ];
        let server = QuotaServer::builder(quota).headers(&all).refusal_status(503).start();
        let mut client = Client::connect(server.address());
        let accepted = client.get("/").head;
        assert_eq!(accepted.get("retry-after"), None);
        assert_eq!(accepted.get("ratelimit-policy").unwrap(), "\"default\";q=2;w=3600");
        assert_eq!(accepted.get("ratelimit").unwrap(), "\"default\";r=1;t=1800");
        assert_eq!(accepted.get("x-ratelimit-limit").unwrap(), "2");
        assert_eq!(accepted.get("x-ratelimit-remaining").unwrap(), "1");
        assert_eq!(accepted.get("x-ratelimit-reset").unwrap(), "1800");
        client.get("/");
        let refused = client.get("/").head;
        assert_eq!(refused.status(), 503);
        let number = |name| refused.get(name).unwrap().parse::<u64>().unwrap();
        assert!((1700..=1800).contains(&number("retry-after")));
        assert!((1_700_000..=1_800_000).contains(&number("retry-after-ms")));

        let server = QuotaServer::builder(quota)
            .headers(&[QuotaHeader::XRateLimitEpoch])
            .headers_on_refusals_only()
            .start();
        let mut client = Client::connect(server.address());
        assert_eq!(client.get("/").head.get("x-ratelimit-reset"), None);
        client.get("/");
        let reset: u64 = client.get("/").head.get("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!(reset.abs_diff(since_epoch().as_secs() + 3600) < 100);
    }

    #[test]
    fn a_connection_is_closed_if_either_side_wants_it() {
        let quota = Quota::fixed_window(10, HOUR);
        let server = QuotaServer::builder(quota).no_keep_alive().start();
        let mut client = Client::connect(server.address());
        assert_eq!(client.get("/").head.get("connection").unwrap(), "close");
        assert!(client.0.is_closed());

        let server = QuotaServer::builder(quota).start();
        let mut client = Client::connect(server.address());
        client.request(&request("Connection: close\r\n"));
        assert!(client.0.is_closed());
    }

    #[test]
    fn a_delayed_response_does_not_delay_the_end_of_the_server() {
        let begun = Instant::now();
        let server = QuotaServer::builder(Quota::fixed_window(1, HOUR)).delay(HOUR).start();
        let mut client = Client::connect(server.address());
        client.send(request(""));
        crate::wait_until("the request arrives", || server.arrivals() == 1);
        drop(server);
        assert!(client.try_response().is_err());
        assert!(begun.elapsed() < crate::TIMEOUT);
    }
}
