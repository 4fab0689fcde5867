//! What an adaptive limit learns from its requests, collected by the threads that serve them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ratekeeper_control::adaptive::{
    AdaptiveConfig, AdaptiveError, ConcurrencyController, LimitAlgorithm, SampleOutcome, Window,
    WindowAggregator,
};
use ratekeeper_core::Micros;

use super::AdaptiveStats;
use crate::clock::Clock;
use crate::padded::Padded;
use crate::queued_permits::QueuedPermits;

/// How often the shards are merged, to see whether a window is complete.
const MERGE_EVERY: Duration = Duration::from_millis(10);

/// A request that is dropped is one whose caller gave up if it took so many times longer than 90% of the others.
const GIVEN_UP: u64 = 3;

/// How many requests are timed in a window, if there are more.
const TIMED: u64 = 2_000;
/// At least one of so many requests is timed.
const TIMED_OF_MAX: u64 = 64;

/// The state of a limit.
pub(super) struct Shared<C> {
    pub(super) permits: Padded<QueuedPermits>,
    clock: C,
    /// When a request that is dropped counts as overload, in microseconds.
    given_up_us: AtomicU64,
    next_merge_us: AtomicU64,
    /// One of so many requests is timed: a power of two.
    timed_of: AtomicU32,
    learner: Mutex<Learner>,
    shards: Box<[Padded<Shard>]>,
}

/// Turns windows of samples into limits.
pub(super) struct Learner {
    window: WindowAggregator,
    controller: ConcurrencyController<Box<dyn LimitAlgorithm + Send>>,
    target: Option<Duration>,
    merged_at: Micros,
}

/// What the requests of some threads showed.
struct Shard {
    /// Successes that were not timed.
    untimed: AtomicU64,
    guarded: Mutex<Samples>,
}

struct Samples {
    window: WindowAggregator,
    successes: u64,
    overloads: u64,
    ignored: u64,
    released: u64,
    /// How many of [`Shard::untimed`] have been merged.
    untimed_merged: u64,
}

impl Shard {
    fn new(window: WindowAggregator) -> Self {
        let (successes, overloads, ignored, released, untimed_merged) = (0, 0, 0, 0, 0);
        let samples = Samples { window, successes, overloads, ignored, released, untimed_merged };
        Self { untimed: AtomicU64::new(0), guarded: Mutex::new(samples) }
    }

    /// Moves what was recorded to another aggregator.
    fn merge_into(&self, window: &mut WindowAggregator, is_begun: bool) {
        let mut samples = lock(&self.guarded);
        window.merge(&mut samples.window);
        let untimed = self.untimed.load(Ordering::Relaxed);
        let more = untimed - std::mem::replace(&mut samples.untimed_merged, untimed);
        if is_begun {
            window.add_successes(more);
        }
    }
}

impl Samples {
    #[inline]
    fn count(&mut self, outcome: SampleOutcome) {
        match outcome {
            SampleOutcome::Success => self.successes += 1,
            SampleOutcome::Overload => self.overloads += 1,
            SampleOutcome::Ignored => self.ignored += 1,
        }
    }
}

impl<C> Shared<C> {
    pub(super) fn new(learner: Learner, permits: QueuedPermits, clock: C, shards: usize) -> Self {
        permits.pool().set_permits_max(learner.controller.limit() as usize);
        let shard = || Padded(Shard::new(learner.window.clone()));
        Self {
            permits: Padded(permits),
            clock,
            given_up_us: AtomicU64::new(learner.target.map_or(u64::MAX, micros)),
            next_merge_us: AtomicU64::new(0),
            timed_of: AtomicU32::new(1),
            shards: (0..shards).map(|_| shard()).collect(),
            learner: Mutex::new(learner),
        }
    }

    pub(super) fn stats(&self) -> AdaptiveStats {
        let mut stats = AdaptiveStats {
            algorithm: self.learner().controller.name(),
            successes: 0,
            overloads: 0,
            ignored: 0,
            permits: self.permits.stats(0),
        };
        let mut released = 0;
        for shard in &self.shards {
            let guarded = lock(&shard.guarded);
            let untimed = shard.untimed.load(Ordering::Relaxed);
            stats.successes += guarded.successes + untimed;
            stats.overloads += guarded.overloads;
            stats.ignored += guarded.ignored;
            released += guarded.released + untimed;
        }
        stats.permits = self.permits.stats(released + u64::from(self.permits.pool().in_flight()));
        stats
    }

    fn learner(&self) -> MutexGuard<'_, Learner> {
        lock(&self.learner)
    }

    #[inline]
    fn shard(&self) -> &Shard {
        &self.shards[THREAD.with(|thread| thread.index) % self.shards.len()]
    }
}

impl<C: Clock> Shared<C> {
    /// Returns when a request begins, if it is timed.
    #[inline]
    pub(super) fn begin(&self) -> Option<Micros> {
        let timed_of = self.timed_of.load(Ordering::Relaxed);
        let is_timed = timed_of == 1 || THREAD.with(ThreadState::random) & (timed_of - 1) == 0;
        is_timed.then(|| self.clock.now())
    }

