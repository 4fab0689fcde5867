//! A circuit breaker that threads share.
//!
//! The rules are those of the state machine in `ratekeeper-control`, behind a lock. The lock is not taken while the
//! breaker is closed and calls succeed, nor by a call that an open breaker rejects:
//!
//! - the state and its generation are copied into an atomic, which is all that a call reads;
//! - successes are counted in an atomic, and reach the state machine together, before the next failure or slow call.
//!   This changes no decision, because a success never opens a breaker.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratekeeper_control::{
    Breaker, BreakerConfig, BreakerConfigError, BreakerState, CallPermit, Outcome,
};
use ratekeeper_core::Micros;

use crate::clock::{Clock, SystemClock};
use crate::padded::Padded;
use crate::random::JitterBits;

/// The end of a wait that only a probe ends.
const NEVER: u64 = u64::MAX;

/// Stops calls to a dependency that fails or is slow, until it has recovered.
///
/// Closed, it permits all calls. When too many of them fail or are slow it opens, and rejects calls without making them
/// wait. After a while it is half-open, and permits a few calls as probes: if they succeed it closes, otherwise it opens
/// again, for longer. [`BreakerConfig`] has the thresholds.
///
/// It needs no runtime and no background task. Share it by reference or by cloning: clones share their state.
///
/// ```
/// use ratekeeper::{CircuitBreaker, CircuitOpen};
///
/// # fn query() -> Result<&'static str, std::io::Error> { Ok("3 rows") }
/// # fn respond_503(retry_after_secs: u64) {}
/// let breaker = CircuitBreaker::default();
/// match breaker.try_call() {
///     Ok(call) => match query() {
///         Ok(rows) => call.success(),
///         Err(error) => call.failure(),
///     },
///     Err(open) => respond_503(open.retry_after_secs()),
/// }
/// ```
pub struct CircuitBreaker<C = SystemClock> {
    shared: Arc<Shared<C>>,
}

impl CircuitBreaker {
    /// Returns a breaker that is closed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{BreakerConfig, CircuitBreaker};
    ///
    /// let config = BreakerConfig::DEFAULT.with_slow_calls(Duration::from_secs(2), 80);
    /// let breaker = CircuitBreaker::new(config)?;
    /// # Ok::<(), ratekeeper::BreakerConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a number of the configuration is out of its range, or the breaker could never open.
    pub fn new(config: BreakerConfig) -> Result<Self, BreakerConfigError> {
        Ok(Self::builder(config)?.build())
    }

    /// Returns a builder for a breaker with another clock, or an observer of its state.
    ///
    /// # Errors
    ///
    /// If a number of the configuration is out of its range, or the breaker could never open.
    pub fn builder(config: BreakerConfig) -> Result<CircuitBreakerBuilder, BreakerConfigError> {
        Ok(CircuitBreakerBuilder {
            machine: Breaker::new(config)?,
            clock: SystemClock,
            observer: None,
        })
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new(BreakerConfig::DEFAULT).expect("the default is valid")
    }
}

impl<C: Clock> CircuitBreaker<C> {
    /// Returns permission to make one call, whose outcome is reported to it.
    ///
    /// # Errors
    ///
    /// If the breaker is open, or half-open with as many probes as it permits.
    #[inline]
    pub fn try_call(&self) -> Result<Call<'_, C>, CircuitOpen> {
        let admitted = self.shared.try_call()?;
        Ok(Call { shared: &self.shared, admitted, is_recorded: false })
    }

    /// Does what [`CircuitBreaker::try_call`] does, for a call that is made in a task of its own.
    ///
    /// # Errors
    ///
    /// If the breaker is open, or half-open with as many probes as it permits.
    pub fn try_call_owned(&self) -> Result<OwnedCall<C>, CircuitOpen> {
        let admitted = self.shared.try_call()?;
        Ok(OwnedCall { shared: Arc::clone(&self.shared), admitted, is_recorded: false })
    }

    /// Returns whether the breaker rejects all calls at present: it is open, and its wait is not over.
    ///
    /// # Errors
    ///
    /// If it does.
    pub fn peek(&self) -> Result<(), CircuitOpen> {
        match Phase::of_word(self.shared.phase.load(Ordering::Acquire)).state {
            BreakerState::Open => self.shared.reject_if_waiting(self.shared.clock.now()),
            _ => Ok(()),
        }
    }

    /// Rejects a call that cannot be made any more, because it was to be rejected when it was prepared.
    #[cfg(feature = "policy")]
    pub(crate) fn reject(&self) -> CircuitOpen {
        self.shared.rejected.fetch_add(1, Ordering::Relaxed);
        let now_again =
            CircuitOpen { state: BreakerState::Open, retry_after: Some(Duration::ZERO) };
        self.peek().err().unwrap_or(now_again)
    }

    /// Makes an open breaker half-open before its wait is over, because the program has found that the dependency works,
    /// for example by a health check.
    pub fn probe_succeeded(&self) {
        let now = self.shared.clock.now();
        self.shared.change(now, |guarded| guarded.machine.probe_succeeded(now));
    }

    /// Returns the counters.
    pub fn stats(&self) -> BreakerStats {
        let guarded = self.shared.lock();
        let mut stats = guarded.stats;
        stats.successes += self.shared.successes.load(Ordering::Relaxed);
        stats.ignored += self.shared.ignored.load(Ordering::Relaxed);
        stats.rejected = self.shared.rejected.load(Ordering::Relaxed);
        stats
    }
}

