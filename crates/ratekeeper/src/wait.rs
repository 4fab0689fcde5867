//! Waiting until a limit allows a request: fair, with a deadline, and cancel-safe. On tokio.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratekeeper_core::{Algorithm, Cost, Decision, Limit, Micros, Wait};
use ratekeeper_stores::{Op, Snapshot};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::key_request::KeyRequest;

/// How many requests can wait at one limiter.
pub const WAITERS_MAX: usize = 65_536;

impl<C: Clock> KeyRequest<'_, C> {
    /// Waits until the limit allows the cost, up to `timeout`, and charges it then. For a leaky bucket it
    /// also waits for the delay.
    ///
    /// Requests that wait for a key are served first come, first served; a plain [`KeyRequest::check`] does
    /// not queue. If the wait would exceed the timeout, counting every request ahead, it fails at once.
    /// Dropping the future leaves the queue and charges nothing; in a leaky bucket it behaves as
    /// [`KeyRequest::queue`] does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{Limit, Limiter, WaitError};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Limit::token_bucket("100/s burst 1")?)?;
    /// limiter.check("mail");
    /// // 10 ms from now:
    /// limiter.key("mail").wait(Duration::from_secs(1)).await?;
    /// // Too soon for the next one, so this fails without waiting at all:
    /// let too_short = limiter.key("mail").wait(Duration::from_millis(1)).await;
    /// assert!(matches!(too_short, Err(WaitError::TooLong { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the wait would take too long or forever, or too many are waiting.
    pub async fn wait(self, timeout: Duration) -> Result<Decision, WaitError> {
        let deadline = self.limiter.now().after(timeout);
        let admitted = match self.join(deadline)? {
            Joined::Admitted(admitted) => admitted,
            Joined::Queued(entry) => self.wait_in_queue(&entry, deadline).await?,
        };
        Ok(self.delay(admitted).await)
    }

    /// Charges a leaky bucket and waits until the request may leave it, so that requests proceed evenly
    /// spaced.
    ///
    /// Dropping the future refunds the charge if no other request has come after it. Otherwise the gap
    /// stays, because the times of those requests are already set.
    ///
    /// # Errors
    ///
    /// The denial, at once, if the bucket is full.
    ///
    /// ```
    /// use ratekeeper::{Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), ratekeeper::LimitError> {
    /// // A thousand messages at once, a hundred a second out, evenly.
    /// let limiter = Limiter::new(Limit::leaky_bucket("100/s burst 1000")?)?;
    /// for message in 0..10 {
    ///     limiter.key("outbox").queue().await.expect("the bucket is not full");
    ///     // send it
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn queue(self) -> Result<Decision, Decision> {
        let checked = self.check_with_snapshot(self.limiter.now());
        match checked.decision.allowed() {
            true => Ok(self.delay(checked).await),
            false => Err(checked.decision),
        }
    }

    fn check_with_snapshot(&self, now: Micros) -> Checked {
        let (decision, after) = self.limiter.store.check_and_snapshot(&self.charge(), now);
        Checked { decision, after }
    }

    /// Waits for the delay of a leaky bucket. Cancelled, it refunds the charge.
    async fn delay(&self, admitted: Checked) -> Decision {
        let Checked { decision, after } = admitted;
        if !decision.delay().is_zero() {
            let mut guard = RefundOnCancel { request: *self, after, is_cancelled: true };
            tokio::time::sleep(decision.delay()).await;
            guard.is_cancelled = false;
        }
        decision
    }

    /// Waits for the front of the queue; there, checks and sleeps for the wait of the decision.
    async fn wait_in_queue(
        &self,
        entry: &QueueEntry,
        deadline: Micros,
    ) -> Result<Checked, WaitError> {
        loop {
            let timeout = deadline.since(self.limiter.now());
            if !entry.is_first() {
                // Those ahead may take longer than they were expected to.
                if tokio::time::timeout(timeout, entry.first.notified()).await.is_err() {
                    let would_take = self.wait_left(self.limiter.now());
                    return Err(WaitError::TooLong { would_take });
                }
                continue;
            }
            let now = self.limiter.now();
            let delay = self.limiter.store.apply_one(Op::Peek, &self.charge(), now).delay();
            if now.after(delay) > deadline {
                return Err(WaitError::TooLong { would_take: delay });
            }
            let checked = self.check_with_snapshot(now);
            match checked.decision.wait() {
                Wait::None => return Ok(checked),
                Wait::Never => return Err(WaitError::Never(checked.decision)),
                Wait::Micros(us) if now.get() + us > deadline.get() => {
                    return Err(WaitError::TooLong { would_take: Duration::from_micros(us) });
                }
                Wait::Micros(us) => tokio::time::sleep(Duration::from_micros(us)).await,
            }
        }
    }

    /// Charges at once if no request waits; otherwise joins the queue if the deadline can be met.
    fn join(&self, deadline: Micros) -> Result<Joined, WaitError> {
        let waiters = &self.limiter.waiters;
        let mut queues = waiters.lock();
        let now = self.limiter.now();
        let key = QueueKey(self.limit.algorithm(), self.key.into());
        let queue = queues.by_key.get(&key);
        if queue.is_none() {
            let decision = self.limiter.store.apply_one(Op::Peek, &self.charge(), now);
            let is_in_time = now.after(decision.delay()) <= deadline;
            if decision.allowed() && is_in_time {
                let checked = self.check_with_snapshot(now);
                if checked.decision.allowed() {
                    return Ok(Joined::Admitted(checked));
                }
            }
            if decision.exceeds_capacity() {
                return Err(WaitError::Never(decision));
            }
        }
        if queues.waiting >= WAITERS_MAX {
            return Err(WaitError::TooManyWaiting);
        }
        let ahead = queue.into_iter().flatten();
        self.check_in_time(ahead, now, deadline)?;
        Ok(Joined::Queued(waiters.enter(&mut queues, key, self)))
    }

    /// Simulates the queue on a copy of the state: every waiter ahead, then this request. Fails as soon as
    /// that is past the deadline.
    fn check_in_time<'t>(
        &self,
        ahead: impl Iterator<Item = &'t Waiter>,
        now: Micros,
        deadline: Micros,
    ) -> Result<(), WaitError> {
        let mut state = self.limiter.store.snapshot(&self.charge());
        let ahead = ahead.map(|waiter| (&waiter.limit, waiter.cost));
        let in_time = |at: Micros| match at > deadline {
            true => Err(WaitError::TooLong { would_take: at.since(now) }),
            false => Ok(()),
        };
        let mut at = now;
        let mut delay = Duration::ZERO;
        for (limit, cost) in ahead.chain([(self.limit, self.cost)]) {
            loop {
                let decision = state.check(limit, cost, at);
                delay = decision.delay();
                match decision.wait() {
                    Wait::None => break,
                    Wait::Never => return Err(WaitError::Never(decision)),
                    Wait::Micros(us) => {
                        let next = at.after(Duration::from_micros(us));
                        if next == at {
                            // The time is beyond what can be represented.
                            let would_take = at.since(now) + Duration::from_micros(us);
                            return Err(WaitError::TooLong { would_take });
                        }
                        at = next;
                    }
                }
                in_time(at)?;
            }
        }
        in_time(at.after(delay))
    }

    /// The wait of this request if no other were ahead.
    fn wait_left(&self, now: Micros) -> Duration {
        let decision = self.limiter.store.apply_one(Op::Peek, &self.charge(), now);
        decision.retry_after().unwrap_or(decision.delay())
    }
}