    /// Records how a request ended, and releases its permit.
    #[inline]
    pub(super) fn end(&self, began: Option<Micros>, outcome: SampleOutcome) {
        let in_flight = self.permits.release();
        if began.is_none() && outcome == SampleOutcome::Success {
            self.shard().untimed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.record(began, outcome, in_flight, 1);
        }
    }

    /// Records a request that is dropped, and releases its permit.
    pub(super) fn abandon(&self, began: Option<Micros>) {
        let given_up_us = self.given_up_us.load(Ordering::Relaxed);
        let is_slow = |began| micros(self.clock.now().since(began)) >= given_up_us;
        self.end(
            began,
            match began.is_some_and(is_slow) {
                true => SampleOutcome::Overload,
                false => SampleOutcome::Ignored,
            },
        );
    }

    /// Records a request that stays in flight.
    pub(super) fn sample(&self, began: Option<Micros>, outcome: SampleOutcome) {
        self.record(began, outcome, self.permits.pool().in_flight(), 0);
    }

    /// Releases the permit of a request that was recorded before.
    pub(super) fn release(&self) {
        self.permits.release();
        lock(&self.shard().guarded).released += 1;
    }

    #[inline]
    fn record(&self, began: Option<Micros>, outcome: SampleOutcome, in_flight: u32, released: u64) {
        let now = self.clock.now();
        let mut samples = lock(&self.shard().guarded);
        samples.released += released;
        samples.count(outcome);
        match (began, outcome) {
            (None, SampleOutcome::Success) => samples.window.add_successes(1),
            _ => {
                let latency = began.map_or(Duration::ZERO, |began| now.since(began));
                samples.window.record(outcome, latency, in_flight, now);
            }
        }
        drop(samples);
        if now.get() >= self.next_merge_us.load(Ordering::Relaxed) {
            self.merge(now);
        }
    }

    /// Merges the shards. If that closes a window, sets the next limit.
    #[cold]
    fn merge(&self, now: Micros) {
        // Another thread that does it does it for all.
        let Ok(mut learner) = self.learner.try_lock() else { return };
        let Learner { window: merged, merged_at, .. } = &mut *learner;
        let next = now.after(MERGE_EVERY);
        // What came before the window begins is not in it.
        let is_begun = merged.begins().is_none_or(|begins| *merged_at >= begins);
        self.shards.iter().for_each(|shard| shard.merge_into(merged, is_begun));
        *merged_at = now;
        let closed = merged.try_close(now);
        let next = merged.begins().filter(|begins| *begins > now).map_or(next, |at| at.min(next));
        self.next_merge_us.store(next.get(), Ordering::Relaxed);
        let Some(window) = closed else { return };
        for shard in &self.shards {
            // They begin where it does.
            lock(&shard.guarded).window = merged.clone();
        }
        let timed_of = (window.successes / TIMED).clamp(1, TIMED_OF_MAX).next_power_of_two();
        self.timed_of.store(timed_of as u32, Ordering::Relaxed);
        self.given_up_us.store(learner.given_up_us(&window), Ordering::Relaxed);
        let limit = learner.controller.update(&window);
        self.permits.pool().set_permits_max(limit as usize);
    }
}

impl Learner {
    pub(super) fn new(config: AdaptiveConfig) -> Result<Self, AdaptiveError> {
        Ok(Self {
            window: WindowAggregator::new(config.window())?,
            controller: config.controller()?,
            target: config.target(),
            merged_at: Micros::default(),
        })
    }

    /// Begins with a limit that was learned before, as far as the bounds allow.
    #[cfg(feature = "policy")]
    pub(super) fn begin_with(&mut self, limit: u32) {
        self.controller.begin_with(limit);
    }

    /// Returns how long a request takes whose caller has given up.
    fn given_up_us(&self, window: &Window) -> u64 {
        let usual = match window.samples {
            0 => u64::MAX,
            _ => micros(window.latency_p90).saturating_mul(GIVEN_UP),
        };
        usual.min(self.target.map_or(u64::MAX, micros))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of shards: as many as threads can run at once.
pub(super) fn shards_max() -> usize {
    const SHARDS_MAX: usize = 32;
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        threads.clamp(1, SHARDS_MAX)
    })
}

/// What a thread knows of itself.
struct ThreadState {
    /// Which shard it uses.
    index: usize,
    random: Cell<u32>,
}

impl ThreadState {
    /// Returns random bits, so that requests of several limits in turn are timed alike.
    #[inline]
    fn random(&self) -> u32 {
        // A linear congruential generator, of which the upper bits are the better ones.
        let next = self.random.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.random.set(next);
        next >> 16
    }
}

thread_local! {
    static THREAD: ThreadState = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let index = THREADS.fetch_add(1, Ordering::Relaxed);
        ThreadState { index, random: Cell::new(index as u32) }
    };
}