impl<C> CircuitBreaker<C> {
    /// Returns the state. An open breaker whose wait is over is open until the next call.
    #[inline]
    pub fn state(&self) -> BreakerState {
        Phase::of_word(self.shared.phase.load(Ordering::Acquire)).state
    }
}

impl<C> Clone for CircuitBreaker<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C> fmt::Debug for CircuitBreaker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker").field("state", &self.state()).finish_non_exhaustive()
    }
}

type Observer = Box<dyn Fn(&StateChange) + Send + Sync>;

/// Builds a [`CircuitBreaker`], from [`CircuitBreaker::builder`].
///
/// ```
/// use ratekeeper::{BreakerConfig, CircuitBreaker, ManualClock};
///
/// let breaker = CircuitBreaker::builder(BreakerConfig::DEFAULT)?
///     .clock(ManualClock::new())
///     .on_change(|change| eprintln!("inventory: {:?} to {:?}", change.from, change.to))
///     .build();
/// # Ok::<(), ratekeeper::BreakerConfigError>(())
/// ```
#[must_use = "call `build`"]
pub struct CircuitBreakerBuilder<C = SystemClock> {
    machine: Breaker,
    clock: C,
    observer: Option<Observer>,
}

impl<C: Clock> CircuitBreakerBuilder<C> {
    /// Uses this clock.
    pub fn clock<D: Clock>(self, clock: D) -> CircuitBreakerBuilder<D> {
        CircuitBreakerBuilder { machine: self.machine, clock, observer: self.observer }
    }

    /// Calls `observer` after each change of the state, in the thread whose call caused it. It replaces an earlier
    /// observer. Changes by several threads at the same time may be observed in another order.
    pub fn on_change(self, observer: impl Fn(&StateChange) + Send + Sync + 'static) -> Self {
        Self { observer: Some(Box::new(observer)), ..self }
    }

    /// Returns the breaker.
    pub fn build(self) -> CircuitBreaker<C> {
        let config = self.machine.config();
        let us = |duration: Duration| Micros::default().after(duration).get();
        let (slow_us, slot_us) = (config.slow_call_duration().map(us), config.slot().map(us));
        let shared = Shared {
            phase: AtomicU64::new(Phase::of(&self.machine).word()),
            open_until: AtomicU64::new(0),
            slot_end: AtomicU64::new(if slot_us.is_some() { 0 } else { NEVER }),
            slow_us,
            slot_us,
            clock: self.clock,
            observer: self.observer,
            successes: Padded::default(),
            ignored: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            guarded: Mutex::new(Guarded {
                machine: self.machine,
                jitter: JitterBits::new(),
                stats: BreakerStats::default(),
            }),
        };
        CircuitBreaker { shared: Arc::new(shared) }
    }
}

impl<C> fmt::Debug for CircuitBreakerBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.machine.config();
        f.debug_struct("CircuitBreakerBuilder").field("config", config).finish_non_exhaustive()
    }
}

/// A change of the state of a [`CircuitBreaker`].
///
/// ```
/// use ratekeeper::{BreakerConfig, BreakerState, CircuitBreaker};
///
/// let breaker = CircuitBreaker::builder(BreakerConfig::DEFAULT)?
///     .on_change(|change| {
///         if change.to == BreakerState::Open {
///             eprintln!("the inventory service is not called for now");
///         }
///     })
///     .build();
/// # Ok::<(), ratekeeper::BreakerConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateChange {
    /// The state before.
    pub from: BreakerState,
    /// The state since.
    pub to: BreakerState,
}

