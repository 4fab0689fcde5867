//! Time by the processor's time-stamp counter (TSC), calibrated against the kernel's clock.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::{Kernel, Micros};

/// How long the first calibration takes.
const FIRST_CALIBRATION_NS: u64 = 500_000;
/// The ticks between two calibrations: several a second on any processor.
const CALIBRATION_TICKS: u64 = 1 << 29;
/// The fixed-point precision of a slope. A product fits 64 bits; exact to some 20 ns until the next
/// calibration.
const SLOPE_BITS: u32 = 34;
/// A tick takes at most a microsecond.
const SLOPE_MAX: u64 = 1 << SLOPE_BITS;
/// The latest start of a calibration, so that every time until the next one can be represented.
const START_MAX: u64 = Micros::MAX.get() - CALIBRATION_TICKS;

/// Returns whether the kernel itself uses the counter. It checks that the counter is steady and equal on all
/// processors, and uses another source if it is not.
pub(super) fn is_clock_source() -> bool {
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

/// A linear conversion of ticks to time: `us + (ticks − at)·slope`.
#[derive(Clone, Copy)]
struct Calibration {
    at: u64,
    us: u64,
    /// Microseconds per tick, times 2^[`SLOPE_BITS`].
    slope: u64,
}

impl Calibration {
    fn us_at(self, ticks: u64) -> u64 {
        // The counter of another core may be a little behind; time stands still then.
        let passed = ticks.saturating_sub(self.at);
        self.us + ((u128::from(passed) * u128::from(self.slope)) >> SLOPE_BITS) as u64
    }

    /// The same before the next calibration, when the product fits 64 bits.
    #[inline]
    fn us_soon_after(self, passed: u64) -> u64 {
        self.us + ((passed * self.slope) >> SLOPE_BITS)
    }
}

/// The current calibration, as a sequence lock: it is consistent if `at` is the same before and after, and
/// not [`BEING_WRITTEN`].
struct SharedCalibration {
    at: AtomicU64,
    us: AtomicU64,
    slope: AtomicU64,
}

/// An `at` that no calibration has.
const BEING_WRITTEN: u64 = u64::MAX;

static CURRENT: SharedCalibration = SharedCalibration {
    at: AtomicU64::new(BEING_WRITTEN),
    us: AtomicU64::new(0),
    slope: AtomicU64::new(0),
};

impl SharedCalibration {
    /// Returns the calibration, unless it changed meanwhile. Its `at` is [`BEING_WRITTEN`] if it is being
    /// written.
    #[inline]
    fn get(&self) -> Option<Calibration> {
        let at = self.at.load(Acquire);
        let (us, slope) = (self.us.load(Relaxed), self.slope.load(Relaxed));
        fence(Acquire);
        (self.at.load(Relaxed) == at).then_some(Calibration { at, us, slope })
    }

    /// Only for the thread that holds the calibrator.
    fn set(&self, next: Calibration) {
        let (us, slope) = (next.us.min(START_MAX), next.slope.min(SLOPE_MAX));
        self.at.store(BEING_WRITTEN, Relaxed);
        fence(Release);
        self.us.store(us, Relaxed);
        self.slope.store(slope, Relaxed);
        self.at.store(next.at, Release);
    }
}

/// Returns the time, unless a calibration is due or being written.
#[inline]
pub(super) fn now() -> Option<Micros> {
    let current = CURRENT.get()?;
    let passed = ticks().wrapping_sub(current.at); // huge if the counter is behind
    (passed <= CALIBRATION_TICKS).then(|| Micros::new_unchecked(current.us_soon_after(passed)))
}

pub(super) struct TscClock {
    calibrator: Mutex<Calibrator>,
}

/// Calibrates by the first sample, so that the slope becomes more precise with time, and the last, to detect
/// that the counter has jumped.
struct Calibrator {
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
    /// The closest of a few, in case the thread was interrupted between the two readings.
    fn take(kernel: &Kernel) -> Self {
        let one = || {
            let (before, ns, after) = (ticks(), kernel.since_start_ns(), ticks());
            let gap = after.saturating_sub(before);
            (gap, Self { ticks: before + gap / 2, ns })
        };
        let few = (0..5).map(|_| one());
        few.min_by_key(|(gap, _)| *gap).map_or_else(|| one().1, |(_, sample)| sample)
    }
}

impl Sample {
    /// The slope between two samples; `None` if they are too close.
    fn slope_to(self, later: Self) -> Option<u64> {
        let ticks = later.ticks.checked_sub(self.ticks).filter(|ticks| *ticks > 0)?;
        let passed_ns = u128::from(later.ns.checked_sub(self.ns).filter(|ns| *ns > 0)?);
        Some(((passed_ns << SLOPE_BITS) / u128::from(ticks) / 1_000) as u64)
    }

    /// Whether the counter went back, or advanced by more or less than the kernel's clock.
    fn jumped_to(self, later: Self, slope: u64) -> bool {
        let Some(ticks) = later.ticks.checked_sub(self.ticks) else { return true };
        let counted_ns = ((u128::from(ticks) * u128::from(slope)) >> SLOPE_BITS) * 1_000;
        let passed_ns = u128::from(later.ns - self.ns);
        counted_ns.abs_diff(passed_ns) > passed_ns / 50 + 1_000_000
    }
}

impl TscClock {
    pub(super) fn new(kernel: Kernel) -> Self {
        let first = Sample::take(&kernel);
        while kernel.since_start_ns() < first.ns + FIRST_CALIBRATION_NS {
            std::hint::spin_loop();
        }
        let mut calibrator = Calibrator { kernel, first, last: first };
        CURRENT.set(calibrator.calibrate(None));
        Self { calibrator: Mutex::new(calibrator) }
    }

    pub(super) fn now_us(&self) -> u64 {
        let current = self.current();
        let ticks = ticks();
        if ticks.abs_diff(current.at) > CALIBRATION_TICKS {
            self.calibrate(current);
        }
        current.us_at(ticks)
    }

    fn current(&self) -> Calibration {
        loop {
            match CURRENT.get() {
                Some(current) if current.at != BEING_WRITTEN => return current,
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Calibrates, unless another thread does. No thread waits.
    fn calibrate(&self, old: Calibration) {
        let Ok(mut calibrator) = self.calibrator.try_lock() else {
            return;
        };
        if self.current().at == old.at {
            CURRENT.set(calibrator.calibrate(Some(old)));
        }
    }
}

impl Calibrator {
    /// Returns the calibration from now on. It begins where the old one ends, or later if that was behind, so
    /// that time never goes back.
    fn calibrate(&mut self, old: Option<Calibration>) -> Calibration {
        let sample = Sample::take(&self.kernel);
        let slope = match old {
            // The machine was suspended or migrated: starts again with the slope as it was.
            Some(old) if self.last.jumped_to(sample, old.slope) => {
                self.first = sample;
                old.slope
            }
            _ => self.first.slope_to(sample).or(old.map(|old| old.slope)).unwrap_or(0),
        };
        self.last = sample;
        let Sample { ticks: at, ns } = sample;
        let us = self.kernel.started_us + ns / 1_000;
        match old.map(|old| old.us_at(at)) {
            // Ahead of the kernel: continues from there, slower by as much as corrects it until the next
            // calibration, or by an eighth if that is less.
            Some(shown) if shown > us => {
                let interval = (u128::from(CALIBRATION_TICKS) * u128::from(slope)) >> SLOPE_BITS;
                let excess = u128::from(slope) * u128::from(shown - us) / interval.max(1);
                let slower = u64::try_from(excess).unwrap_or(u64::MAX).min(slope / 8);
                Calibration { at, us: shown, slope: slope - slower }
            }
            _ => Calibration { at, us, slope },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_at_a_calibration() {
        let kernel = Kernel::new();
        let (first, now_us) = (Sample::take(&kernel), kernel.now_us());
        let mut calibrator = Calibrator { kernel, first, last: first };
        // A calibration that is an hour ahead, and one that is an hour behind.
        let hour = 3_600_000_000;
        let ahead = Calibration { at: first.ticks, us: now_us + hour, slope: SLOPE_MAX >> 12 };
        let next = calibrator.calibrate(Some(ahead));
        assert!(next.us >= ahead.us_at(next.at));
        let behind = Calibration { us: now_us - hour, ..ahead };
        let next = calibrator.calibrate(Some(behind));
        assert!(next.us >= now_us);
    }

    #[test]
    fn a_clock_that_is_a_little_ahead_is_slowed_a_little() {
        let kernel = Kernel::new();
        let (first, now_us) = (Sample::take(&kernel), kernel.now_us());
        while kernel.since_start_ns() < first.ns + FIRST_CALIBRATION_NS {
            std::hint::spin_loop();
        }
        let mut calibrator = Calibrator { kernel, first, last: first };
        let even = calibrator.calibrate(None);
        let ahead = Calibration { at: first.ticks, us: now_us + 10, slope: even.slope };
        let next = calibrator.calibrate(Some(ahead));
        assert!(next.slope > even.slope - even.slope / 100, "{} {}", next.slope, even.slope);
    }

    #[test]
    fn a_counter_that_jumps_neither_stops_the_clock_nor_changes_its_rate() {
        for shift in [1i64 << 50, -(1 << 40)] {
            // As if the counter had been off by that much until now.
            let mut calibrator = Calibrator { kernel: Kernel::new(), first: ZERO, last: ZERO };
            let now = Sample::take(&calibrator.kernel);
            let before = Sample { ticks: now.ticks.wrapping_add_signed(shift), ns: now.ns };
            (calibrator.first, calibrator.last) = (before, before);
            let slope = SLOPE_MAX / 2_600;
            let shown = calibrator.kernel.now_us();
            let next =
                calibrator.calibrate(Some(Calibration { at: before.ticks, us: shown, slope }));
            assert!(
                next.at.abs_diff(now.ticks) < 1 << 32,
                "it continues from the counter as it is"
            );
            assert!(next.us >= shown && next.slope > slope - slope / 4, "{}", next.slope);
        }
    }

    const ZERO: Sample = Sample { ticks: 0, ns: 0 };

    #[test]
    fn no_calibration_leads_beyond_the_last_time() {
        let shared = SharedCalibration { at: BEING_WRITTEN.into(), us: 0.into(), slope: 0.into() };
        shared.set(Calibration { at: 0, us: u64::MAX, slope: u64::MAX });
        let calibration = shared.get().unwrap();
        assert_eq!(calibration.us, START_MAX);
        assert!(calibration.us_soon_after(CALIBRATION_TICKS) <= Micros::MAX.get());
        assert_eq!(
            calibration.us_soon_after(CALIBRATION_TICKS),
            calibration.us_at(CALIBRATION_TICKS)
        );
    }

    #[test]
    fn a_counter_that_is_behind_shows_that_no_time_has_passed() {
        let calibration = Calibration { at: 1_000, us: 77, slope: u64::MAX };
        assert_eq!(calibration.us_at(999), 77);
    }
}
