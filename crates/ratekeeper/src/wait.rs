//! Waiting for a turn: fair, with a deadline, and safe to abandon. On tokio.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratekeeper_core::{Algorithm, Cost, Decision, Limit, Micros, Wait};
use ratekeeper_stores::{Op, Snapshot};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::request::Request;

/// The most that may wait at one limiter at a time.
pub const WAITERS_MAX: usize = 65_536;

impl<C: Clock> Request<'_, C> {
    /// Waits until it fits, up to `patience`, and charges then. For a leaky bucket it also waits
    /// for its turn to leave.
    ///
    /// Those who wait for a key are served in the order they came; a plain [`Request::check`] does
    /// not queue. If the wait would be too long, counting everybody in front, it fails at once
    /// instead of at the deadline. Dropping the future leaves the line and charges nothing; from
    /// the queue of a leaky bucket it leaves as [`Request::queue`] does.
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
    /// let impatient = limiter.key("mail").wait(Duration::from_millis(1)).await;
    /// assert!(matches!(impatient, Err(WaitError::TooLong { .. })));
    /// # Ok(()) }
    /// ```
    pub async fn wait(self, patience: Duration) -> Result<Decision, WaitError> {
        let deadline = self.limiter.now().after(patience);
        let admitted = match self.join(deadline)? {
            Joined::Admitted(admitted) => admitted,
            Joined::InLine(place) => self.wait_in_line(&place, deadline).await?,
        };
        Ok(self.hold(admitted).await)
    }

    /// Takes a place in a leaky bucket and waits for the turn to leave; fails at once, with the
    /// denial, if the bucket is full.
    ///
    /// Dropping the future gives the place back if nobody has queued behind it. If somebody has,
    /// the gap stays, for their turns are already set.
    ///
    /// ```
    /// use ratekeeper::{Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), ratekeeper::LimitError> {
    /// // A thousand messages at once, a hundred a second out, evenly.
    /// let limiter = Limiter::new(Limit::leaky_bucket("100/s burst 1000")?)?;
    /// for message in 0..10 {
    ///     limiter.key("outbox").queue().await.expect("there is room");
    ///     // send it
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn queue(self) -> Result<Decision, Decision> {
        let checked = self.check_for_place(self.limiter.now());
        match checked.decision.allowed() {
            true => Ok(self.hold(checked).await),
            false => Err(checked.decision),
        }
    }

    fn check_for_place(&self, now: Micros) -> Checked {
        let (decision, after) = self.limiter.store.check_and_snapshot(&self.charge(), now);
        Checked { decision, after }
    }

    /// Waits for the turn to leave a leaky bucket. Abandoned, it gives the place back.
    async fn hold(&self, admitted: Checked) -> Decision {
        let Checked { decision, after } = admitted;
        if !decision.delay().is_zero() {
            let mut place = PlaceInBucket { request: *self, after, is_abandoned: true };
            tokio::time::sleep(decision.delay()).await;
            place.is_abandoned = false;
        }
        decision
    }

    /// At the front of the line: check, and sleep for as long as the check says.
    async fn wait_in_line(
        &self,
        place: &PlaceInLine,
        deadline: Micros,
    ) -> Result<Checked, WaitError> {
        loop {
            let patience = deadline.since(self.limiter.now());
            if !place.is_first() {
                // Whoever is in front may take longer than it seemed when this place was taken.
                if tokio::time::timeout(patience, place.turn.notified()).await.is_err() {
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
            let checked = self.check_for_place(now);
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

    /// Passes at once if nobody waits, or else takes a place in line if it can be in time.
    fn join(&self, deadline: Micros) -> Result<Joined, WaitError> {
        let waiters = &self.limiter.waiters;
        let mut lines = waiters.lines();
        let now = self.limiter.now();
        let key = LineKey(self.limit.algorithm(), self.key.into());
        let line = lines.by_key.get(&key);
        if line.is_none() {
            let decision = self.limiter.store.apply_one(Op::Peek, &self.charge(), now);
            let holds_in_time = now.after(decision.delay()) <= deadline;
            if decision.allowed() && holds_in_time {
                let checked = self.check_for_place(now);
                if checked.decision.allowed() {
                    return Ok(Joined::Admitted(checked));
                }
            }
            if decision.exceeds_capacity() {
                return Err(WaitError::Never(decision));
            }
        }
        if lines.waiting >= WAITERS_MAX {
            return Err(WaitError::TooManyWaiting);
        }
        let ahead = line.into_iter().flat_map(|line| &line.tickets);
        self.turn_after(ahead, now, deadline)?;
        Ok(Joined::InLine(waiters.enter(&mut lines, key, self)))
    }

    /// When it would be this one's turn, if only those in line come: the state is copied, and
    /// everybody in front is let through the copy. An error as soon as that is past the deadline.
    fn turn_after<'t>(
        &self,
        ahead: impl Iterator<Item = &'t Ticket>,
        now: Micros,
        deadline: Micros,
    ) -> Result<(), WaitError> {
        let mut state = self.limiter.store.snapshot(&self.charge());
        let ahead = ahead.map(|ticket| (&ticket.limit, ticket.cost));
        let in_time = |turn: Micros| match turn > deadline {
            true => Err(WaitError::TooLong { would_take: turn.since(now) }),
            false => Ok(()),
        };
        let mut turn = now;
        let mut delay = Duration::ZERO;
        for (limit, cost) in ahead.chain([(self.limit, self.cost)]) {
            loop {
                let decision = state.check(limit, cost, turn);
                delay = decision.delay();
                match decision.wait() {
                    Wait::None => break,
                    Wait::Never => return Err(WaitError::Never(decision)),
                    Wait::Micros(us) => {
                        let next = turn.after(Duration::from_micros(us));
                        if next == turn {
                            // The calendar ends before that.
                            let would_take = turn.since(now) + Duration::from_micros(us);
                            return Err(WaitError::TooLong { would_take });
                        }
                        turn = next;
                    }
                }
                in_time(turn)?;
            }
        }
        in_time(turn.after(delay))
    }

    /// How long this one would have to wait if nobody were in front.
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
    InLine(PlaceInLine),
}

/// Everybody who waits at a limiter.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    by_key: HashMap<LineKey, Line>,
    waiting: usize,
    next_id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LineKey(Algorithm, Box<[u8]>); // all of a limiter's keys are in one scope

#[derive(Debug, Default)]
struct Line {
    tickets: VecDeque<Ticket>,
}

#[derive(Debug)]
struct Ticket {
    id: u64,
    limit: Limit,
    cost: Cost,
    turn: Arc<Notify>,
}

impl Waiters {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<C: Clock>(
        self: &Arc<Self>,
        lines: &mut Lines,
        key: LineKey,
        request: &Request<'_, C>,
    ) -> PlaceInLine {
        let (id, turn) = (lines.next_id, Arc::new(Notify::new()));
        lines.next_id += 1;
        lines.waiting += 1;
        let ticket =
            Ticket { id, limit: request.limit.clone(), cost: request.cost, turn: turn.clone() };
        lines.by_key.entry(key.clone()).or_default().tickets.push_back(ticket);
        PlaceInLine { waiters: self.clone(), key, id, turn }
    }
}

/// A place in line. Dropped, also because the future was, it lets the next one step up.
struct PlaceInLine {
    waiters: Arc<Waiters>,
    key: LineKey,
    id: u64,
    turn: Arc<Notify>,
}

impl PlaceInLine {
    fn is_first(&self) -> bool {
        let lines = self.waiters.lines();
        let first = lines.by_key.get(&self.key).and_then(|line| line.tickets.front());
        first.is_some_and(|ticket| ticket.id == self.id)
    }
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        let mut lines = self.waiters.lines();
        lines.waiting -= 1;
        let Some(line) = lines.by_key.get_mut(&self.key) else {
            return;
        };
        line.tickets.retain(|ticket| ticket.id != self.id);
        match line.tickets.front() {
            Some(next) => next.turn.notify_one(),
            None => {
                lines.by_key.remove(&self.key);
            }
        }
    }
}

/// A place in a leaky bucket, given back if it is abandoned and nobody is behind it.
struct PlaceInBucket<'a, C: Clock> {
    request: Request<'a, C>,
    after: Snapshot,
    is_abandoned: bool,
}

impl<C: Clock> Drop for PlaceInBucket<'_, C> {
    fn drop(&mut self) {
        if self.is_abandoned {
            let limiter = self.request.limiter;
            limiter.store.undo_last(&self.request.charge(), &self.after, limiter.now());
        }
    }
}

/// Why waiting was no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// It would take longer than the caller is ready to wait.
    TooLong {
        /// How long, counting everybody in front.
        would_take: Duration,
    },
    /// The cost is above what the limit can ever hold.
    Never(Decision),
    /// [`WAITERS_MAX`] are waiting already.
    TooManyWaiting,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { would_take } => {
                write!(f, "the wait would take {would_take:?}, which is past the deadline")
            }
            Self::Never(decision) => {
                let limit = decision.limit();
                write!(f, "the cost is above the limit of {limit}, so no wait would help")
            }
            Self::TooManyWaiting => write!(f, "{WAITERS_MAX} are waiting already"),
        }
    }
}

impl std::error::Error for WaitError {}