/// Counters of a [`CircuitBreaker`].
///
/// ```
/// use ratekeeper::CircuitBreaker;
///
/// let breaker = CircuitBreaker::default();
/// breaker.try_call()?.success();
/// breaker.try_call()?.failure();
/// let stats = breaker.stats();
/// assert_eq!((stats.successes, stats.failures, stats.opened), (1, 1, 0));
/// # Ok::<(), ratekeeper::CircuitOpen>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerStats {
    /// Calls that succeeded.
    pub successes: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Calls that were slow, whether they succeeded, failed or were dropped.
    pub slow: u64,
    /// Calls that said nothing about the dependency, such as those that were dropped.
    pub ignored: u64,
    /// Calls that were rejected.
    pub rejected: u64,
    /// How often the breaker has opened.
    pub opened: u64,
}

/// A call that the circuit breaker rejects.
///
/// ```
/// use ratekeeper::{BreakerConfig, CircuitBreaker};
///
/// let breaker = CircuitBreaker::new(BreakerConfig::DEFAULT.with_consecutive_failures(1))?;
/// breaker.try_call()?.failure();
/// let open = breaker.try_call().unwrap_err();
/// assert!(open.retry_after.is_some());
/// assert!((3..=5).contains(&open.retry_after_secs()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitOpen {
    /// The state of the breaker: open or half-open.
    pub state: BreakerState,
    /// When calls are permitted again. `None` if no time is known: the breaker is half-open, and its probes will decide;
    /// or it has no wait.
    pub retry_after: Option<Duration>,
}

impl CircuitOpen {
    fn new(state: BreakerState, until: Option<Micros>, now: Micros) -> Self {
        Self { state, retry_after: until.map(|until| until.since(now)) }
    }

    /// Returns the value of a `Retry-After` header: whole seconds, rounded up; 1 if no time is known.
    #[must_use]
    pub fn retry_after_secs(&self) -> u64 {
        let after = self.retry_after.unwrap_or_default();
        (after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1)
    }
}

impl fmt::Display for CircuitOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.state, self.retry_after) {
            (BreakerState::HalfOpen, _) => {
                f.write_str("the circuit breaker is half-open, and its probes are in flight")
            }
            (_, Some(after)) => write!(f, "the circuit breaker is open; retry after {after:?}"),
            (_, None) => f.write_str("the circuit breaker is open"),
        }
    }
}

impl std::error::Error for CircuitOpen {}

/// A call that a [`CircuitBreaker`] has permitted. Report its outcome to it.
///
/// A call that is dropped without an outcome is ignored: a caller that has gone away says nothing about the dependency.
/// There is one exception: if it has lasted as long as a slow call, it counts as one. So a dependency that hangs opens
/// the breaker also if the callers give up by dropping their futures.
///
/// ```
/// use ratekeeper::CircuitBreaker;
///
/// let breaker = CircuitBreaker::default();
/// drop(breaker.try_call()?);
/// assert_eq!(breaker.stats().ignored, 1);
/// # Ok::<(), ratekeeper::CircuitOpen>(())
/// ```
#[must_use = "a call that is dropped has no outcome; call `success` or `failure`"]
pub struct Call<'b, C: Clock = SystemClock> {
    shared: &'b Shared<C>,
    admitted: Admitted,
    is_recorded: bool,
}

impl<C: Clock> Call<'_, C> {
    /// Reports that the dependency works.
    #[inline]
    pub fn success(mut self) {
        self.is_recorded = true;
        self.shared.success(self.admitted);
    }

    /// Reports that the dependency does not work.
    pub fn failure(self) {
        self.record(Outcome::Failure);
    }

    /// Reports an outcome.
    pub fn record(self, outcome: Outcome) {
        self.finish(outcome);
    }

    /// Reports an outcome, and returns what it has changed.
    pub(crate) fn finish(mut self, outcome: Outcome) -> Option<StateChange> {
        self.is_recorded = true;
        self.shared.record(self.admitted, outcome)
    }
}

impl<C: Clock> Drop for Call<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_recorded {
            self.shared.abandon(self.admitted);
        }
    }
}

