//! The contenders: Ratekeeper, its peers, and lower bounds of the cost of a check.
#![allow(clippy::ptr_arg, reason = "governor wants the very type of its keys")]

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Instant, SystemTime};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::DefaultClock};
use ratekeeper::{Clock, Limit, Limiter, SystemClock};

/// Checks one request of a key. Always inlined, so that no contender pays for a call because it is in
/// more than one table.
pub trait Contender: Sync {
    fn check(&self, key: &String) -> bool;
}

/// The limit that contenders are configured with.
#[derive(Clone, Copy, PartialEq)]
pub enum Mode {
    /// A thousand million a second: every request is allowed.
    Allowed,
    /// One an hour: everything after the first is denied.
    Denied,
}

impl Mode {
    pub fn ratekeeper(self) -> &'static str {
        match self {
            Mode::Allowed => "1000000/s burst 1000000000",
            Mode::Denied => "1/hour",
        }
    }

    fn quota(self) -> Quota {
        let count = NonZeroU32::new(if self == Mode::Allowed { 1_000_000_000 } else { 1 }).unwrap();
        match self {
            Mode::Allowed => Quota::per_second(count),
            Mode::Denied => Quota::per_hour(count),
        }
    }

    /// Returns the emission interval and the burst tolerance in nanoseconds.
    fn interval_and_burst_ns(self) -> (u64, u64) {
        match self {
            Mode::Allowed => (1, 1_000_000_000),
            Mode::Denied => (3_600_000_000_000, 3_600_000_000_000),
        }
    }
}

/// The library in its default configuration: system clock, complete decision.
pub struct Ratekeeper(Limiter);

impl Ratekeeper {
    pub fn new(mode: Mode, keys: usize) -> Self {
        Self::with_limit(Limit::token_bucket(mode.ratekeeper()).unwrap(), keys)
    }

    pub fn with_limit(limit: Limit, keys: usize) -> Self {
        Self(Limiter::builder(limit).unwrap().capacity(keys).build())
    }
}

impl Contender for Ratekeeper {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.0.check(key).allowed()
    }
}

/// The same, and every number of the decision is read.
pub struct RatekeeperAll(Limiter);

impl RatekeeperAll {
    pub fn new(mode: Mode, keys: usize) -> Self {
        Self(Ratekeeper::new(mode, keys).0)
    }
}

impl Contender for RatekeeperAll {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let decision = self.0.check(key);
        std::hint::black_box(&decision);
        decision.allowed()
    }
}

/// The same with a cached clock.
pub struct CachedClock;

static CACHED_US: AtomicU64 = AtomicU64::new(1_700_000_000_000_000);

impl Clock for CachedClock {
    #[inline]
    fn now(&self) -> ratekeeper::Micros {
        ratekeeper::Micros::new(CACHED_US.load(Ordering::Relaxed))
    }
}

pub struct RatekeeperCached(Limiter<CachedClock>);

impl RatekeeperCached {
    pub fn new(mode: Mode, keys: usize) -> Self {
        let limit = Limit::token_bucket(mode.ratekeeper()).unwrap();
        Self(Limiter::builder(limit).unwrap().capacity(keys).clock(CachedClock).build())
    }
}

impl Contender for RatekeeperCached {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.0.check(key).allowed()
    }
}

pub struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    pub fn new(mode: Mode) -> Self {
        Self(RateLimiter::keyed(mode.quota()))
    }
}

impl Contender for Governor {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

type Fold = foldhash::fast::RandomState;
type FoldStore = governor::state::keyed::DashMapStateStore<String, Fold>;

pub struct GovernorFold(
    RateLimiter<
        String,
        FoldStore,
        DefaultClock,
        governor::middleware::NoOpMiddleware<<DefaultClock as governor::clock::Clock>::Instant>,
    >,
);

impl GovernorFold {
    pub fn new(mode: Mode) -> Self {
        let clock = DefaultClock::default();
        Self(RateLimiter::dashmap_with_clock_and_hasher(mode.quota(), clock, Fold::default()))
    }
}

impl Contender for GovernorFold {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// throttlecrab's library, behind a mutex, because it is not thread-safe.
pub struct Throttlecrab(Mutex<throttlecrab::RateLimiter<throttlecrab::PeriodicStore>>, Mode);

impl Throttlecrab {
    pub fn new(mode: Mode, keys: usize) -> Self {
        let store = throttlecrab::PeriodicStore::builder().capacity(keys).build();
        Self(Mutex::new(throttlecrab::RateLimiter::new(store)), mode)
    }
}

impl Contender for Throttlecrab {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let (burst, count, period) = match self.1 {
            Mode::Allowed => (1_000_000_000, 1_000_000_000, 1),
            Mode::Denied => (1, 1, 3_600),
        };
        let mut limiter = self.0.lock().unwrap();
        limiter.rate_limit(key, burst, count, period, 1, SystemTime::now()).unwrap().0
    }
}

/// A simple implementation: 64 mutexes around maps of strings.
pub struct ShardedMutex {
    shards: Vec<parking_lot::Mutex<HashMap<String, u64, Fold>>>,
    hasher: Fold,
    started: Instant,
    interval_ns: u64,
    burst_ns: u64,
}

impl ShardedMutex {
    pub fn new(mode: Mode) -> Self {
        let (interval_ns, burst_ns) = mode.interval_and_burst_ns();
        let shards = (0..64).map(|_| Default::default()).collect();
        Self { shards, hasher: Fold::default(), started: Instant::now(), interval_ns, burst_ns }
    }
}

impl Contender for ShardedMutex {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let shard = self.hasher.hash_one(key) >> 58;
        let now = self.started.elapsed().as_nanos() as u64;
        let mut shard = self.shards[shard as usize].lock();
        let rest = match shard.get_mut(key.as_str()) {
            Some(rest) => rest,
            None => shard.entry(key.to_string()).or_default(),
        };
        let next = now.max(*rest) + self.interval_ns;
        let allowed = next <= now + self.burst_ns;
        if allowed {
            *rest = next;
        }
        allowed
    }
}

