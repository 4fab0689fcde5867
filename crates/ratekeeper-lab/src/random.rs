//! A deterministic random number generator (splitmix64).

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns one of `0..n`, with almost equal probability.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Returns an exponentially distributed number with mean 1.
    pub(crate) fn gap(&mut self) -> f64 {
        let above_zero = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -above_zero.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [random.next(), random.next(), random.next()];
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn gaps_have_a_mean_of_one() {
        let mut random = Random::new(1);
        let sum: f64 = (0..100_000).map(|_| random.gap()).sum();
        assert!((sum / 100_000.0 - 1.0).abs() < 0.02, "{sum}");
    }
}