impl<C: Clock> fmt::Debug for Call<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// A [`Call`] that does not borrow its breaker, from [`CircuitBreaker::try_call_owned`].
///
/// ```
/// use ratekeeper::CircuitBreaker;
///
/// let breaker = CircuitBreaker::default();
/// let call = breaker.try_call_owned()?;
/// std::thread::spawn(move || call.success()).join().unwrap();
/// assert_eq!(breaker.stats().successes, 1);
/// # Ok::<(), ratekeeper::CircuitOpen>(())
/// ```
#[must_use = "a call that is dropped has no outcome; call `success` or `failure`"]
pub struct OwnedCall<C: Clock = SystemClock> {
    shared: Arc<Shared<C>>,
    admitted: Admitted,
    is_recorded: bool,
}

impl<C: Clock> OwnedCall<C> {
    /// Reports that the dependency works.
    pub fn success(mut self) {
        self.is_recorded = true;
        self.shared.success(self.admitted);
    }

    /// Reports that the dependency does not work.
    pub fn failure(self) {
        self.record(Outcome::Failure);
    }

    /// Reports an outcome.
    pub fn record(mut self, outcome: Outcome) {
        self.is_recorded = true;
        self.shared.record(self.admitted, outcome);
    }
}

impl<C: Clock> Drop for OwnedCall<C> {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.shared.abandon(self.admitted);
        }
    }
}

impl<C: Clock> fmt::Debug for OwnedCall<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedCall").finish_non_exhaustive()
    }
}

/// What is known of a call that was permitted.
#[derive(Clone, Copy)]
struct Admitted {
    generation: u64,
    /// When it began; zero if slow calls do not count.
    began: Micros,
}

/// The state, and which one it is.
#[derive(Clone, Copy)]
struct Phase {
    generation: u64,
    state: BreakerState,
}

impl Phase {
    const STATE_BITS: u32 = 2;

    fn of(machine: &Breaker) -> Self {
        Self { generation: machine.generation(), state: machine.state() }
    }

    #[inline]
    fn of_word(word: u64) -> Self {
        let state = match word & ((1 << Self::STATE_BITS) - 1) {
            0 => BreakerState::Closed,
            1 => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        };
        Self { generation: word >> Self::STATE_BITS, state }
    }

    #[inline]
    fn word(self) -> u64 {
        let state = match self.state {
            BreakerState::Closed => 0,
            BreakerState::Open => 1,
            _ => 2,
        };
        self.generation << Self::STATE_BITS | state
    }
}

struct Shared<C> {
    /// A copy of the state: see [`Phase`].
    phase: AtomicU64,
    /// When the wait of an open breaker is over, in microseconds; [`NEVER`] if it has no wait.
    open_until: AtomicU64,
    /// When successes must reach the state machine, in microseconds: the end of the slot in which they were.
    slot_end: AtomicU64,
    /// How long a slow call takes, if slow calls count.
    slow_us: Option<u64>,
    /// The length of a slot, if the window is one of time.
    slot_us: Option<u64>,
    clock: C,
    observer: Option<Observer>,
    rejected: AtomicU64,
    ignored: AtomicU64,
    /// Successes, none of them slow, that have not reached the state machine yet.
    successes: Padded<AtomicU64>,
    guarded: Mutex<Guarded>,
}

struct Guarded {
    machine: Breaker,
    jitter: JitterBits,
    stats: BreakerStats,
}

impl<C: Clock> Shared<C> {
    #[inline]
    fn try_call(&self) -> Result<Admitted, CircuitOpen> {
        let phase = Phase::of_word(self.phase.load(Ordering::Acquire));
        if phase.state == BreakerState::Closed {
            let generation = phase.generation;
            return Ok(Admitted { generation, began: self.begin() });
        }
        self.try_call_unless_open(phase)
    }

    #[inline]
    fn begin(&self) -> Micros {
        match self.slow_us {
            Some(_) => self.clock.now(),
            None => Micros::default(),
        }
    }

    #[cold]
    fn try_call_unless_open(&self, phase: Phase) -> Result<Admitted, CircuitOpen> {
        let now = self.clock.now();
        let count = |open| {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            open
        };
        if phase.state == BreakerState::Open {
            self.reject_if_waiting(now).map_err(count)?;
        }
        let (permit, _) = self.change(now, |guarded| {
            let random = guarded.jitter.next();
            guarded.machine.try_call(now, random)
        });
        let permit = permit.map_err(|why| count(CircuitOpen::new(why.state, why.until, now)))?;
        Ok(Admitted { generation: permit.generation(), began: now })
    }

    fn reject_if_waiting(&self, now: Micros) -> Result<(), CircuitOpen> {
        let until = self.open_until.load(Ordering::Relaxed);
        if now.get() >= until {
            return Ok(());
        }
        let until = (until != NEVER).then(|| Micros::new(until));
        Err(CircuitOpen::new(BreakerState::Open, until, now))
    }