/// The lower bound: a hash and one `fetch_add` in an array of 64 MB. It limits nothing.
pub struct Floor(Vec<AtomicU64>, Fold);

impl Floor {
    pub fn new() -> Self {
        Self((0..8 << 20).map(|_| AtomicU64::new(0)).collect(), Fold::default())
    }
}

impl Contender for Floor {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let mut hasher = self.1.build_hasher();
        hasher.write(key.as_bytes());
        let index = hasher.finish() as usize % self.0.len();
        self.0[index].fetch_add(1, Ordering::Relaxed) != u64::MAX
    }
}

/// The bare table: slots of an 8-byte fingerprint and 8 bytes of state, a compare-and-swap, no
/// expiry, no cap, no other algorithm, no costs, no several limits, nothing but yes or no.
pub struct BareTable<C> {
    slots: Vec<[AtomicU64; 2]>,
    hasher: Fold,
    clock: C,
    interval_ns: u64,
    burst_ns: u64,
}

/// The clocks of the bare table.
pub trait Nanos: Sync {
    fn nanos(&self) -> u64;
}

/// The time-stamp counter, without checks.
pub struct Tsc;

/// Nanoseconds a tick, times 2^32.
static TSC_SLOPE: OnceLock<u64> = OnceLock::new();

impl Tsc {
    pub fn calibrate() -> Self {
        TSC_SLOPE.get_or_init(|| {
            let (started, ticks) = (Instant::now(), Self::ticks());
            while started.elapsed().as_millis() < 50 {}
            ((started.elapsed().as_nanos() << 32) / u128::from(Self::ticks() - ticks)) as u64
        });
        Self
    }

    #[inline]
    fn ticks() -> u64 {
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

impl Nanos for Tsc {
    #[inline]
    fn nanos(&self) -> u64 {
        ((u128::from(Self::ticks()) * u128::from(*TSC_SLOPE.get().unwrap())) >> 32) as u64
    }
}

impl Nanos for CachedClock {
    #[inline]
    fn nanos(&self) -> u64 {
        CACHED_US.load(Ordering::Relaxed) * 1_000
    }
}

impl<C: Nanos> BareTable<C> {
    pub fn new(mode: Mode, keys: usize, clock: C) -> Self {
        let (interval_ns, burst_ns) = mode.interval_and_burst_ns();
        let len = (2 * keys).next_power_of_two();
        let slots = (0..len).map(|_| Default::default()).collect();
        Self { slots, hasher: Fold::default(), clock, interval_ns, burst_ns }
    }
}

impl<C: Nanos> Contender for BareTable<C> {
    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        let hash = hasher.finish();
        let fingerprint = hash | 1;
        let mut index = (hash >> 20) as usize & (self.slots.len() - 1);
        let state = loop {
            let [tag, state] = &self.slots[index];
            match tag.load(Ordering::Relaxed) {
                found if found == fingerprint => break state,
                0 => {
                    let claim =
                        tag.compare_exchange(0, fingerprint, Ordering::Relaxed, Ordering::Relaxed);
                    if claim.is_ok() || claim == Err(fingerprint) {
                        break state;
                    }
                }
                _ => {}
            }
            index = (index + 1) & (self.slots.len() - 1);
        };
        let now = self.clock.nanos();
        let mut rest = state.load(Ordering::Relaxed);
        loop {
            let next = now.max(rest) + self.interval_ns;
            if next > now + self.burst_ns {
                return false;
            }
            match state.compare_exchange_weak(rest, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => rest = seen,
            }
        }
    }
}

/// Returns the cost of reading each clock.
pub fn clock_costs() -> Vec<(&'static str, f64)> {
    fn time(mut read: impl FnMut() -> u64) -> f64 {
        let started = Instant::now();
        let mut sum = 0u64;
        for _ in 0..5_000_000 {
            sum = sum.wrapping_add(read());
        }
        std::hint::black_box(sum);
        started.elapsed().as_nanos() as f64 / 5e6
    }
    let started = Instant::now();
    let quanta = quanta::Clock::new();
    let tsc = Tsc::calibrate();
    vec![
        ("std `Instant::now`", time(|| started.elapsed().as_nanos() as u64)),
        ("quanta", time(|| quanta.delta_as_nanos(0, quanta.raw()))),
        ("ratekeeper `SystemClock`", time(|| SystemClock.now().get())),
        ("bare `rdtsc` and a multiplication", time(|| tsc.nanos())),
    ]
}
