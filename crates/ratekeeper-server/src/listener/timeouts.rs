//! What a connection waits for, and for how long it may.
//!
//! A connection has one timer ([`super::drive`]). Setting it for every request would cost more than the
//! request, so the tasks of a connection only record what it waits for. Waits that are rare (for the rest
//! of a header, for a client that reads nothing) are recorded with their start, and the timer is set for
//! them at once. Waits that follow every request (for the next one) are recorded without reading the
//! clock; the timer checks every quarter of their timeout and counts from the first check that sees them.
//! So they last up to a quarter longer than their timeout.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::ticks::Ticks;

/// How long a client that still sends may take to close the connection after its last response, which
/// it would lose to a reset.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// The fraction of a timeout at which connections are checked.
const CHECKS: u32 = 4;

/// The time of a next check if there is nothing to check for.
const FAR: Duration = Duration::from_secs(86_400);

/// What an HTTP/2 client sends first: the preface, and the header of a SETTINGS frame.
const PREFACE: u32 = 24 + 9;

/// How long a client may take for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Between requests. Without it, a connection that has sent a request stays open.
    pub(crate) idle: Option<Duration>,
    /// From the first byte of a request to the end of its header. Likewise for the preface of HTTP/2, and
    /// for a command of the Redis protocol.
    pub(crate) header: Duration,
    /// From [`ConnState::expect_first_request`] to the first request.
    pub(crate) first_request: Duration,
    /// Without reading any byte of what is written to it.
    pub(crate) write: Duration,
    /// Without reading a part of a response that is ready, where others can be read meanwhile: over HTTP/2
    /// a client can keep a connection busy and leave a response unread.
    pub(crate) unread_response: Option<Duration>,
}

impl Timeouts {
    /// How often to check for waits whose start is not recorded.
    fn check_interval(&self) -> Duration {
        let shortest = self.idle.into_iter().chain(self.unread_response).min();
        shortest.map_or(FAR, |shortest| shortest / CHECKS)
    }
}

/// What one connection waits for. Times are [`Ticks`].
pub(crate) struct ConnState {
    pub(crate) peer: SocketAddr,
    ticks: Ticks,
    requests: AtomicU32,
    idle_since: AtomicU64,
    header_since: AtomicU64,
    first_request_since: AtomicU64,
    write_blocked_since: AtomicU64,
    lingering_since: AtomicU64,
    /// Responses of which a part is ready for the client, and since when none of these was read.
    unread_responses: AtomicU32,
    unread_since: AtomicU64,
    /// Bytes of the HTTP/2 preface that are missing.
    preface_left: AtomicU32,
    is_first_request_due: AtomicBool,
    /// Whether a wait started that the timer does not know of.
    needs_check: AtomicBool,
}