/// A decision, and the state after it.
struct Checked {
    decision: Decision,
    after: Snapshot,
}

enum Joined {
    Admitted(Checked),
    Queued(QueueEntry),
}

/// The requests that wait at a limiter.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    by_key: HashMap<QueueKey, VecDeque<Waiter>>,
    waiting: usize,
    next_id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct QueueKey(Algorithm, Box<[u8]>); // all keys of a limiter are in one scope

#[derive(Debug)]
struct Waiter {
    id: u64,
    limit: Limit,
    cost: Cost,
    /// Notified when it is first in the queue.
    first: Arc<Notify>,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<C: Clock>(
        self: &Arc<Self>,
        queues: &mut Queues,
        key: QueueKey,
        request: &KeyRequest<'_, C>,
    ) -> QueueEntry {
        let (id, first) = (queues.next_id, Arc::new(Notify::new()));
        queues.next_id += 1;
        queues.waiting += 1;
        let (limit, cost) = (request.limit.clone(), request.cost);
        let waiter = Waiter { id, limit, cost, first: first.clone() };
        queues.by_key.entry(key.clone()).or_default().push_back(waiter);
        QueueEntry { waiters: self.clone(), key, id, first }
    }
}

/// An entry in a queue. Dropped, it leaves the queue.
struct QueueEntry {
    waiters: Arc<Waiters>,
    key: QueueKey,
    id: u64,
    /// Notified when it is first in the queue.
    first: Arc<Notify>,
}

impl QueueEntry {
    fn is_first(&self) -> bool {
        let queues = self.waiters.lock();
        let first = queues.by_key.get(&self.key).and_then(VecDeque::front);
        first.is_some_and(|waiter| waiter.id == self.id)
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let mut queues = self.waiters.lock();
        queues.waiting -= 1;
        let Some(queue) = queues.by_key.get_mut(&self.key) else {
            return;
        };
        queue.retain(|waiter| waiter.id != self.id);
        match queue.front() {
            Some(next) => next.first.notify_one(),
            None => {
                queues.by_key.remove(&self.key);
            }
        }
    }
}

/// Refunds a charge to a leaky bucket when a delay is cancelled, unless another request came after it.
struct RefundOnCancel<'a, C: Clock> {
    request: KeyRequest<'a, C>,
    after: Snapshot,
    is_cancelled: bool,
}

impl<C: Clock> Drop for RefundOnCancel<'_, C> {
    fn drop(&mut self) {
        if self.is_cancelled {
            let limiter = self.request.limiter;
            limiter.store.undo_last(&self.request.charge(), &self.after, limiter.now());
        }
    }
}

/// Why a request did not wait, or not to the end.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limiter, WaitError};
///
/// let limiter = Limiter::new("1/minute")?;
/// assert!(limiter.check("ann").allowed());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let error = limiter.key("ann").wait(Duration::from_secs(1)).await.unwrap_err();
/// assert!(matches!(error, WaitError::TooLong { .. }));
/// # });
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait would exceed the timeout.
    #[error("the wait would take {would_take:?}, which is past the deadline")]
    TooLong {
        /// How long, counting every request ahead.
        would_take: Duration,
    },
    /// The cost exceeds the capacity of the limit, so no wait helps.
    #[error("the cost is above the limit of {}, so no wait helps", .0.limit())]
    Never(Decision),
    /// [`WAITERS_MAX`] requests are waiting already.
    #[error("{WAITERS_MAX} requests are waiting already")]
    TooManyWaiting,
}
