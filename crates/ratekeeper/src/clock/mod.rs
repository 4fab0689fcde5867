//! Clocks: the only place where time is read.
//!
//! [`SystemClock`] follows the monotonic clock of the operating system, started at the wall clock's time: it
//! never goes back and does not jump when the date is set. Where the kernel itself uses the processor's
//! time-stamp counter, so does this clock, at a third of the cost of a call to the kernel; it calibrates
//! itself a few times a second.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tsc;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::Micros;

/// A source of time. A limiter reads it once per decision.
///
/// ```
/// use ratekeeper::{Clock, Limiter, Micros};
///
/// struct Frozen;
///
/// impl Clock for Frozen {
///     fn now(&self) -> Micros {
///         Micros::new(1_000_000)
///     }
/// }
///
/// let limiter = Limiter::builder("1/minute")?.clock(Frozen).build();
/// assert!(limiter.check("k").allowed() && !limiter.check("k").allowed());
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
pub trait Clock: Send + Sync {
    /// Returns the present time.
    fn now(&self) -> Micros;

    /// Returns the present time if that takes no more than reading it; `None` if the clock has to be
    /// calibrated first. [`Clock::now`] does that.
    #[inline]
    fn try_now(&self) -> Option<Micros> {
        Some(self.now())
    }
}

/// The clock of the operating system.
///
/// ```
/// use ratekeeper::{Clock, SystemClock};
///
/// assert!(SystemClock.now() <= SystemClock.now());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[inline]
    fn try_now(&self) -> Option<Micros> {
        tsc::now()
    }

    #[inline]
    fn now(&self) -> Micros {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(now) = tsc::now() {
            return now;
        }
        Micros::new(Source::get().now_us())
    }
}

/// A clock that stands still until it is moved, for tests of code that uses a limiter. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limiter, ManualClock};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder("1/minute")?.clock(clock.clone()).build();
/// assert!(limiter.check("user:42").allowed());
/// assert!(!limiter.check("user:42").allowed());
///
/// clock.advance(Duration::from_secs(120));
/// assert!(limiter.check("user:42").allowed());
/// # Ok::<(), ratekeeper::LimitError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Returns a clock at the Unix epoch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a clock at this time.
    pub fn at(time: Micros) -> Self {
        Self(Arc::new(AtomicU64::new(time.get())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, time: Micros) {
        self.0.store(time.get(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros::new(self.0.load(Ordering::SeqCst))
    }
}

enum Source {
    Kernel(Kernel),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Tsc(tsc::TscClock),
}

impl Source {
    fn get() -> &'static Self {
        static SOURCE: OnceLock<Source> = OnceLock::new();
        SOURCE.get_or_init(Self::detect)
    }

    fn detect() -> Self {
        let kernel = Kernel::new();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if tsc::is_clock_source() {
            return Self::Tsc(tsc::TscClock::new(kernel));
        }
        Self::Kernel(kernel)
    }

    #[cold]
    fn now_us(&self) -> u64 {
        match self {
            Self::Kernel(kernel) => kernel.now_us(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Tsc(tsc) => tsc.now_us(),
        }
    }
}

/// The kernel's monotonic clock, started at the wall clock's time.
struct Kernel {
    started: std::time::Instant,
    started_us: u64,
}

impl Kernel {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn new() -> Self {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let started_us = since_epoch.map_or(0, |since| since.as_micros() as u64);
        Self { started: std::time::Instant::now(), started_us }
    }

    fn now_us(&self) -> u64 {
        self.started_us + self.since_start_ns() / 1_000
    }

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn since_start_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_never_goes_back() {
        let mut last = SystemClock.now();
        for _ in 0..200_000 {
            let now = SystemClock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
