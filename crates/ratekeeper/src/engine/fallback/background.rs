//! The work in the background: announcing this node, probing shards whose breaker is open, charging the
//! store its backlog, and following replies that came late.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ratekeeper_core::{FailureMode, Micros};
use ratekeeper_stores::{Charge, LateReply, Op, OwnedCharge, SharedStore};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};

use super::status::StoreState;
use super::{Applied, Fallback, mode};

/// How often a node announces itself. An announcement holds three times as long.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// The pause between two probes, at first and at most.
const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(50);
pub(super) const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// How many keys of the backlog are charged, and how many permits are renewed, at a time.
const REPORTS_MAX: usize = 64;
/// How long a late reply is waited for, and how many at a time.
const LATE_REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const LATE_REPLIES_MAX: usize = 16_384;

pub(super) struct Background {
    is_started: AtomicBool,
    /// Ends a pause early: a breaker has opened, or there is a backlog.
    wake: Arc<Notify>,
    late_replies: AtomicUsize,
    recovered: Notify,
    permit_reports: Semaphore,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            is_started: AtomicBool::default(),
            wake: Arc::default(),
            late_replies: AtomicUsize::default(),
            recovered: Notify::default(),
            permit_reports: Semaphore::new(REPORTS_MAX),
        }
    }
}

impl Background {
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until a shard whose breaker was open is available again.
    pub(super) fn recovered(&self) -> Notified<'_> {
        self.recovered.notified()
    }

    /// Waits until few enough other permits are renewed.
    pub(super) async fn report_slot(&self) -> Option<SemaphorePermit<'_>> {
        self.permit_reports.acquire().await.ok()
    }
}

impl<S: SharedStore + Send + Sync + 'static> Fallback<S> {
    /// Starts the work in the background, once. It ends with the limiter.
    pub(crate) fn start(self: &Arc<Self>) {
        if !self.background.is_started.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::downgrade(self)));
        }
    }

    /// Announces this node. A failure counts as a call, so that an unavailable store is known before the
    /// first request; unless the store has several shards, of which another may be available.
    async fn announce(&self) {
        match self.store.announce(self.membership.node(), 3 * ANNOUNCE_INTERVAL).await {
            Ok(nodes) => {
                self.membership.set_counted(nodes);
                self.note_available();
            }
            Err(error) => {
                let error = Arc::new(error);
                self.counters.count_error(&error);
                if self.store.shards() == 1
                    && let Some(permits) = self.breakers.try_call(std::iter::once(0))
                    && permits.failed(0)
                {
                    self.note_unavailable(&error);
                }
                self.status.change(|state| match state {
                    StoreState::Unknown => StoreState::Down(error),
                    state => state.clone(),
                });
            }
        }
    }

    async fn probe(&self) {
        for shard in self.breakers.open() {
            match self.store.probe(shard).await {
                Ok(()) => {
                    self.breakers.of(shard).probe_succeeded();
                    self.note_available();
                    self.background.recovered.notify_waiters();
                }
                Err(error) => self.counters.count_error(&error),
            }
        }
    }

    /// Charges the backlog to the shards that are called.
    async fn report_backlog(self: &Arc<Self>) {
        while self.backlog.len() > 0 {
            let (nodes, now) = (self.membership.nodes(), self.clock.now());
            let is_called = |charge: &Charge<'_>| self.is_called(charge.key());
            let owed = self.backlog.take_some(REPORTS_MAX, nodes, now, is_called);
            if owed.is_empty() {
                return;
            }
            let mut reports = tokio::task::JoinSet::new();
            for owed in owed {
                let this = Arc::clone(self);
                reports.spawn(async move { this.report(&owed).await.is_ok() });
            }
            if !reports.join_all().await.into_iter().all(|is_reported| is_reported) {
                return;
            }
        }
    }

    /// Learns whether a call that missed its deadline was carried out after all. If it was, and the request
    /// was admitted here, the store need not be charged again; if the request was denied here, the store's
    /// charge is refunded.
    pub(super) fn follow_late_reply(
        self: &Arc<Self>,
        late: LateReply,
        op: Op,
        charges: &[Charge<'_>],
        applied: &Applied,
    ) {
        let is_charged_here = op == Op::Charge || applied.allowed();
        let is_owed = |charge: &Charge<'_>| is_charged_here && mode(charge) != FailureMode::Closed;
        let charges = charges.iter().map(|charge| (charge.into(), is_owed(charge))).collect();
        self.follow(late, charges, applied.at());
    }

    /// Learns whether the store was charged a part of the backlog after all. It was added to the backlog again
    /// at `at`.
    pub(super) fn follow_late_report(
        self: &Arc<Self>,
        late: LateReply,
        owed: &OwnedCharge,
        at: Micros,
    ) {
        self.follow(late, vec![(owed.clone(), true)], at);
    }

    /// Waits for a late reply, up to a time. If the store was charged, what is owed of the charges, which was
    /// added to the backlog at `at`, is removed from it, and the rest is refunded.
    fn follow(self: &Arc<Self>, late: LateReply, charges: Vec<(OwnedCharge, bool)>, at: Micros) {
        if self.background.late_replies.load(Ordering::Relaxed) >= LATE_REPLIES_MAX {
            return;
        }
        self.background.late_replies.fetch_add(1, Ordering::Relaxed);
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            let charged_at = timeout(LATE_REPLY_TIMEOUT, late).await.ok().flatten();
            let Some(this) = this.upgrade() else { return };
            this.background.late_replies.fetch_sub(1, Ordering::Relaxed);
            let Some(charged_at) = charged_at else { return };
            for (charge, is_owed) in &charges {
                let charge = charge.as_charge();
                let excess = match is_owed {
                    true => this.backlog.remove(&charge, at, this.clock.now()),
                    false => Some(charge.amount()),
                };
                // Of a charge that was cut at its maximum debt, more would be refunded than was charged.
                if let Some(excess) = excess.filter(|_| !charge.has_max_debt()) {
                    let refund = Op::Refund { charged_at };
                    let _ = this.store.apply(refund, &[charge.cost(excess)], charged_at).await;
                }
            }
        });
    }
}

async fn run<S: SharedStore + Send + Sync + 'static>(fallback: Weak<Fallback<S>>) {
    let mut interval = PROBE_INTERVAL_MIN;
    let mut announce_at = Instant::now();
    loop {
        let Some(fallback) = fallback.upgrade() else { return };
        if Instant::now() >= announce_at {
            announce_at = Instant::now() + ANNOUNCE_INTERVAL;
            fallback.announce().await;
        }
        fallback.probe().await;
        fallback.report_backlog().await;
        fallback.sweep();
        let is_urgent = fallback.breakers.open().next().is_some() || fallback.backlog.len() > 0;
        let pause = match is_urgent {
            true => jittered(interval),
            false => announce_at.saturating_duration_since(Instant::now()),
        };
        interval =
            if is_urgent { (interval * 2).min(PROBE_INTERVAL_MAX) } else { PROBE_INTERVAL_MIN };
        // The limiter can be dropped while this waits.
        let wake = Arc::clone(&fallback.background.wake);
        drop(fallback);
        // After a breaker has opened, the next probe comes soon, not at the next announcement.
        if timeout(pause, wake.notified()).await.is_ok() {
            sleep(jittered(PROBE_INTERVAL_MIN)).await;
        }
    }
}

/// Between a half and one and a half of the pause, so that nodes do not probe in step.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause * fastrand::u32(0..1_000) / 1_000
}