    /// Counts a success, without the lock unless the state machine must know of it now.
    #[inline]
    fn success(&self, call: Admitted) {
        if self.can_wait(call) {
            self.successes.fetch_add(1, Ordering::Relaxed);
        } else {
            self.record(call, Outcome::Success);
        }
    }

    /// Returns whether the success of a call may reach the state machine later.
    #[inline]
    fn can_wait(&self, call: Admitted) -> bool {
        if !self.is_closed_for(call) {
            return false;
        }
        if self.slow_us.is_none() && self.slot_us.is_none() {
            return true;
        }
        let now = self.clock.now();
        !self.is_slow(call, now) && now.get() < self.slot_end.load(Ordering::Relaxed)
    }

    /// Returns whether the breaker is closed, and was when it permitted the call, and never opened in between.
    #[inline]
    fn is_closed_for(&self, call: Admitted) -> bool {
        let closed = Phase { generation: call.generation, state: BreakerState::Closed };
        self.phase.load(Ordering::Relaxed) == closed.word()
    }

    #[inline]
    fn is_slow(&self, call: Admitted, now: Micros) -> bool {
        self.slow_us.is_some_and(|slow_us| now.get().saturating_sub(call.began.get()) >= slow_us)
    }

    #[cold]
    fn record(&self, call: Admitted, outcome: Outcome) -> Option<StateChange> {
        let now = self.clock.now();
        let is_slow = outcome != Outcome::Ignored && self.is_slow(call, now);
        let (_, change) = self.change(now, |guarded| {
            let stats = &mut guarded.stats;
            match outcome {
                Outcome::Success => stats.successes += 1,
                Outcome::Failure => stats.failures += 1,
                Outcome::Ignored => stats.ignored += 1,
            }
            stats.slow += u64::from(is_slow);
            guarded.record(call, outcome, now);
        });
        change
    }

    /// Ignores a call without an outcome, unless it was slow.
    fn abandon(&self, call: Admitted) {
        let now = self.begin();
        if !self.is_slow(call, now) {
            if self.is_closed_for(call) {
                self.ignored.fetch_add(1, Ordering::Relaxed);
            } else {
                self.record(call, Outcome::Ignored);
            }
            return;
        }
        self.change(now, |guarded| {
            guarded.stats.ignored += 1;
            guarded.stats.slow += 1;
            guarded.record(call, Outcome::Success, now);
        });
    }

    /// Does something with the state machine, after it knows of all successes. Publishes the change of the state, and
    /// calls the observer.
    fn change<T>(
        &self,
        now: Micros,
        act: impl FnOnce(&mut Guarded) -> T,
    ) -> (T, Option<StateChange>) {
        let mut guarded = self.lock();
        self.deliver_successes(&mut guarded, now);
        let before = Phase::of(&guarded.machine);
        let result = act(&mut guarded);
        let after = Phase::of(&guarded.machine);
        if before.generation == after.generation {
            return (result, None);
        }
        guarded.stats.opened += u64::from(after.state == BreakerState::Open);
        let open_until = guarded.machine.open_until().map_or(NEVER, Micros::get);
        self.open_until.store(open_until, Ordering::Relaxed);
        // After the time, which those read that see the breaker open.
        self.phase.store(after.word(), Ordering::Release);
        drop(guarded);
        let change = StateChange { from: before.state, to: after.state };
        if let Some(observer) = &self.observer {
            observer(&change);
        }
        (result, Some(change))
    }

    /// Records the successes in the state machine. Those since the breaker has opened do not count.
    fn deliver_successes(&self, guarded: &mut Guarded, now: Micros) {
        let successes = self.successes.swap(0, Ordering::Relaxed);
        guarded.stats.successes += successes;
        // All of them were in the last slot, which may be long ago.
        let slot_end = self.slot_end.load(Ordering::Relaxed);
        let at = now.min(Micros::new(slot_end.saturating_sub(1)));
        let permit = CallPermit::of_generation(guarded.machine.generation());
        guarded.machine.record_successes(permit, successes, at);
        if let Some(slot_us) = self.slot_us {
            let next_end = (now.get() / slot_us + 1) * slot_us;
            self.slot_end.store(next_end.max(slot_end), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guarded {
    fn record(&mut self, call: Admitted, outcome: Outcome, now: Micros) {
        let permit = CallPermit::of_generation(call.generation);
        let took = now.since(call.began);
        self.machine.record(permit, outcome, took, now, self.jitter.next());
    }
}
