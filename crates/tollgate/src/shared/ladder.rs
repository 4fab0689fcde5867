//! The failure ladder: an answer for every request, whatever becomes of the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tollgate_core::{Algorithm, Decision, Limit, Micros, Rate, WhenDown};
use tollgate_stores::{
    Charge, ChargesError, MemoryStore, Op, SharedStore, Snapshot, StoreError, Verdict,
};

use super::answer::{Answer, Degraded, Why};
use super::breaker::{Breaker, BreakerState};
use super::random::random_number;
use super::share::share_of;
use crate::clock::{Clock, SystemClock};
use crate::histogram::Histogram;

/// How often a node announces itself. It counts for three times as long.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// How long the probe waits between two attempts, at first and at most.
const PROBE_FIRST: Duration = Duration::from_millis(50);
const PROBE_MOST: Duration = Duration::from_secs(1);
/// How many shares are kept. Beyond that they are worked out anew each time.
const SHARES_MAX: usize = 1_024;

/// Is the store there?
#[derive(Clone, Debug, Default)]
pub enum StoreState {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// It answers.
    Up,
    /// It does not, and this is why.
    Down(Arc<StoreError>),
}

/// What has happened so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LadderStats {
    /// Answers of the store.
    pub answered: u64,
    /// Answers that were this node's own share.
    pub local: u64,
    /// Answers that let pass without asking.
    pub allowed: u64,
    /// Answers that denied without asking.
    pub denied: u64,
    /// Calls that took too long.
    pub deadlines: u64,
    /// Calls that could not reach the store.
    pub unreachable: u64,
    /// Calls that the store refused.
    pub refused: u64,
    /// Calls that it will always refuse: a wrong password, for example.
    pub misconfigured: u64,
    /// Answers that made no sense.
    pub nonsense: u64,
    /// How often the breaker has opened.
    pub opened: u64,
    /// How many nodes were last known.
    pub nodes: u32,
}

#[derive(Default)]
struct Counters {
    answered: AtomicU64,
    local: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    deadlines: AtomicU64,
    unreachable: AtomicU64,
    refused: AtomicU64,
    misconfigured: AtomicU64,
    nonsense: AtomicU64,
}

type Listener = Box<dyn Fn(&StoreState) + Send + Sync>;
type ShareKey = (String, Rate, Algorithm);

pub(crate) struct Ladder<S> {
    pub(crate) store: S,
    /// How long calls took, those among them that failed.
    pub(crate) store_time: Histogram,
    local: MemoryStore,
    breaker: Breaker,
    node: String,
    /// Set by hand, and then nobody is counted.
    nodes_fixed: OnceLock<u32>,
    nodes_known: AtomicU32,
    shares: RwLock<HashMap<ShareKey, (u32, Arc<Limit>)>>,
    state: Mutex<StoreState>,
    listener: OnceLock<Listener>,
    counters: Counters,
    is_started: AtomicBool,
    wake_probe: Arc<tokio::sync::Notify>,
}

