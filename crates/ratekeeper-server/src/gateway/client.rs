//! Who is at the other end of a client's connection, and what it is doing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::HeaderValue;

use super::options::Timeouts;
use super::ticks::Ticks;
use crate::accept::OwnedPlace;
use crate::drain::LiveConnection;

/// One client's connection. Its requests carry it in their extensions.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    pub(super) is_tls: bool,
    /// Whether what it says about others is believed.
    pub(super) is_trusted: bool,
    /// Its address, as `X-Forwarded-For` has it.
    pub(super) ip: HeaderValue,
    pub(super) activity: Activity,
    _counted: Counted,
}

/// Counts a connection for as long as anything of it is left, such as a tunnel.
pub(super) struct Counted {
    pub(super) _live: LiveConnection,
    pub(super) _descriptor: OwnedPlace,
}

impl Client {
    pub(super) fn new(
        peer: SocketAddr,
        is_tls: bool,
        is_trusted: bool,
        ticks: Ticks,
        counted: Counted,
    ) -> Arc<Self> {
        let address = peer.ip().to_canonical();
        let ip = HeaderValue::try_from(address.to_string()).expect("an address is ASCII");
        let activity = Activity::new(ticks);
        Arc::new(Self { peer, is_tls, is_trusted, ip, activity, _counted: counted })
    }

    pub(super) fn scheme(&self) -> HeaderValue {
        HeaderValue::from_static(if self.is_tls { "https" } else { "http" })
    }
}

/// What a connection waits for, and since when. Kept up to date by those who do it, so that one slow
/// timer a connection is enough to see that something takes too long.
pub(super) struct Activity {
    ticks: Ticks,
    requests: AtomicU32,
    /// Since when there has been no request, and no sign of the next.
    idle_since: AtomicU64,
    head_since: AtomicU64,
    /// Since when the client has taken nothing of what it was sent.
    stalled_since: AtomicU64,
    lingering_since: AtomicU64,
    /// Answers of which the client has yet to take what is there, and when one of them last did.
    owed: AtomicU32,
    taken_at: AtomicU64,
    is_tunnel: AtomicBool,
    /// Requests whose answer is known.
    answered: AtomicU64,
}

/// For a client that still sends although it has its answer, and would lose that to a reset.
const LINGER: Duration = Duration::from_secs(2);

/// What a look at a connection says.
pub(super) enum Outlook {
    /// Nothing can be overdue before this moment.
    FineUntil(u64),
    Idle,
    Overdue(&'static str),
}

impl Activity {
    fn new(ticks: Ticks) -> Self {
        Self {
            ticks,
            requests: AtomicU32::new(0),
            idle_since: AtomicU64::new(ticks.now_us()),
            head_since: AtomicU64::new(0),
            stalled_since: AtomicU64::new(0),
            lingering_since: AtomicU64::new(0),
            owed: AtomicU32::new(0),
            taken_at: AtomicU64::new(0),
            is_tunnel: AtomicBool::new(false),
            answered: AtomicU64::new(0),
        }
    }

    pub(super) fn begin_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// It is known how a request is answered, and whether that switches to another protocol.
    pub(super) fn note_answer(&self) {
        self.answered.fetch_add(1, Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    pub(super) fn end_request(&self) {
        self.idle_since.store(self.ticks.now_us(), Relaxed);
        self.requests.fetch_sub(1, Relaxed);
    }

    pub(super) fn set_head(&self, is_open: bool) {
        self.head_since.store(if is_open { self.ticks.now_us() } else { 0 }, Relaxed);
    }

    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.stalled_since.store(if is_stalled { self.ticks.now_us() } else { 0 }, Relaxed);
    }

    /// A part of an answer is there for the client to take.
    pub(super) fn owe(&self) {
        self.owed.fetch_add(1, Relaxed);
        self.taken_at.store(self.ticks.now_us(), Relaxed);
    }

    /// The client has taken it, or never will.
    pub(super) fn settle(&self) {
        self.owed.fetch_sub(1, Relaxed);
    }

    pub(super) fn linger(&self) {
        self.lingering_since.store(self.ticks.now_us(), Relaxed);
    }

    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Relaxed);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Relaxed)
    }

    pub(super) fn outlook(&self, timeouts: &Timeouts) -> Outlook {
        let now_us = self.ticks.now_us();
        let idle_since = self.idle_since.load(Relaxed);
        let is_quiet = self.requests.load(Relaxed) == 0;
        let is_owed = self.owed.load(Relaxed) > 0;
        let owed_since = if is_owed { self.taken_at.load(Relaxed) } else { 0 };
        let head_since = Some(self.head_since.load(Relaxed)).filter(|since| is_quiet && *since > 0);
        let waits = [
            // While a request is served, the next one's head may have to wait to be read.
            (head_since.map_or(0, |since| since.max(idle_since)), timeouts.header, "head"),
            (self.stalled_since.load(Relaxed), timeouts.body, "answer not taken"),
            // Over HTTP/2 a client can leave the connection alive and an answer where it is.
            (owed_since, timeouts.body, "answer not taken"),
            (self.lingering_since.load(Relaxed), LINGER, "lingering"),
        ];
        let soonest = timeouts.header.min(timeouts.body).min(timeouts.idle);
        let mut fine_until = now_us + micros(soonest);
        for (since, patience, what) in waits.into_iter().filter(|(since, ..)| *since > 0) {
            let due = since + micros(patience);
            if due <= now_us {
                return Outlook::Overdue(what);
            }
            fine_until = fine_until.min(due);
        }
        if is_quiet && head_since.is_none() && !self.is_tunnel() {
            let due = idle_since + micros(timeouts.idle);
            if due <= now_us {
                return Outlook::Idle;
            }
            fine_until = fine_until.min(due);
        }
        Outlook::FineUntil(fine_until)
    }
}

fn micros(span: Duration) -> u64 {
    span.as_micros() as u64
}
