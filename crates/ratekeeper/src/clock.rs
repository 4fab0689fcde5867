//! The one place where time is read.
//!
//! [`SystemClock`] follows the operating system's monotonic clock, begun at the wall clock's time:
//! it never goes back and never jumps when somebody sets the date. Where the kernel itself keeps
//! time by the processor's time-stamp counter, so does this clock, at a third of the price of
//! asking the kernel; a few times a second it compares itself with the kernel's time.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::Micros;

/// Tells the time. A limiter asks once per decision.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Micros;

    /// The present moment if there is nothing to do but to read it. For a clock that has to be
    /// set, compared or waited for now and then.
    #[inline]
    fn quick(&self) -> Option<Micros> {
        Some(self.now())
    }
}

/// Real time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[inline]
    fn quick(&self) -> Option<Micros> {
        counter::now()
    }

    #[inline]
    fn now(&self) -> Micros {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(now) = counter::now() {
            return now;
        }
        Micros::new(Source::get().now_us())
    }
}

/// A clock that stands still until it is moved: for the tests of code that uses a limiter.
///
/// Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limiter, ManualClock};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::new("1/minute")?.with_clock(clock.clone());
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
    /// A clock that shows the beginning of the epoch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that shows this moment.
    pub fn at(moment: Micros) -> Self {
        Self(Arc::new(AtomicU64::new(moment.get())))
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }

    /// Sets the clock, also back.
    pub fn set(&self, moment: Micros) {
        self.0.store(moment.get(), Ordering::SeqCst);
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
    Counter(counter::CounterClock),
}

impl Source {
    fn get() -> &'static Self {
        static SOURCE: OnceLock<Source> = OnceLock::new();
        SOURCE.get_or_init(Self::detect)
    }

    fn detect() -> Self {
        let kernel = Kernel::new();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if counter::kernel_trusts_it() {
            return Self::Counter(counter::CounterClock::new(kernel));
        }
        Self::Kernel(kernel)
    }

    #[cold]
    fn now_us(&self) -> u64 {
        match self {
            Self::Kernel(kernel) => kernel.now_us(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Counter(counter) => counter.now_us(),
        }
    }
}

/// Monotonic time, begun at the wall clock's.
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

