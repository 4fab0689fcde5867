//! A decision for every request, whatever becomes of the store.
//!
//! Calls go to the store through a circuit breaker for each of its shards. What the store does not
//! decide in time is decided here, as each limit says: by this node's share of it, admitted, or denied.
//! What is admitted here is charged to the store when it is back.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ratekeeper_core::{Decision, FailureMode, Micros};
use ratekeeper_stores::{
    ApplyFailure, Charge, ChargesError, LateReply, Op, OwnedCharge, SharedStore, Snapshot,
    StoreError, Verdict,
};

use super::answer::{Answer, Degraded, Why};
use super::backlog::Backlog;
use super::breaker::{BreakerState, Breakers};
use super::local_share::LocalShare;
use super::random::random_number;
use super::status::{Counters, FallbackStats, Listener, Status, StoreState};
use crate::clock::{Clock, SystemClock};
use crate::histogram::Histogram;

/// How often a node announces itself. It counts for three times as long.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// How long the probe waits between two attempts, at first and at most.
const PROBE_FIRST: Duration = Duration::from_millis(50);
const PROBE_MOST: Duration = Duration::from_secs(1);
/// How many keys of the backlog are charged at a time.
const REPORTS_AT_ONCE: usize = 64;
/// How long a late reply is waited for, and how many are at a time.
const LATE_WITHIN: Duration = Duration::from_secs(10);
const LATE_MAX: usize = 16_384;

/// A charge, and what to do with it when the store does not answer.
pub(crate) type ModeCharge<'a> = (Charge<'a>, FailureMode);

pub(crate) struct Fallback<S> {
    pub(crate) store: S,
    /// How long calls took, those among them that failed.
    pub(crate) store_time: Histogram,
    clock: Box<dyn Clock>,
    breakers: Breakers,
    membership: Membership,
    share: LocalShare,
    backlog: Backlog,
    status: Status,
    counters: Counters,
    late_calls: AtomicUsize,
    is_started: AtomicBool,
    /// Ends a pause of the work in the background: something has gone wrong, or is to be reported.
    wake: Arc<tokio::sync::Notify>,
}

/// The nodes of the fleet.
struct Membership {
    /// The name of this one.
    node: String,
    /// Set by hand, and then the nodes are not counted.
    fixed: OnceLock<u32>,
    known: AtomicU32,
}

impl Membership {
    fn new() -> Self {
        let node = format!("{}-{:016x}", std::process::id(), random_number());
        Self { node, fixed: OnceLock::new(), known: AtomicU32::new(1) }
    }

    fn nodes(&self) -> u32 {
        let known = || self.known.load(Ordering::Relaxed);
        self.fixed.get().copied().unwrap_or_else(known).max(1)
    }
}