impl<S: SharedStore + Send + Sync + 'static> Ladder<S> {
    pub(crate) fn new(store: S) -> Arc<Self> {
        Arc::new(Self {
            store,
            store_time: Histogram::default(),
            local: MemoryStore::new(),
            breaker: Breaker::new(),
            node: format!("{}-{:016x}", std::process::id(), random_number()),
            nodes_fixed: OnceLock::new(),
            nodes_known: AtomicU32::new(1),
            shares: RwLock::default(),
            state: Mutex::default(),
            listener: OnceLock::new(),
            counters: Counters::default(),
            is_started: AtomicBool::new(false),
            wake_probe: Arc::default(),
        })
    }

    pub(super) fn fix_nodes(&self, nodes: u32) {
        let _ = self.nodes_fixed.set(nodes.max(1));
    }

    pub(crate) fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    pub(super) fn nodes(&self) -> u32 {
        let known = || self.nodes_known.load(Ordering::Relaxed);
        self.nodes_fixed.get().copied().unwrap_or_else(known).max(1)
    }

    pub(crate) fn state(&self) -> StoreState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.breaker.state()
    }

    pub(crate) fn stats(&self) -> LadderStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { answered, local, allowed, denied, .. } = &self.counters;
        let Counters { deadlines, unreachable, refused, misconfigured, nonsense, .. } =
            &self.counters;
        LadderStats {
            answered: read(answered),
            local: read(local),
            allowed: read(allowed),
            denied: read(denied),
            deadlines: read(deadlines),
            unreachable: read(unreachable),
            refused: read(refused),
            misconfigured: read(misconfigured),
            nonsense: read(nonsense),
            opened: self.breaker.opened(),
            nodes: self.nodes(),
        }
    }

    /// Asks the store, and if it does not answer, whatever the charges say.
    pub(crate) async fn apply(
        self: &Arc<Self>,
        op: Op,
        charges: &[(Charge<'_>, WhenDown)],
    ) -> Result<Answer, ChargesError> {
        self.start();
        let plain: Vec<_> = charges.iter().map(|(charge, _)| *charge).collect();
        ChargesError::check(&plain)?;
        let Some(leave) = self.breaker.ask() else {
            let why = Why::NotAsked(self.last_error());
            return Ok(self.instead(op, charges, why));
        };
        let began = SystemClock.now();
        let applied = self.store.apply(op, &plain, began).await;
        self.store_time.record(SystemClock.now().since(began), 1);
        match applied {
            Ok(verdict) => {
                leave.succeeded();
                self.counters.answered.fetch_add(1, Ordering::Relaxed);
                self.is_up();
                Ok(Answer { verdict, degraded: None })
            }
            Err(StoreError::Charges(error)) => Err(error),
            Err(error) => {
                let error = Arc::new(error);
                self.count(&error);
                if leave.failed() {
                    self.is_down(&error);
                }
                Ok(self.instead(op, charges, Why::Failed(error)))
            }
        }
    }

    /// Corrects what was charged at that time, where it was charged: in the store, or here instead.
    pub(crate) async fn correct(
        &self,
        op: Op,
        charge: Charge<'_>,
        charged_at: Micros,
        degraded: Option<&Degraded>,
    ) -> Result<Answer, StoreError> {
        if let Some(degraded) = degraded {
            return Ok(self.instead(op, &[(charge, WhenDown::Local)], degraded.why.clone()));
        }
        let verdict = self.store.apply(op, &[charge], charged_at).await?;
        Ok(Answer { verdict, degraded: None })
    }

    /// Makes a key as good as new, here and in the store.
    pub(crate) async fn reset(self: &Arc<Self>, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.start();
        let share = self.share(charge.limit());
        self.local.reset(&charge.under(&share));
        self.store.reset(charge).await
    }

    /// The answer without the store.
    pub(super) fn instead(&self, op: Op, charges: &[(Charge<'_>, WhenDown)], why: Why) -> Answer {
        let now = SystemClock.now();
        let plain: Vec<_> = charges.iter().map(|(charge, _)| *charge).collect();
        let is_denied = op == Op::Check && charges.iter().any(|(_, when)| *when == WhenDown::Deny);
        // What is denied by one is charged to none.
        let op = if is_denied { Op::Peek } else { op };
        let local = self.local(op, charges, now);
        let verdict = Verdict::build(&plain, now, |i, charge| match charges[i].1 {
            WhenDown::Local => local[i],
            WhenDown::Allow => free(charge, now),
            WhenDown::Deny => Decision::refused(charge.limit().quota(), PROBE_MOST),
        });
        let any = |choice| charges.iter().any(|(_, when_down)| *when_down == choice);
        let counter = match (any(WhenDown::Deny), any(WhenDown::Local)) {
            (true, _) => &self.counters.denied,
            (false, true) => &self.counters.local,
            (false, false) => &self.counters.allowed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Answer { verdict, degraded: Some(Degraded { why, nodes: self.nodes() }) }
    }

    /// The decisions of this node's share, for those that are to be decided by it: all or none.
    fn local(&self, op: Op, charges: &[(Charge<'_>, WhenDown)], now: Micros) -> Vec<Decision> {
        let shares: Vec<_> = charges.iter().map(|(charge, _)| self.share(charge.limit())).collect();
        let is_local = |i: &usize| charges[*i].1 == WhenDown::Local;
        let own: Vec<usize> = (0..charges.len()).filter(is_local).collect();
        let mine: Vec<_> = own.iter().map(|i| charges[*i].0.under(&shares[*i])).collect();
        let decided = self.local.apply_now(op, &mine, now);
        let mut decisions: Vec<_> = charges.iter().map(|(charge, _)| free(charge, now)).collect();
        if let Ok(verdict) = decided {
            for (i, decision) in own.iter().zip(verdict.decisions()) {
                decisions[*i] = *decision;
            }
        }
        decisions
    }

    fn share(&self, limit: &Limit) -> Arc<Limit> {
        let nodes = self.nodes();
        let key = (limit.name().to_string(), limit.rate(), limit.algorithm());
        let known = self.shares.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((of, share)) = known
            && of == nodes
        {
            return share;
        }
        let share = Arc::new(share_of(limit, nodes));
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        if shares.len() < SHARES_MAX || shares.contains_key(&key) {
            shares.insert(key, (nodes, share.clone()));
        }
        share
    }

    fn last_error(&self) -> Arc<StoreError> {
        match self.state() {
            StoreState::Down(error) => error,
            _ => Arc::new(StoreError::Unreachable("it is coming back".to_string())),
        }
    }

    fn count(&self, error: &StoreError) {
        let counter = match error {
            StoreError::Deadline(_) => &self.counters.deadlines,
            StoreError::Unreachable(_) => &self.counters.unreachable,
            StoreError::Misconfigured(_) => &self.counters.misconfigured,
            StoreError::Nonsense(_) => &self.counters.nonsense,
            _ => &self.counters.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn is_up(&self) {
        if self.breaker.state() == BreakerState::Closed {
            self.change_state(|state| !matches!(state, StoreState::Up), || StoreState::Up);
        }
    }

    fn is_down(&self, error: &Arc<StoreError>) {
        let is_known =
            |state: &StoreState| matches!(state, StoreState::Down(known) if known == error);
        self.change_state(|state| !is_known(state), || StoreState::Down(error.clone()));
        self.wake_probe.notify_one();
    }

    fn change_state(
        &self,
        is_news: impl FnOnce(&StoreState) -> bool,
        next: impl FnOnce() -> StoreState,
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_news(&state) {
            return;
        }
        *state = next();
        let told = state.clone();
        drop(state);
        if let Some(listener) = self.listener.get() {
            listener(&told);
        }
    }

    /// The work in the background: announcing this node, and probing a store that is down. It ends
    /// with the limiter.
    pub(crate) fn start(self: &Arc<Self>) {
        if !self.is_started.swap(true, Ordering::AcqRel) {
            tokio::spawn(keep_in_touch(Arc::downgrade(self)));
        }
    }

    /// Announces this node. Whatever comes of it tells whether the store is there.
    async fn announce(self: &Arc<Self>) {
        match self.store.announce(&self.node, 3 * ANNOUNCE_EVERY).await {
            Ok(nodes) => {
                self.nodes_known.store(nodes.max(1), Ordering::Relaxed);
                self.breaker.probe_succeeded();
                self.is_up();
            }
            Err(error) => {
                let error = Arc::new(error);
                self.count(&error);
                // It counts as a call, so that a store that is not there is known before the first.
                if let Some(leave) = self.breaker.ask()
                    && leave.failed()
                {
                    self.is_down(&error);
                }
                if matches!(self.state(), StoreState::Unknown) {
                    self.is_down(&error);
                }
            }
        }
    }
}

async fn keep_in_touch<S: SharedStore + Send + Sync + 'static>(ladder: Weak<Ladder<S>>) {
    let mut pause = PROBE_FIRST;
    loop {
        let Some(ladder) = ladder.upgrade() else { return };
        ladder.announce().await;
        let is_open = ladder.breaker.state() == BreakerState::Open;
        let next = match is_open {
            true => jittered(pause),
            false => ANNOUNCE_EVERY,
        };
        pause = if is_open { (pause * 2).min(PROBE_MOST) } else { PROBE_FIRST };
        // Nothing is held on to while this waits, so that the limiter can end.
        let wake_probe = ladder.wake_probe.clone();
        drop(ladder);
        // If it goes down meanwhile: probe soon, not at the next announcement.
        if tokio::time::timeout(next, wake_probe.notified()).await.is_ok() {
            tokio::time::sleep(jittered(PROBE_FIRST)).await;
        }
    }
}

/// Half of it and up to twice as much again: nodes that fell together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + half * (random_number() % 1_000) as u32 / 500
}

/// The decision on a key that nothing is known of.
fn free(charge: &Charge<'_>, now: Micros) -> Decision {
    Snapshot::fresh(charge.limit()).act(Op::Peek, charge.limit(), charge.amount(), now)
}