/// Time by the processor's time-stamp counter.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod counter {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use std::sync::atomic::{AtomicU64, fence};

    use super::{Kernel, Micros};

    /// How long the first comparison with the kernel takes.
    const FIRST_LOOK_NS: u64 = 500_000;
    /// How often to compare, in ticks: several times a second on any processor.
    const COMPARE_TICKS: u64 = 1 << 29;
    /// As fine as it can be for a product of 64 bits: exact to some 20 ns until the next comparison.
    const SLOPE_BITS: u32 = 34;
    /// A tick is no longer than a microsecond.
    const SLOPE_MAX: u64 = 1 << SLOPE_BITS;
    /// The latest that a line may begin, so that no moment before the next comparison is later than the
    /// last that can be told.
    const BEGIN_MAX: u64 = Micros::MAX.get() - COMPARE_TICKS;

    /// The kernel watches the counter for being steady and equal on all processors, and turns to
    /// another source if it is not.
    pub(super) fn kernel_trusts_it() -> bool {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        std::fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc")
    }

    #[allow(unsafe_code, reason = "the intrinsic is declared unsafe")]
    #[inline]
    fn ticks() -> u64 {
        // SAFETY: reads a register that every x86_64 processor has; touches no memory. Where an
        // operating system forbids it the process is stopped, and Linux only does so on request.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// A straight line through the last comparison: `us + (ticks − at)·slope`.
    #[derive(Clone, Copy)]
    struct Line {
        at: u64,
        us: u64,
        /// Microseconds a tick, times 2^[`SLOPE_BITS`].
        slope: u64,
    }

    impl Line {
        fn us_at(self, ticks: u64) -> u64 {
            // Another core's counter may be a little behind; time stands still meanwhile.
            let passed = ticks.saturating_sub(self.at);
            self.us + ((u128::from(passed) * u128::from(self.slope)) >> SLOPE_BITS) as u64
        }

        /// The same before the next comparison, when no product is larger than 64 bits.
        #[inline]
        fn us_soon_after(self, passed: u64) -> u64 {
            self.us + ((passed * self.slope) >> SLOPE_BITS)
        }
    }

    /// The line that everybody reads: whole if `at` is the same before and after, and not [`NEVER`].
    struct Shared {
        at: AtomicU64,
        us: AtomicU64,
        slope: AtomicU64,
    }

    /// Where no line begins: one is just being written.
    const NEVER: u64 = u64::MAX;

    /// Until there is a line, it is for ever being written.
    static SHARED: Shared =
        Shared { at: AtomicU64::new(NEVER), us: AtomicU64::new(0), slope: AtomicU64::new(0) };

    impl Shared {
        /// The line, unless it has just been written. It begins at [`NEVER`] if it is being written.
        #[inline]
        fn line(&self) -> Option<Line> {
            let at = self.at.load(Acquire);
            let line = Line { at, us: self.us.load(Relaxed), slope: self.slope.load(Relaxed) };
            fence(Acquire);
            (self.at.load(Relaxed) == at).then_some(line)
        }

        /// Only for whoever holds the keeper.
        fn set_line(&self, line: Line) {
            let (us, slope) = (line.us.min(BEGIN_MAX), line.slope.min(SLOPE_MAX));
            self.at.store(NEVER, Relaxed);
            fence(Release);
            self.us.store(us, Relaxed);
            self.slope.store(slope, Relaxed);
            self.at.store(line.at, Release);
        }
    }

    /// The time, unless there is more to do than to read it.
    #[inline]
    pub(super) fn now() -> Option<Micros> {
        let line = SHARED.line()?;
        let passed = ticks().wrapping_sub(line.at); // huge if the counter is behind
        (passed <= COMPARE_TICKS).then(|| Micros::new_unchecked(line.us_soon_after(passed)))
    }

    pub(super) struct CounterClock {
        keeper: Mutex<Keeper>,
    }

    /// What the comparisons need: the first one, so that the slope gets better all the time, and the
    /// last, to see whether the counter has jumped.
    struct Keeper {
        kernel: Kernel,
        first: Sample,
        last: Sample,
    }

    /// The counter and the kernel's clock, read at about the same time.
    #[derive(Clone, Copy)]
    struct Sample {
        ticks: u64,
        ns: u64,
    }

    impl Sample {
        /// The closest of a few, in case something came between the two readings.
        fn take(kernel: &Kernel) -> Self {
            let one = || {
                let (before, ns, after) = (ticks(), kernel.since_start_ns(), ticks());
                let apart = after.saturating_sub(before);
                (apart, Self { ticks: before + apart / 2, ns })
            };
            let few = (0..5).map(|_| one());
            few.min_by_key(|(apart, _)| *apart).map_or_else(|| one().1, |(_, sample)| sample)
        }
    }

    impl Sample {
        /// The slope of a line from this one; `None` if too little has passed to tell.
        fn slope_to(self, later: Self) -> Option<u64> {
            let ticks = later.ticks.checked_sub(self.ticks).filter(|ticks| *ticks > 0)?;
            let passed_ns = u128::from(later.ns.checked_sub(self.ns).filter(|ns| *ns > 0)?);
            Some(((passed_ns << SLOPE_BITS) / u128::from(ticks) / 1_000) as u64)
        }

        /// Has the counter gone back, or on by more or less than the kernel's clock allows?
        fn jumped_to(self, later: Self, slope: u64) -> bool {
            let Some(ticks) = later.ticks.checked_sub(self.ticks) else { return true };
            let told_ns = ((u128::from(ticks) * u128::from(slope)) >> SLOPE_BITS) * 1_000;
            let passed_ns = u128::from(later.ns - self.ns);
            told_ns.abs_diff(passed_ns) > passed_ns / 50 + 1_000_000
        }
    }

    impl CounterClock {
        pub(super) fn new(kernel: Kernel) -> Self {
            let first = Sample::take(&kernel);
            while kernel.since_start_ns() < first.ns + FIRST_LOOK_NS {
                std::hint::spin_loop();
            }
            let mut keeper = Keeper { kernel, first, last: first };
            let line = keeper.compare(None);
            SHARED.set_line(line);
            Self { keeper: Mutex::new(keeper) }
        }

        pub(super) fn now_us(&self) -> u64 {
            let line = self.line();
            let ticks = ticks();
            if ticks.abs_diff(line.at) > COMPARE_TICKS {
                self.compare(line);
            }
            line.us_at(ticks)
        }

        fn line(&self) -> Line {
            loop {
                match SHARED.line() {
                    Some(line) if line.at != NEVER => return line,
                    _ => std::hint::spin_loop(),
                }
            }
        }

        /// Whoever comes first compares; nobody waits for it.
        fn compare(&self, line: Line) {
            let Ok(mut keeper) = self.keeper.try_lock() else {
                return;
            };
            if self.line().at == line.at {
                SHARED.set_line(keeper.compare(Some(line)));
            }
        }
    }

    impl Keeper {
        /// The line from here on. It begins where the old one ends, or later if that was behind.
        fn compare(&mut self, old: Option<Line>) -> Line {
            let sample = Sample::take(&self.kernel);
            let slope = match old {
                // Begins anew, as fast as before: it has been asleep or moved to another machine.
                Some(line) if self.last.jumped_to(sample, line.slope) => {
                    self.first = sample;
                    line.slope
                }
                _ => self.first.slope_to(sample).or(old.map(|line| line.slope)).unwrap_or(0),
            };
            self.last = sample;
            let Sample { ticks: at, ns } = sample;
            let us = self.kernel.started_us + ns / 1_000;
            match old.map(|line| line.us_at(at)) {
                // Ahead of the kernel: go on from there, slower by as much as makes it even at the
                // next comparison, or by an eighth if that is less.
                Some(told) if told > us => {
                    let interval = (u128::from(COMPARE_TICKS) * u128::from(slope)) >> SLOPE_BITS;
                    let excess = u128::from(slope) * u128::from(told - us) / interval.max(1);
                    let slower = u64::try_from(excess).unwrap_or(u64::MAX).min(slope / 8);
                    Line { at, us: told, slope: slope - slower }
                }
                _ => Line { at, us, slope },
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_line_never_goes_back_at_a_comparison() {
            let kernel = Kernel::new();
            let (first, now_us) = (Sample::take(&kernel), kernel.now_us());
            let mut keeper = Keeper { kernel, first, last: first };
            // A line that is an hour ahead, and one that is an hour behind.
            let hour = 3_600_000_000;
            let ahead = Line { at: first.ticks, us: now_us + hour, slope: SLOPE_MAX >> 12 };
            let next = keeper.compare(Some(ahead));
            assert!(next.us >= ahead.us_at(next.at));
            let behind = Line { us: now_us - hour, ..ahead };
            let next = keeper.compare(Some(behind));
            assert!(next.us >= now_us);
        }

        #[test]
        fn a_line_that_is_a_little_ahead_is_slowed_a_little() {
            let kernel = Kernel::new();
            let (first, now_us) = (Sample::take(&kernel), kernel.now_us());
            while kernel.since_start_ns() < first.ns + FIRST_LOOK_NS {
                std::hint::spin_loop();
            }
            let mut keeper = Keeper { kernel, first, last: first };
            let even = keeper.compare(None);
            let ahead = Line { at: first.ticks, us: now_us + 10, slope: even.slope };
            let next = keeper.compare(Some(ahead));
            assert!(next.slope > even.slope - even.slope / 100, "{} {}", next.slope, even.slope);
        }

        #[test]
        fn a_counter_that_jumps_neither_stops_the_clock_nor_changes_its_pace() {
            for shift in [1i64 << 50, -(1 << 40)] {
                // As if the counter had been that much elsewhere until now.
                let mut keeper = Keeper { kernel: Kernel::new(), first: ZERO, last: ZERO };
                let now = Sample::take(&keeper.kernel);
                let before = Sample { ticks: now.ticks.wrapping_add_signed(shift), ns: now.ns };
                (keeper.first, keeper.last) = (before, before);
                let slope = SLOPE_MAX / 2_600;
                let told = keeper.kernel.now_us();
                let next = keeper.compare(Some(Line { at: before.ticks, us: told, slope }));
                assert!(
                    next.at.abs_diff(now.ticks) < 1 << 32,
                    "it goes on from the counter as it is"
                );
                assert!(next.us >= told && next.slope > slope - slope / 4, "{}", next.slope);
            }
        }

        const ZERO: Sample = Sample { ticks: 0, ns: 0 };

        #[test]
        fn no_line_leads_beyond_the_last_moment_that_can_be_told() {
            let shared = Shared { at: NEVER.into(), us: 0.into(), slope: 0.into() };
            shared.set_line(Line { at: 0, us: u64::MAX, slope: u64::MAX });
            let line = shared.line().unwrap();
            assert_eq!(line.us, BEGIN_MAX);
            assert!(line.us_soon_after(COMPARE_TICKS) <= Micros::MAX.get());
            assert_eq!(line.us_soon_after(COMPARE_TICKS), line.us_at(COMPARE_TICKS));
        }

        #[test]
        fn a_counter_that_is_behind_reads_as_no_time_passed() {
            let line = Line { at: 1_000, us: 77, slope: u64::MAX };
            assert_eq!(line.us_at(999), 77);
        }
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