impl<S: SharedStore + Send + Sync + 'static> Fallback<S> {
    pub(crate) fn new(store: S) -> Arc<Self> {
        Self::with_clock(store, SystemClock)
    }

    pub(super) fn with_clock(store: S, clock: impl Clock + 'static) -> Arc<Self> {
        Arc::new(Self {
            store,
            store_time: Histogram::default(),
            clock: Box::new(clock),
            breakers: Breakers::new(),
            membership: Membership::new(),
            share: LocalShare::new(),
            backlog: Backlog::default(),
            status: Status::default(),
            counters: Counters::default(),
            late_calls: AtomicUsize::new(0),
            is_started: AtomicBool::new(false),
            wake: Arc::default(),
        })
    }

    pub(super) fn fix_nodes(&self, nodes: u32) {
        let _ = self.membership.fixed.set(nodes.max(1));
    }

    pub(crate) fn listen(&self, listener: Listener) {
        self.status.listen(listener);
    }

    pub(crate) fn state(&self) -> StoreState {
        self.status.state()
    }

    /// The state of the breaker that is furthest from closed.
    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.breakers.worst()
    }

    pub(crate) fn stats(&self) -> FallbackStats {
        FallbackStats {
            opened: self.breakers.opened(),
            nodes: self.membership.nodes(),
            shards_down: self.breakers.not_closed(self.store.shards()),
            backlog_keys: self.backlog.len(),
            backlog_reported: self.backlog.reported(),
            backlog_dropped: self.backlog.dropped(),
            ..self.counters.stats()
        }
    }

    /// Is the shard of this key called at present? If it is known to be down, no request waits for it.
    pub(crate) fn is_called(&self, key: &[u8]) -> bool {
        self.breakers.of(self.store.shard_of(key)).state() != BreakerState::Open
    }

    /// Decides: the store does or, if it does not answer, whatever the charges say.
    pub(crate) async fn apply(
        self: &Arc<Self>,
        op: Op,
        charges: &[ModeCharge<'_>],
    ) -> Result<Answer, ChargesError> {
        self.start();
        let plain: Vec<_> = charges.iter().map(|(charge, _)| *charge).collect();
        ChargesError::check(&plain)?;
        let shards = plain.iter().map(|charge| self.store.shard_of(charge.key()));
        let Some(leaves) = self.breakers.ask(shards) else {
            return Ok(self.decide_here(op, charges, Why::NotAsked(self.status.last_error())));
        };
        match self.call(op, &plain).await {
            Ok(verdict) => {
                leaves.succeeded();
                self.counters.answered.fetch_add(1, Ordering::Relaxed);
                self.note_up();
                self.note_admitted(op, charges, &verdict);
                Ok(Answer { verdict, degraded: None })
            }
            Err(ApplyFailure { error: StoreError::Charges(error), .. }) => Err(error),
            Err(ApplyFailure { error, shard, late }) => {
                let error = Arc::new(error);
                self.counters.count_error(&error);
                if leaves.failed(shard) {
                    self.note_down(&error);
                }
                let answer = self.decide_here(op, charges, Why::Failed(error));
                if let Some(late) = late {
                    self.follow(late, op, charges, &answer);
                }
                Ok(answer)
            }
        }
    }

    /// Calls the store, after it has been charged what these keys owe.
    async fn call(&self, op: Op, charges: &[Charge<'_>]) -> Result<Verdict, ApplyFailure> {
        let began = self.clock.now();
        if self.backlog.len() > 0 {
            for charge in charges {
                let owed = self.backlog.take(charge, self.membership.nodes(), began);
                if let Some(owed) = owed {
                    self.report(&owed).await?;
                }
            }
        }
        let applied = self.store.try_apply(op, charges, began).await;
        self.store_time.record(self.clock.now().since(began), 1);
        applied
    }

    /// What the store admits through this node, this node's share knows of.
    fn note_admitted(&self, op: Op, charges: &[ModeCharge<'_>], verdict: &Verdict) {
        let is_charged = op == Op::Charge || (op == Op::Check && verdict.allowed());
        if !is_charged {
            return;
        }
        let (nodes, now) = (self.membership.nodes(), self.clock.now());
        for (charge, mode) in charges {
            if *mode == FailureMode::Local {
                self.share.note_admitted(charge, nodes, now);
            }
        }
    }

    /// Corrects what was charged at that time, where it was charged: in the store, or here instead.
    pub(crate) async fn correct(
        self: &Arc<Self>,
        op: Op,
        charge: Charge<'_>,
        charged_at: Micros,
        degraded: Option<&Degraded>,
    ) -> Result<Answer, StoreError> {
        let Some(degraded) = degraded else {
            let verdict = self.store.apply(op, &[charge], charged_at).await?;
            return Ok(Answer { verdict, degraded: None });
        };
        let charges = [(charge, FailureMode::Local)];
        let answer = self.verdict_without_store(op, &charges, degraded.why.clone());
        let (nodes, now) = (self.membership.nodes(), self.clock.now());
        let Op::Refund { charged_at } = op else {
            self.owe(op, &charges, &answer.verdict, nodes, now);
            return Ok(answer);
        };
        // What the store has been charged meanwhile is refunded there.
        if let Some(reported) = self.backlog.forgive(&charge, charged_at, now) {
            let _ = self.store.apply(op, &[charge.cost(reported)], charged_at).await?;
        }
        Ok(answer)
    }

    /// Makes a key as good as new, here and in the store.
    pub(crate) async fn reset(self: &Arc<Self>, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.start();
        self.share.reset(charge, self.membership.nodes());
        self.backlog.clear(charge);
        self.store.reset(charge).await
    }

    /// Decides without the store, and notes what the store has to be charged for it.
    fn decide_here(&self, op: Op, charges: &[ModeCharge<'_>], why: Why) -> Answer {
        let answer = self.verdict_without_store(op, charges, why);
        let nodes = self.membership.nodes();
        self.owe(op, charges, &answer.verdict, nodes, answer.verdict.at());
        answer
    }

    fn verdict_without_store(&self, op: Op, charges: &[ModeCharge<'_>], why: Why) -> Answer {
        let (nodes, now) = (self.membership.nodes(), self.clock.now());
        let verdict = self.verdict_here(op, charges, nodes, now);
        self.count_mode(charges);
        Answer { verdict, degraded: Some(Degraded { why, nodes }) }
    }

    fn verdict_here(&self, op: Op, charges: &[ModeCharge<'_>], nodes: u32, now: Micros) -> Verdict {
        let plain: Vec<_> = charges.iter().map(|(charge, _)| *charge).collect();
        let is_denied = op == Op::Check && any(charges, FailureMode::Closed);
        // What is denied by one is charged to none.
        let op = if is_denied { Op::Peek } else { op };
        let by_share: Vec<usize> =
            (0..charges.len()).filter(|i| charges[*i].1 == FailureMode::Local).collect();
        let own: Vec<_> = by_share.iter().map(|i| plain[*i]).collect();
        let decisions = self.share.apply(op, &own, nodes, now);
        Verdict::build(&plain, now, |i, charge| match charges[i].1 {
            FailureMode::Local => {
                let place = by_share.iter().position(|own| *own == i);
                let decision = place.and_then(|place| decisions.get(place));
                decision.copied().unwrap_or_else(|| unlimited(charge, now))
            }
            FailureMode::Open => unlimited(charge, now),
            FailureMode::Closed => Decision::deny_for(charge.limit().quota(), PROBE_MOST),
        })
    }

    fn count_mode(&self, charges: &[ModeCharge<'_>]) {
        let counter = match (any(charges, FailureMode::Closed), any(charges, FailureMode::Local)) {
            (true, _) => &self.counters.denied,
            (false, true) => &self.counters.local,
            (false, false) => &self.counters.allowed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes what was charged here, or refunded here, for the store to be charged.
    fn owe(&self, op: Op, charges: &[ModeCharge<'_>], verdict: &Verdict, nodes: u32, now: Micros) {
        for (charge, mode) in charges {
            match op {
                Op::Check if !verdict.allowed() => {}
                Op::Check | Op::Charge if *mode != FailureMode::Closed => {
                    if self.backlog.add(charge, nodes, now) {
                        self.wake.notify_one();
                    }
                }
                Op::Refund { charged_at } => {
                    self.backlog.forgive(charge, charged_at, now);
                }
                Op::Check | Op::Charge | Op::Peek => {}
            }
        }
    }

    /// Learns in the background whether a call that missed its deadline was carried out after all. If it
    /// was, and the request was admitted here, the store need not be charged again; if the request was
    /// denied here, the store's charge is refunded.
    fn follow(
        self: &Arc<Self>,
        late: LateReply,
        op: Op,
        charges: &[ModeCharge<'_>],
        answer: &Answer,
    ) {
        if self.late_calls.load(Ordering::Relaxed) >= LATE_MAX {
            return;
        }
        self.late_calls.fetch_add(1, Ordering::Relaxed);
        let is_charged_here = op == Op::Charge || answer.allowed();
        let (at, this) = (answer.verdict.at(), Arc::downgrade(self));
        let charges: Vec<(OwnedCharge, bool)> = charges
            .iter()
            .map(|(charge, mode)| (charge.into(), is_charged_here && *mode != FailureMode::Closed))
            .collect();
        tokio::spawn(async move {
            let charged_at = tokio::time::timeout(LATE_WITHIN, late).await.ok().flatten();
            let Some(this) = this.upgrade() else { return };
            this.late_calls.fetch_sub(1, Ordering::Relaxed);
            let Some(charged_at) = charged_at else { return };
            for (charge, is_owed) in &charges {
                let charge = charge.as_charge();
                let unowed = match is_owed {
                    true => this.backlog.forgive(&charge, at, this.clock.now()),
                    false => Some(charge.amount()),
                };
                if let Some(unowed) = unowed {
                    let refund = Op::Refund { charged_at };
                    let _ = this.store.apply(refund, &[charge.cost(unowed)], charged_at).await;
                }
            }
        });
    }

    /// Charges the store what a key owes. If that fails, it is owed again.
    async fn report(&self, owed: &OwnedCharge) -> Result<(), ApplyFailure> {
        let charge = owed.as_charge();
        let applied = self.store.try_apply(Op::Charge, &[charge], self.clock.now()).await;
        match applied {
            Ok(_) => {
                self.backlog.count_reported(charge.amount());
                Ok(())
            }
            Err(failure) => {
                self.backlog.add(&charge, self.membership.nodes(), self.clock.now());
                Err(failure)
            }
        }
    }

    fn note_up(&self) {
        if !self.status.is_up() {
            self.refresh_state(None);
        }
    }

    fn note_down(&self, error: &Arc<StoreError>) {
        self.refresh_state(Some(error));
        self.wake.notify_one();
    }

    /// The state of the store, from the states of the breakers.
    fn refresh_state(&self, error: Option<&Arc<StoreError>>) {
        let shards = self.store.shards();
        let down = self.breakers.not_closed(shards);
        self.status.change(|state| {
            let known = match state {
                StoreState::Down(error) | StoreState::Partial { error, .. } => Some(error),
                StoreState::Unknown | StoreState::Up => None,
            };
            match (down, error.or(known)) {
                (0, _) => StoreState::Up,
                (down, Some(error)) if down >= shards => StoreState::Down(error.clone()),
                (down, Some(error)) => {
                    StoreState::Partial { shards_down: down, error: error.clone() }
                }
                (_, None) => state.clone(),
            }
        });
    }

    /// Begins the work in the background: announcing this node, probing shards that are down, and
    /// charging the store what it missed. It ends with the limiter.
    pub(crate) fn start(self: &Arc<Self>) {
        if !self.is_started.swap(true, Ordering::AcqRel) {
            tokio::spawn(keep_in_touch(Arc::downgrade(self)));
        }
    }

    /// Announces this node. Unless the store has several shards, of which another one may be well, a
    /// failure counts as a call: so a store that is not there is known before the first request.
    async fn announce(&self) {
        match self.store.announce(&self.membership.node, 3 * ANNOUNCE_EVERY).await {
            Ok(nodes) => {
                self.membership.known.store(nodes.max(1), Ordering::Relaxed);
                self.note_up();
            }
            Err(error) => {
                let error = Arc::new(error);
                self.counters.count_error(&error);
                if self.store.shards() == 1
                    && let Some(leaves) = self.breakers.ask(std::iter::once(0))
                    && leaves.failed(0)
                {
                    self.note_down(&error);
                }
                self.status.change(|state| match state {
                    StoreState::Unknown => StoreState::Down(error),
                    state => state.clone(),
                });
            }
        }
    }

    /// Probes the shards that are down.
    async fn probe(&self) {
        for shard in self.breakers.open() {
            match self.store.probe(shard).await {
                Ok(()) => self.breakers.of(shard).probe_succeeded(),
                Err(error) => self.counters.count_error(&error),
            }
        }
    }

    /// Charges the shards that are not down what they missed.
    async fn report_backlog(self: &Arc<Self>) {
        while self.backlog.len() > 0 {
            let (nodes, now) = (self.membership.nodes(), self.clock.now());
            let is_wanted = |charge: &Charge<'_>| self.is_called(charge.key());
            let owed = self.backlog.take_some(REPORTS_AT_ONCE, nodes, now, is_wanted);
            if owed.is_empty() {
                return;
            }
            let mut reports = tokio::task::JoinSet::new();
            for owed in owed {
                let this = self.clone();
                reports.spawn(async move { this.report(&owed).await.is_ok() });
            }
            if !reports.join_all().await.into_iter().all(|is_reported| is_reported) {
                return;
            }
        }
    }
}

async fn keep_in_touch<S: SharedStore + Send + Sync + 'static>(fallback: Weak<Fallback<S>>) {
    let mut pause = PROBE_FIRST;
    let mut announce_at = tokio::time::Instant::now();
    loop {
        let Some(fallback) = fallback.upgrade() else { return };
        if tokio::time::Instant::now() >= announce_at {
            announce_at = tokio::time::Instant::now() + ANNOUNCE_EVERY;
            fallback.announce().await;
        }
        fallback.probe().await;
        fallback.report_backlog().await;
        let is_urgent = fallback.breakers.open().next().is_some() || fallback.backlog.len() > 0;
        let next = match is_urgent {
            true => jittered(pause),
            false => announce_at.saturating_duration_since(tokio::time::Instant::now()),
        };
        pause = if is_urgent { (pause * 2).min(PROBE_MOST) } else { PROBE_FIRST };
        // Nothing is held on to while this waits, so that the limiter can end.
        let wake = fallback.wake.clone();
        drop(fallback);
        // If it goes down meanwhile: probe soon, not at the next announcement.
        if tokio::time::timeout(next, wake.notified()).await.is_ok() {
            tokio::time::sleep(jittered(PROBE_FIRST)).await;
        }
    }
}

/// Half of it and up to twice as much again: nodes that fell together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + half * (random_number() % 1_000) as u32 / 500
}

fn any(charges: &[ModeCharge<'_>], mode: FailureMode) -> bool {
    charges.iter().any(|(_, known)| *known == mode)
}

/// The decision on a key that nothing is known of.
fn unlimited(charge: &Charge<'_>, now: Micros) -> Decision {
    Snapshot::fresh(charge.limit()).act(Op::Peek, charge.limit(), charge.amount(), now)
}
