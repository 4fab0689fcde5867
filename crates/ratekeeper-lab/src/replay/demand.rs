//! How much is demanded, at several time scales.

use serde::Serialize;

use crate::histogram::Histogram;

/// The time scales in seconds. Each divides the next, so that the windows of one are those of the one before, added up.
pub const SCALES_SECS: [u64; SCALES] = [1, 10, 60, 600, 3_600];

const SCALES: usize = 5;

/// The cost in the current window of each time scale.
#[derive(Clone, Debug, Default)]
struct Windows {
    second: u64,
    current: [u32; SCALES],
}

impl Windows {
    /// Adds a cost. Calls `ended` with each window that has ended: its scale, its start as a number of windows, and its cost.
    fn add(&mut self, second: u64, cost: u64, ended: impl FnMut(usize, u64, u64)) {
        if second != self.second {
            self.end(second, ended);
            self.second = second;
        }
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.current[0] = self.current[0].saturating_add(cost);
    }

    /// Ends the windows that a later second is not in.
    fn end(&mut self, second: u64, mut ended: impl FnMut(usize, u64, u64)) {
        for (scale, secs) in SCALES_SECS.into_iter().enumerate() {
            let window = self.second / secs;
            if second / secs == window {
                return;
            }
            let cost = std::mem::take(&mut self.current[scale]);
            if cost == 0 {
                continue;
            }
            ended(scale, window, u64::from(cost));
            if let Some(longer) = self.current.get_mut(scale + 1) {
                *longer = longer.saturating_add(cost);
            }
        }
    }
}

/// The busiest window of a key at each time scale.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyDemand {
    windows: Windows,
    peaks: [u32; SCALES],
}

impl KeyDemand {
    pub(super) fn add(&mut self, second: u64, cost: u64) {
        let Self { windows, peaks } = self;
        windows.add(second, cost, |scale, _, cost| {
            peaks[scale] = peaks[scale].max(cost as u32);
        });
    }

    pub(super) fn peaks(&self) -> [u64; SCALES] {
        let mut last = self.clone();
        last.add(u64::MAX, 0);
        last.peaks.map(u64::from)
    }
}

/// The demand of all keys together: how many windows had how much.
#[derive(Debug, Default)]
pub(super) struct TotalDemand {
    windows: Windows,
    histograms: [Histogram; SCALES],
    /// The first window and the one after the last that was counted.
    counted: [Option<(u64, u64)>; SCALES],
}

impl TotalDemand {
    pub(super) fn add(&mut self, second: u64, cost: u64) {
        let Self { windows, histograms, counted } = self;
        windows.add(second, cost, |scale, window, cost| {
            // Windows without a request count too.
            let first = counted[scale].map_or(window, |(first, next)| {
                histograms[scale].add_n(0, window.saturating_sub(next));
                first
            });
            histograms[scale].add(cost);
            counted[scale] = Some((first, window + 1));
        });
    }

    pub(super) fn finish(&mut self) -> Vec<Demand> {
        self.add(u64::MAX, 0);
        let scales = self.histograms.iter().enumerate();
        scales.map(|(scale, histogram)| Demand::of(scale, histogram)).collect()
    }
}

/// The demand at one time scale.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Demand {
    /// The length of a window in seconds.
    pub window_secs: u64,
    /// Half of the windows, or keys, have at most this.
    pub p50: u64,
    /// 95% have at most this.
    pub p95: u64,
    /// 99% have at most this.
    pub p99: u64,
    /// The most.
    pub max: u64,
}

impl Demand {
    fn of(scale: usize, histogram: &Histogram) -> Self {
        Self {
            window_secs: SCALES_SECS[scale],
            p50: histogram.quantile(50),
            p95: histogram.quantile(95),
            p99: histogram.quantile(99),
            max: histogram.max(),
        }
    }

    /// Returns the distribution of the busiest windows of keys.
    pub(super) fn of_keys(keys: impl Iterator<Item = [u64; SCALES]>) -> Vec<Self> {
        let mut histograms: [Histogram; SCALES] = Default::default();
        for peaks in keys {
            histograms.iter_mut().zip(peaks).for_each(|(histogram, peak)| histogram.add(peak));
        }
        histograms.iter().enumerate().map(|(scale, histogram)| Self::of(scale, histogram)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_window_is_found_at_every_scale() {
        let mut demand = KeyDemand::default();
        // 3 in a second, 5 in ten seconds, 6 in a minute, 8 in an hour.
        let seconds = [0, 0, 0, 8, 9, 30, 700, 3_599, 3_600];
        seconds.iter().for_each(|second| demand.add(1_000_000_800 + second, 1));
        assert_eq!(demand.peaks(), [3, 5, 6, 6, 8]);
        assert_eq!(demand.peaks(), [3, 5, 6, 6, 8]);
    }

    #[test]
    fn windows_without_requests_count() {
        let mut demand = TotalDemand::default();
        (0..10).for_each(|_| demand.add(100, 2));
        demand.add(199, 7);
        let all = demand.finish();
        assert_eq!((all[0].p50, all[0].p99, all[0].max), (0, 7, 20));
        assert_eq!((all[2].p50, all[2].max), (7, 20), "minutes of 20, 0 and 7");
        assert_eq!((all[4].p50, all[4].max), (27, 27));
    }
}
