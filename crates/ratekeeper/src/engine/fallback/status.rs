//! The state of the store, and counters of what it and the fallback decided.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ratekeeper_stores::StoreError;

/// Whether the store is available.
///
/// ```
/// use ratekeeper::SharedLimiter;
/// use ratekeeper::shared::StoreState;
///
/// # fn f(limiter: SharedLimiter) {
/// let limiter = limiter.on_change(|state| match state {
///     StoreState::Down(error) => eprintln!("the store is down: {error}"),
///     other => eprintln!("the store: {other:?}"),
/// });
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum StoreState {
    /// It has not been called yet.
    #[default]
    Unknown,
    /// It is available.
    Up,
    /// Some shards of the cluster are unavailable. Keys of the other shards are decided as usual.
    Partial {
        /// The number of unavailable shards.
        shards_down: usize,
        /// The last error of one of them.
        error: Arc<StoreError>,
    },
    /// It is unavailable since this error.
    Down(Arc<StoreError>),
}

/// Counters of a shared store and its fallback.
///
/// ```
/// use ratekeeper::SharedLimiter;
///
/// # fn f(limiter: SharedLimiter) {
/// let stats = limiter.stats();
/// println!("{} decisions by the store, {} by this node's share", stats.store, stats.local);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackStats {
    /// Decisions by the store.
    pub store: u64,
    /// Decisions by this node's share of the limit, while the store was unavailable.
    pub local: u64,
    /// Requests admitted because the store was unavailable (fail open).
    pub open: u64,
    /// Requests denied because the store was unavailable (fail closed).
    pub closed: u64,
    /// Calls that missed their deadline.
    pub deadlines: u64,
    /// Calls that could not reach the store.
    pub unreachable: u64,
    /// Calls that the store refused.
    pub refused: u64,
    /// Calls that the store will always refuse, for example because of a wrong password.
    pub misconfigured: u64,
    /// Replies that could not be understood.
    pub invalid_responses: u64,
    /// How often a circuit breaker has opened.
    pub breaker_opened: u64,
    /// The number of nodes last counted.
    pub nodes: u32,
    /// Shards of the store that are not called at present.
    pub shards_down: usize,
    /// Keys whose local admissions have not been charged to the store yet.
    pub backlog_keys: usize,
    /// Units that were admitted locally and charged to the store afterwards.
    pub backlog_charged: u64,
    /// Units that were admitted locally and will never be charged, because the backlog was full.
    pub backlog_dropped: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    store: AtomicU64,
    local: AtomicU64,
    open: AtomicU64,
    closed: AtomicU64,
    deadlines: AtomicU64,
    unreachable: AtomicU64,
    refused: AtomicU64,
    misconfigured: AtomicU64,
    invalid_responses: AtomicU64,
}

impl Counters {
    pub(super) fn count_store_decision(&self) {
        self.store.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a decision without the store, by its strictest failure mode.
    pub(super) fn count_degraded(&self, any_closed: bool, any_local: bool) {
        let counter = match (any_closed, any_local) {
            (true, _) => &self.closed,
            (false, true) => &self.local,
            (false, false) => &self.open,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_error(&self, error: &StoreError) {
        let counter = match error {
            StoreError::Deadline(_) => &self.deadlines,
            StoreError::Unreachable(_) => &self.unreachable,
            StoreError::Misconfigured(_) => &self.misconfigured,
            StoreError::InvalidResponse(_) | StoreError::OtherVersion => &self.invalid_responses,
            _ => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> FallbackStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FallbackStats {
            store: read(&self.store),
            local: read(&self.local),
            open: read(&self.open),
            closed: read(&self.closed),
            deadlines: read(&self.deadlines),
            unreachable: read(&self.unreachable),
            refused: read(&self.refused),
            misconfigured: read(&self.misconfigured),
            invalid_responses: read(&self.invalid_responses),
            ..FallbackStats::default()
        }
    }
}

pub(super) type StoreObserver = Box<dyn Fn(&StoreState) + Send + Sync>;

/// The state of the store, and the observer of its changes.
#[derive(Default)]
pub(super) struct Status {
    state: Mutex<StoreState>,
    /// Whether the state is `Up`; read at every call.
    is_up: AtomicBool,
    observer: OnceLock<StoreObserver>,
}

impl Status {
    pub(super) fn on_change(&self, observer: StoreObserver) {
        let _ = self.observer.set(observer);
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> StoreState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The error after which the store, or a shard of it, is not called.
    pub(super) fn last_error(&self) -> Arc<StoreError> {
        match self.state() {
            StoreState::Down(error) | StoreState::Partial { error, .. } => error,
            _ => Arc::new(StoreError::Unreachable("its circuit breaker is half-open".into())),
        }
    }

    /// Changes the state, and calls the observer if it is another one.
    pub(super) fn change(&self, next: impl FnOnce(&StoreState) -> StoreState) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let next = next(&state);
        if *state == next {
            return;
        }
        self.is_up.store(next == StoreState::Up, Ordering::Relaxed);
        *state = next.clone();
        drop(state);
        if let Some(observer) = self.observer.get() {
            observer(&next);
        }
    }
}
