//! The keys of a workload, in order.
//!
//! The requests are in memory in the order in which they are sent, because a server has just read the key
//! of a request when it calls the limiter. So the limiter is measured, not cache misses of strings.

/// A way of choosing keys.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub keys: usize,
    skew: Option<f64>,
}

pub const WORKLOADS: [Workload; 4] = [
    Workload { name: "1 hot key", keys: 1, skew: None },
    Workload { name: "1,000 keys", keys: 1_000, skew: None },
    Workload { name: "1M uniform", keys: 1_000_000, skew: None },
    Workload { name: "1M zipf", keys: 1_000_000, skew: Some(1.0) },
];

impl Workload {
    /// Every key once.
    pub fn all_keys(&self) -> Vec<String> {
        (0..self.keys).map(|i| format!("user:{i}")).collect()
    }

    /// Returns the requests, the same for all contenders; few if the keys are few, so that they stay in cache.
    pub fn requests(&self) -> Vec<String> {
        let mut random = SplitMix(42);
        let cumulative = self.skew.map(|skew| {
            let weights = (1..=self.keys).scan(0.0, |sum, rank| {
                *sum += 1.0 / (rank as f64).powf(skew);
                Some(*sum)
            });
            weights.collect::<Vec<f64>>()
        });
        // Popular keys are spread over the whole range, as in practice.
        let spread = |rank: usize| (rank as u64 * 7_919 % self.keys as u64) as u32;
        let pick = |random: &mut SplitMix| match &cumulative {
            None => (random.next() % self.keys as u64) as u32,
            Some(cumulative) => {
                let total = cumulative[self.keys - 1];
                let at = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * total;
                spread(cumulative.partition_point(|sum| *sum < at))
            }
        };
        let len = match self.keys {
            1 => 64,
            1_000 => 4_096,
            _ => 1 << 20,
        };
        (0..len).map(|_| format!("user:{}", pick(&mut random))).collect()
    }
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
