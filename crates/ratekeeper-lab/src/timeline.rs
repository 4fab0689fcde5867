//! Admissions and denials over time, for a duration that is not known in advance.
//!
//! There is a bounded number of slots. Their width grows with time and divides the width of the columns of
//! a report.

use crate::round;

/// Maximum number of slots.
const SLOTS_MAX: u64 = 6_000;
/// The largest maximum of columns: with more, a column could be narrower than two slots.
pub(crate) const COLUMNS_LIMIT: u64 = 500;

#[derive(Debug)]
pub(crate) struct Timeline {
    width_us: u64,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    admitted: u64,
    denied: u64,
}

/// Requests over time, in columns of equal width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The width of one column in microseconds.
    pub width_us: u64,
    /// The number of admitted requests in each column.
    pub admitted: Vec<u64>,
    /// The number of denied requests in each column.
    pub denied: Vec<u64>,
}

impl Columns {
    /// Returns the number of requests in each column.
    #[must_use]
    pub fn offered(&self) -> Vec<u64> {
        self.admitted.iter().zip(&self.denied).map(|(admitted, denied)| admitted + denied).collect()
    }
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self { width_us: 1, slots: Vec::new() }
    }

    /// Counts one request, `after_us` from the start.
    pub(crate) fn add(&mut self, after_us: u64, is_admitted: bool) {
        while after_us / self.width_us >= SLOTS_MAX {
            self.coarsen();
        }
        let index = (after_us / self.width_us) as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::default());
        }
        let slot = &mut self.slots[index];
        *(if is_admitted { &mut slot.admitted } else { &mut slot.denied }) += 1;
    }

    /// Returns the first `span_us` in at most `columns_max` columns of a round width.
    pub(crate) fn columns(&self, span_us: u64, columns_max: u64) -> Columns {
        let columns_max = columns_max.clamp(1, COLUMNS_LIMIT);
        let width_us = round::duration_us(span_us.div_ceil(columns_max));
        let len = span_us.div_ceil(width_us).max(1) as usize;
        let (mut admitted, mut denied) = (vec![0; len], vec![0; len]);
        for (slot, start_us) in self.slots.iter().zip((0..).step_by(self.width_us as usize)) {
            let column = ((start_us / width_us) as usize).min(len - 1);
            admitted[column] += slot.admitted;
            denied[column] += slot.denied;
        }
        Columns { width_us, admitted, denied }
    }

    fn coarsen(&mut self) {
        let wider_us = round::nested_durations_us().find(|us| *us > self.width_us);
        let wider_us = wider_us.expect("slots of 50 million days cover all times");
        let factor = (wider_us / self.width_us) as usize;
        let merge = |slots: &[Slot]| Slot {
            admitted: slots.iter().map(|slot| slot.admitted).sum(),
            denied: slots.iter().map(|slot| slot.denied).sum(),
        };
        self.slots = self.slots.chunks(factor).map(merge).collect();
        self.width_us = wider_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_stay_the_same_as_slots_get_wider() {
        let mut timeline = Timeline::new();
        (0..10_000).for_each(|n| timeline.add(n * 997, n % 3 == 0));
        let columns = timeline.columns(9_997 * 1_000, 60);
        assert_eq!(columns.width_us, 200_000);
        assert_eq!(columns.offered().iter().sum::<u64>(), 10_000);
        assert_eq!(columns.admitted.iter().sum::<u64>(), 3_334);
        assert_eq!(columns.admitted.len(), 50);
    }

    #[test]
    fn columns_consist_of_whole_slots() {
        let spans_us = (0..16).flat_map(|power| (1..100).map(move |n| n * 10u64.pow(power)));
        for (span_us, columns_max) in spans_us.flat_map(|us| [34, 60, 500].map(|max| (us, max))) {
            let mut timeline = Timeline::new();
            timeline.add(span_us - 1, true);
            let columns = timeline.columns(span_us, columns_max);
            assert!(columns.width_us.is_multiple_of(timeline.width_us), "{span_us}");
            assert!((1..=columns_max).contains(&(columns.admitted.len() as u64)), "{span_us}");
            assert_eq!(columns.admitted.last(), Some(&1), "{span_us}");
        }
    }
}
