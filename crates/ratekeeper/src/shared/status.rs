//! Whether the store is there, and what has happened so far.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ratekeeper_stores::StoreError;

/// Is the store there?
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StoreState {
    /// It has not been called yet.
    #[default]
    Unknown,
    /// It answers.
    Up,
    /// Some shards of the cluster do not answer. The keys of the others are decided as usual.
    Partial {
        /// How many do not.
        shards_down: usize,
        /// Why the last of them does not.
        error: Arc<StoreError>,
    },
    /// It does not answer, and this is why.
    Down(Arc<StoreError>),
}

/// What has happened so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Decisions of the store.
    pub answered: u64,
    /// Decisions by this node's own share.
    pub local: u64,
    /// Requests that were admitted without a decision.
    pub allowed: u64,
    /// Requests that were denied without a decision.
    pub denied: u64,
    /// Calls that took too long.
    pub deadlines: u64,
    /// Calls that could not reach the store.
    pub unreachable: u64,
    /// Calls that the store refused.
    pub refused: u64,
    /// Calls that it will always refuse: a wrong password, for example.
    pub misconfigured: u64,
    /// Replies that made no sense.
    pub nonsense: u64,
    /// How often a circuit breaker has opened.
    pub opened: u64,
    /// How many nodes were last known.
    pub nodes: u32,
    /// Shards of the store that are not called at present.
    pub shards_down: usize,
    /// Keys for which the store has yet to be charged what this node admitted by itself.
    pub backlog_keys: usize,
    /// Units that this node admitted by itself and that the store was charged afterwards.
    pub backlog_reported: u64,
    /// Units of that kind that the store will never be charged: too many keys were in the backlog.
    pub backlog_dropped: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) answered: AtomicU64,
    pub(super) local: AtomicU64,
    pub(super) allowed: AtomicU64,
    pub(super) denied: AtomicU64,
    deadlines: AtomicU64,
    unreachable: AtomicU64,
    refused: AtomicU64,
    misconfigured: AtomicU64,
    nonsense: AtomicU64,
}

impl Counters {
    pub(super) fn count_error(&self, error: &StoreError) {
        let counter = match error {
            StoreError::Deadline(_) => &self.deadlines,
            StoreError::Unreachable(_) => &self.unreachable,
            StoreError::Misconfigured(_) => &self.misconfigured,
            StoreError::InvalidResponse(_) => &self.nonsense,
            _ => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> FallbackStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FallbackStats {
            answered: read(&self.answered),
            local: read(&self.local),
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            deadlines: read(&self.deadlines),
            unreachable: read(&self.unreachable),
            refused: read(&self.refused),
            misconfigured: read(&self.misconfigured),
            nonsense: read(&self.nonsense),
            ..FallbackStats::default()
        }
    }
}

pub(super) type Listener = Box<dyn Fn(&StoreState) + Send + Sync>;

/// The state of the store, and the listener that hears of its changes.
#[derive(Default)]
pub(super) struct Status {
    state: Mutex<StoreState>,
    /// Is the state `Up`? Read at every call.
    is_up: AtomicBool,
    listener: OnceLock<Listener>,
}

impl Status {
    pub(super) fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> StoreState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the store, or a part of it, was not called.
    pub(super) fn last_error(&self) -> Arc<StoreError> {
        match self.state() {
            StoreState::Down(error) | StoreState::Partial { error, .. } => error,
            _ => Arc::new(StoreError::Unreachable("it is coming back".to_string())),
        }
    }

    /// Changes the state, and says so if it is another one.
    pub(super) fn change(&self, next: impl FnOnce(&StoreState) -> StoreState) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let next = next(&state);
        if *state == next {
            return;
        }
        self.is_up.store(next == StoreState::Up, Ordering::Relaxed);
        *state = next.clone();
        drop(state);
        if let Some(listener) = self.listener.get() {
            listener(&next);
        }
    }
}
