//! Quantiles of delays, in a fixed amount of memory.
//!
//! Delays are counted in ranges whose width is a 1024th of their size. A range stands for the
//! longest delay that fell into it, so a quantile is a delay that did occur, and too long by 0.1%
//! at most.

const STEP_BITS: u32 = 10;
const STEPS: usize = 1 << STEP_BITS;

#[derive(Debug, Default)]
pub(crate) struct Delays {
    ranges: Vec<Range>,
    total: u64,
    max_us: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Range {
    count: u64,
    max_us: u64,
}

impl Delays {
    pub(crate) fn add(&mut self, us: u64) {
        let index = range_of(us);
        if index >= self.ranges.len() {
            self.ranges.resize(index + 1, Range::default());
        }
        let range = &mut self.ranges[index];
        range.count += 1;
        range.max_us = range.max_us.max(us);
        self.total += 1;
        self.max_us = self.max_us.max(us);
    }

    pub(crate) fn max_us(&self) -> u64 {
        self.max_us
    }

    /// What `percent` of the delays do not exceed.
    pub(crate) fn quantile_us(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.total) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let range = self.ranges.iter().find(|range| {
            seen += u128::from(range.count);
            range.count > 0 && seen >= wanted
        });
        range.map_or(0, |range| range.max_us)
    }
}

fn range_of(us: u64) -> usize {
    if us < STEPS as u64 {
        return us as usize;
    }
    let shift = 63 - STEP_BITS - us.leading_zeros();
    shift as usize * STEPS + (us >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_each_other_and_are_narrow() {
        let mut start_us = 0u64;
        for us in 1..3_000_000u64 {
            match range_of(us) - range_of(us - 1) {
                0 => assert!((us - start_us) * 1_024 <= us, "{start_us} to {us}"),
                1 => start_us = us,
                _ => panic!("a gap at {us}"),
            }
        }
        assert!(range_of(u64::MAX) < 64 * STEPS);
    }

    #[test]
    fn quantiles_are_near_the_true_ones() {
        let mut delays = Delays::default();
        (1..=1_000).for_each(|n| delays.add(n * 1_000));
        assert!((500_000..=500_500).contains(&delays.quantile_us(50)));
        assert!((990_000..=991_000).contains(&delays.quantile_us(99)));
        assert_eq!(delays.quantile_us(100), 1_000_000);
        assert_eq!(Delays::default().quantile_us(50), 0);
    }
}
