//! Bounds on what an algorithm proposes.

use std::time::Duration;

use super::{Bounds, Window};

/// The limit is at most so many times what is in flight.
const IN_FLIGHT_FACTOR: f64 = 5.0;
/// How much of the peak in flight a window forgets.
const PEAK_DECAY: f64 = 1.0 / 16.0;
/// Growth is judged after the requests in flight grew by this factor.
const GROWTH: f64 = 2.5;
/// What that growth has to bring in throughput.
const THROUGHPUT_GROWTH: f64 = 1.1;
/// The least growth of latency that is queueing, as a share of the growth of requests in flight.
const LATENCY_SHARE: f64 = 0.5;
/// So many windows in a row have to show that growth brings nothing: one is noise.
const IN_VAIN: u32 = 3;
/// How long growth stops after it brought nothing.
const PAUSE_US: u64 = 10_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Guards {
    /// The recent peak of requests in flight.
    peak: f64,
    /// Where growth began.
    base: Option<Reached>,
    /// Consecutive windows in which growth had brought nothing.
    in_vain: u32,
    /// Until when growth is paused.
    paused_until_us: u64,
}

/// A window in which the limit was reached.
#[derive(Clone, Copy, Debug)]
struct Reached {
    in_flight: f64,
    throughput: f64,
    latency: f64,
    limit: f64,
}

impl Guards {
    pub(super) fn apply(
        &mut self,
        limit: f64,
        proposed: f64,
        window: &Window,
        bounds: Bounds,
    ) -> f64 {
        self.peak = (self.peak * (1.0 - PEAK_DECAY)).max(f64::from(window.in_flight_peak));
        let proposed = if proposed.is_finite() { proposed.max(limit / 2.0) } else { limit };
        let is_limited = window.reached(limit as u32);
        let grown = if proposed <= limit {
            proposed
        } else if is_limited {
            self.grow(limit, proposed, window)
        } else {
            limit
        };
        if self.base.is_some_and(|base| grown < base.limit) {
            self.base = None;
            self.in_vain = 0;
        }
        grown.min((IN_FLIGHT_FACTOR * self.peak).max(f64::from(bounds.initial)))
    }

    fn grow(&mut self, limit: f64, proposed: f64, window: &Window) -> f64 {
        let now_us = window.now.get();
        let here = Reached {
            in_flight: window.in_flight_mean,
            throughput: window.throughput(),
            latency: window.latency_typical.as_secs_f64(),
            limit,
        };
        let base = *self.base.get_or_insert(here);
        if here.in_flight >= base.in_flight * GROWTH {
            let growth = here.in_flight / base.in_flight - 1.0;
            let is_worth = here.throughput >= base.throughput * THROUGHPUT_GROWTH;
            // The throughput of one window is noisy; without queueing it is only noise.
            let is_slower = here.latency >= base.latency * (1.0 + growth * LATENCY_SHARE);
            self.in_vain = if !is_worth && is_slower { self.in_vain + 1 } else { 0 };
            if self.in_vain == IN_VAIN {
                self.in_vain = 0;
                self.base = None;
                self.paused_until_us = now_us.saturating_add(PAUSE_US);
                return base.limit;
            }
            if self.in_vain == 0 {
                self.base = Some(here);
            }
        }
        if now_us < self.paused_until_us { limit } else { proposed }
    }
}

/// A latency that 90% of the requests should not exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target(pub(super) Duration);

impl Target {
    /// Windows with fewer samples are too noisy.
    const SAMPLES_MIN: u64 = 20;
    /// The limit does not grow above this share of the target.
    const CLOSE: f64 = 0.9;
    /// What a window leaves of the limit at least.
    const SHRINK_MAX: f64 = 0.7;

    pub(super) fn bound(self, limit: f64, proposed: f64, window: &Window) -> f64 {
        if window.samples < Self::SAMPLES_MIN {
            return proposed;
        }
        let used = window.latency_p90.as_secs_f64() / self.0.as_secs_f64();
        if used > 1.0 {
            proposed.min(limit * (1.0 / used).max(Self::SHRINK_MAX))
        } else if used > Self::CLOSE {
            proposed.min(limit)
        } else {
            proposed
        }
    }
}
