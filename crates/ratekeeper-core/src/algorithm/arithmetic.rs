//! Exact integer arithmetic: 128-bit products, and division by a divisor that is known in advance.

/// `n / d` rounded down. Most numerators fit 64 bits, where the division is several times faster.
#[inline]
pub(super) fn div_floor(n: u128, d: u64) -> u64 {
    match u64::try_from(n) {
        Ok(n) => n / d,
        Err(_) => (n / u128::from(d)) as u64,
    }
}

/// A divisor with a precomputed inverse: it divides by multiplying, and exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    d: u64,
    /// 2^64 / d, rounded down.
    inverse: u64,
}

impl Divisor {
    pub(super) fn new(d: u64) -> Self {
        let inverse = u64::try_from((1u128 << 64) / u128::from(d)).unwrap_or(u64::MAX);
        Self { d, inverse }
    }

    #[inline]
    pub(super) fn get(self) -> u64 {
        self.d
    }

    /// `n / d` rounded down.
    #[inline]
    pub(super) fn div_floor(self, n: u128) -> u64 {
        match u64::try_from(n) {
            Ok(n) => self.div(n),
            Err(_) => (n / u128::from(self.d)) as u64,
        }
    }

    /// `n / d` rounded up.
    #[inline]
    pub(super) fn div_ceil(self, n: u128) -> u64 {
        self.div_floor(n + u128::from(self.d - 1))
    }

    /// `n / d` rounded up, for 64 bits. It has no branch that can panic, so that the compiler
    /// removes the division if the caller ignores the result.
    #[inline]
    pub(super) fn div_ceil_64(self, n: u64) -> u64 {
        let (quotient, remainder) = self.quotient_and_remainder(n);
        quotient + u64::from(remainder > 0)
    }

    #[inline]
    fn div(self, n: u64) -> u64 {
        self.quotient_and_remainder(n).0
    }

    /// `n % d`.
    #[inline]
    pub(super) fn remainder(self, n: u64) -> u64 {
        self.quotient_and_remainder(n).1
    }

    #[inline]
    fn quotient_and_remainder(self, n: u64) -> (u64, u64) {
        // The inverse is rounded down by less than one, so the quotient is too small by at most
        // one.
        let quotient = (product(n, self.inverse) >> 64) as u64;
        let remainder = n - quotient * self.d;
        if remainder < self.d { (quotient, remainder) } else { (quotient + 1, remainder - self.d) }
    }
}

/// The exact product of two 64-bit numbers.
#[inline]
pub(super) fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers of every bit length, and the neighbours of the powers of two.
    fn numbers() -> impl Iterator<Item = u64> + Clone {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let any = (0..64).map(move |size| {
            random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ random >> 31;
            random >> size
        });
        let edges = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        any.chain(edges).chain([u64::MAX])
    }

    #[test]
    fn a_divisor_agrees_with_the_division_operator() {
        for d in numbers().filter(|d| *d > 0) {
            let divisor = Divisor::new(d);
            for n in numbers() {
                assert_eq!(divisor.div(n), n / d, "{n} / {d}");
                assert_eq!(divisor.remainder(n), n % d, "{n} % {d}");
                assert_eq!(divisor.div_ceil_64(n), n.div_ceil(d), "{n} / {d}, rounded up");
                assert_eq!(divisor.div_ceil(n.into()), n.div_ceil(d), "{n} / {d}, rounded up");
                // Multiples of the divisor and their predecessors, where a rounding error would
                // show.
                let multiple = n / d * d;
                assert_eq!(divisor.div(multiple), n / d, "{multiple} / {d}");
                assert_eq!(divisor.div(multiple.saturating_sub(1)), multiple.saturating_sub(1) / d);
            }
        }
    }
}