/// There is no such wait.
const NONE: u64 = 0;
/// There is a wait, whose start was not recorded.
const UNKNOWN: u64 = u64::MAX;

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TimeoutCheck {
    /// No timeout can pass before this time.
    OpenUntil(u64),
    Idle,
    /// The client had time to read its last response.
    Lingered,
    /// The client took too long for this.
    TimedOut(&'static str),
}

impl ConnState {
    /// Returns the state of a connection without requests.
    pub(crate) fn new(peer: SocketAddr, ticks: Ticks) -> Arc<Self> {
        let (none, zero) = (|| AtomicU64::new(NONE), || AtomicU32::new(0));
        Arc::new(Self {
            peer,
            ticks,
            requests: zero(),
            idle_since: AtomicU64::new(UNKNOWN),
            header_since: none(),
            first_request_since: none(),
            write_blocked_since: none(),
            lingering_since: none(),
            unread_responses: zero(),
            unread_since: none(),
            preface_left: zero(),
            is_first_request_due: AtomicBool::new(false),
            needs_check: AtomicBool::new(true),
        })
    }

    /// Returns the state of an HTTP/2 connection, whose preface counts as a header.
    pub(crate) fn http2(peer: SocketAddr, ticks: Ticks) -> Arc<Self> {
        let conn = Self::new(peer, ticks);
        conn.preface_left.store(PREFACE, Relaxed);
        conn.set_in_header(true);
        conn
    }

    pub(super) fn ticks(&self) -> Ticks {
        self.ticks
    }

    /// Starts [`Timeouts::first_request`]: for HTTP/2 when the preface has come.
    pub(crate) fn expect_first_request(&self) {
        self.is_first_request_due.store(true, Relaxed);
        if self.is_established() {
            self.start(&self.first_request_since);
        }
    }

    /// The first request has come, or the client has authenticated.
    pub(crate) fn confirm(&self) {
        if self.is_first_request_due.load(Relaxed) {
            self.is_first_request_due.store(false, Relaxed);
            self.first_request_since.store(NONE, Relaxed);
        }
    }

    /// A request is served from now on.
    pub(crate) fn begin_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// The response to a request is complete or given up.
    pub(crate) fn end_request(&self) {
        self.note_activity();
        // While a request is served, the next one's header may have to wait to be read.
        if self.header_since.load(Relaxed) != NONE {
            self.set_in_header(true);
        }
        self.requests.fetch_sub(1, Relaxed);
    }

    /// The connection is not idle.
    #[inline]
    pub(crate) fn note_activity(&self) {
        self.idle_since.store(UNKNOWN, Relaxed);
    }

    /// Sets whether a header has started and is not complete.
    pub(crate) fn set_in_header(&self, is_in_header: bool) {
        match is_in_header {
            true => self.start(&self.header_since),
            false => self.header_since.store(NONE, Relaxed),
        }
    }

    /// A part of a response is ready for the client to read.
    pub(crate) fn begin_unread(&self) {
        self.unread_responses.fetch_add(1, Relaxed);
        self.unread_since.store(UNKNOWN, Relaxed);
    }

    /// The client has read it, or never will.
    pub(crate) fn end_unread(&self) {
        self.unread_responses.fetch_sub(1, Relaxed);
    }

    /// Whether the client has sent what HTTP/2 starts with. Always true for other protocols.
    pub(super) fn is_established(&self) -> bool {
        self.preface_left.load(Relaxed) == 0
    }

    /// Counts bytes of the HTTP/2 preface.
    pub(super) fn note_preface(&self, length: usize) {
        let left = self.preface_left.load(Relaxed);
        if left == 0 || length == 0 {
            return;
        }
        let left = left.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
        self.preface_left.store(left, Relaxed);
        if left == 0 {
            self.set_in_header(false);
            self.note_activity();
            if self.is_first_request_due.load(Relaxed) {
                self.start(&self.first_request_since);
            }
        }
    }

    /// Bytes have come between requests: a header, which is most likely complete.
    pub(super) fn note_header_bytes(&self) {
        if self.requests.load(Relaxed) == 0 && self.header_since.load(Relaxed) == NONE {
            self.header_since.store(UNKNOWN, Relaxed);
        }
    }

    /// No more bytes are there: if a header has come, it is not complete.
    pub(super) fn note_header_pending(&self) {
        if self.header_since.load(Relaxed) == UNKNOWN {
            self.set_in_header(true);
        }
    }

    pub(super) fn set_write_blocked(&self, is_blocked: bool) {
        match is_blocked {
            true => self.start(&self.write_blocked_since),
            false => self.write_blocked_since.store(NONE, Relaxed),
        }
    }

    pub(super) fn linger(&self) {
        self.start(&self.lingering_since);
    }

    /// Whether the connection is closed but for what the client still sends.
    pub(crate) fn is_lingering(&self) -> bool {
        self.lingering_since.load(Relaxed) != NONE
    }

    fn start(&self, since: &AtomicU64) {
        since.store(self.ticks.now_us(), Relaxed);
        self.needs_check.store(true, Relaxed);
    }

    pub(super) fn needs_check(&self) -> bool {
        self.needs_check.load(Relaxed)
    }

    /// Checks all waits, and starts to measure those whose start was not recorded.
    pub(super) fn check(&self, timeouts: &Timeouts) -> TimeoutCheck {
        self.needs_check.store(false, Relaxed);
        let now_us = self.ticks.now_us();
        let measured = |since: &AtomicU64| {
            if since.load(Relaxed) == UNKNOWN {
                since.store(now_us, Relaxed);
            }
            since.load(Relaxed)
        };
        let is_idle = self.requests.load(Relaxed) == 0;
        let idle_since = if is_idle { measured(&self.idle_since) } else { NONE };
        let header_since = if is_idle { measured(&self.header_since) } else { NONE };
        let is_unread = self.unread_responses.load(Relaxed) > 0;
        let unread_since = if is_unread { measured(&self.unread_since) } else { NONE };
        let waits = [
            (header_since, Some(timeouts.header), "header"),
            (self.first_request_since.load(Relaxed), Some(timeouts.first_request), "first request"),
            (self.write_blocked_since.load(Relaxed), Some(timeouts.write), "response not read"),
            (unread_since, timeouts.unread_response, "response not read"),
        ];
        let mut open_until = now_us.saturating_add(micros(timeouts.check_interval()));
        if self.is_lingering() {
            let due = self.lingering_since.load(Relaxed).saturating_add(micros(LINGER));
            return if due <= now_us {
                TimeoutCheck::Lingered
            } else {
                TimeoutCheck::OpenUntil(due)
            };
        }
        for (since, timeout, what) in waits.into_iter().filter(|(since, ..)| *since != NONE) {
            let Some(timeout) = timeout else { continue };
            let due = since.saturating_add(micros(timeout));
            if due <= now_us {
                return TimeoutCheck::TimedOut(what);
            }
            open_until = open_until.min(due);
        }
        if let Some(timeout) = timeouts.idle.filter(|_| is_idle && header_since == NONE) {
            let due = idle_since.saturating_add(micros(timeout));
            if due <= now_us {
                return TimeoutCheck::Idle;
            }
            open_until = open_until.min(due);
        }
        TimeoutCheck::OpenUntil(open_until)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
