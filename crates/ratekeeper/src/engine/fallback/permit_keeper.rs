//! What keeps a permit while its request is in flight: it is renewed, reported to the store if the store did
//! not grant it, and released.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratekeeper_stores::{PermitReply, PermitStore};
use tokio::sync::futures::Notified;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::Fallback;
use super::node_permits::{NodePermit, Report};
use crate::engine::applied::{Degraded, DegradedReason};

/// The pause before a permit is reported to a store that is called, at first and at most. A request that is
/// done within the first is never reported.
const REPORT_AFTER_MIN: Duration = Duration::from_millis(50);
const REPORT_AFTER_MAX: Duration = Duration::from_secs(1);

/// A permit to be in flight until it is dropped.
///
/// ```
/// use ratekeeper::SharedConcurrencyLimit;
///
/// # async fn f(exports: SharedConcurrencyLimit) -> Result<(), Box<dyn std::error::Error>> {
/// let permit = exports.acquire("tenant-7").await?;
/// // … export …
/// if permit.is_lost() {
///     eprintln!("the store was unavailable for too long; another export may have started");
/// }
/// # Ok(()) }
/// ```
#[must_use = "a permit that is dropped is released"]
pub struct SharedPermit {
    state: Arc<PermitState>,
    degraded: Option<Degraded>,
    /// Ends the task that keeps it.
    _keeper: oneshot::Sender<()>,
}

struct PermitState {
    permit: NodePermit,
    is_lost: AtomicBool,
}

impl fmt::Debug for SharedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.state.permit.of();
        f.debug_struct("SharedPermit")
            .field("limit", &of.limit)
            .field("key", &String::from_utf8_lossy(&of.key))
            .field("is_degraded", &self.degraded.is_some())
            .finish_non_exhaustive()
    }
}

impl SharedPermit {
    /// Keeps a permit until it is dropped.
    pub(super) fn keep<S: PermitStore + Send + Sync + 'static>(
        fallback: &Arc<Fallback<S>>,
        max: u64,
        ttl: Duration,
        id: u128,
        permit: NodePermit,
        degraded: Option<Degraded>,
    ) -> Self {
        let state = Arc::new(PermitState { permit, is_lost: AtomicBool::new(false) });
        let (keeper, dropped) = oneshot::channel();
        // A store that was not called cannot know of it.
        let reason = degraded.as_ref().map(|degraded| &degraded.reason);
        let keeping = Keeping {
            fallback: fallback.clone(),
            state: state.clone(),
            max,
            ttl,
            id,
            known_until: degraded.is_none().then(|| Instant::now() + ttl),
            is_in_store: !matches!(reason, Some(DegradedReason::BreakerOpen(_))),
            report_after: REPORT_AFTER_MIN,
        };
        tokio::spawn(keeping.run(dropped));
        Self { state, degraded, _keeper: keeper }
    }

    /// Returns whether more requests may be in flight than the limit allows because of this permit: it has
    /// expired because it could not be renewed, so that another request may hold it, or it was granted without
    /// the store, and all permits were held when the store was available again.
    pub fn is_lost(&self) -> bool {
        self.state.is_lost.load(Ordering::Acquire)
    }

    /// Returns why the store did not grant it, if it did not.
    pub fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.state.permit.release();
    }
}

/// The task of one permit.
struct Keeping<S> {
    fallback: Arc<Fallback<S>>,
    state: Arc<PermitState>,
    max: u64,
    ttl: Duration,
    id: u128,
    /// When it expires in the store, if the store knows of it.
    known_until: Option<Instant>,
    /// Whether the store may know of it.
    is_in_store: bool,
    report_after: Duration,
}

impl<S: PermitStore + Send + Sync + 'static> Keeping<S> {
    async fn run(mut self, mut dropped: oneshot::Receiver<()>) {
        loop {
            let pause = self.pause();
            let recovered = self.fallback.background.recovered();
            if is_dropped_within(pause, &mut dropped, recovered).await {
                break;
            }
            self.renew().await;
        }
        if self.is_in_store {
            self.fallback.release_in_store(self.state.permit.of(), self.id).await;
        }
    }

    /// The time until it is renewed, or reported, unless a store that was not called is available before.
    fn pause(&mut self) -> Duration {
        let renewal = self.ttl / 3;
        let permit = &self.state.permit;
        if permit.is_reported() || !self.fallback.is_called(&permit.of().key) {
            return renewal;
        }
        let pause = self.report_after.min(renewal);
        self.report_after = (self.report_after * 2).min(REPORT_AFTER_MAX);
        pause
    }

    async fn renew(&mut self) {
        let asked_at = Instant::now();
        match self.call().await {
            Some(reply) => {
                self.known_until = Some(asked_at + self.ttl);
                self.report_after = REPORT_AFTER_MIN;
                self.state.permit.set_report(Report::Done);
                let is_over = reply.held > self.max;
                let was_unknown = self.state.is_lost.load(Ordering::Acquire) || !reply.is_held;
                self.state.is_lost.store(was_unknown && is_over, Ordering::Release);
            }
            None if self.known_until.is_some_and(|until| until <= Instant::now()) => {
                self.state.is_lost.store(true, Ordering::Release);
                self.state.permit.set_report(Report::Due);
            }
            // The next attempt may still be in time.
            None => {}
        }
    }

    /// Returns `None` if the store is unavailable.
    async fn call(&mut self) -> Option<PermitReply> {
        let of = self.state.permit.of();
        if !self.fallback.is_called(&of.key) {
            return None;
        }
        // When a store is available again, not all permits are reported at once.
        let _slot = self.fallback.background.report_slot().await;
        self.is_in_store = true;
        match self.fallback.store.renew_permit(&of.name(self.id), self.ttl).await {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.fallback.counters.count_error(&error);
                None
            }
        }
    }
}

/// Waits until the permit is dropped, or the store has recovered, or for this long. Returns whether it was
/// dropped.
async fn is_dropped_within(
    pause: Duration,
    dropped: &mut oneshot::Receiver<()>,
    recovered: Notified<'_>,
) -> bool {
    let mut recovered = pin!(recovered);
    let woken = poll_fn(|context| match Pin::new(&mut *dropped).poll(context) {
        std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
        std::task::Poll::Pending => recovered.as_mut().poll(context).map(|()| false),
    });
    timeout(pause, woken).await.unwrap_or(false)
}
