//! What a request is charged: a whole number, at least 1.

use core::fmt;
use core::num::NonZeroU64;

/// What one request costs. Never 0: a request that costs nothing is a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// The cost of an ordinary request.
    pub const ONE: Cost = Cost(NonZeroU64::MIN);

    /// A cost of `n`, or `None` for 0.
    pub const fn new(n: u64) -> Option<Self> {
        match NonZeroU64::new(n) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// A cost written in the code, as in `Cost::of(5)`.
    ///
    /// # Panics
    /// If it is 0. For a number that comes from elsewhere there is [`Cost::new`].
    #[track_caller]
    pub const fn of(n: u64) -> Self {
        match Self::new(n) {
            Some(cost) => cost,
            None => panic!("a cost must be at least 1; to look without charging, peek"),
        }
    }

    /// The cost as a number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u64> for Cost {
    type Error = ZeroCost;

    fn try_from(n: u64) -> Result<Self, ZeroCost> {
        Self::new(n).ok_or(ZeroCost)
    }
}

/// A cost of 0 was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCost;

impl fmt::Display for ZeroCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cost must be at least 1; to look without charging, peek")
    }
}

impl core::error::Error for ZeroCost {}
