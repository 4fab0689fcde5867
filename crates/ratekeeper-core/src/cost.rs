//! The cost of a request: a whole number, at least 1.

use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};

/// The cost of one request. Never 0: to look without charging, use `peek`.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::Cost;
///
/// const EXPORT: Cost = Cost::of(25);
/// assert_eq!(EXPORT.get(), 25);
/// assert_eq!(Cost::new(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// The cost of an ordinary request.
    pub const ONE: Cost = Cost(NonZeroU64::MIN);

    /// Returns a cost of `n`, or `None` for 0.
    #[must_use]
    pub const fn new(n: u64) -> Option<Self> {
        match NonZeroU64::new(n) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// Returns a cost of `n`, for constants such as `Cost::of(5)`. For other numbers, use
    /// [`Cost::new`].
    ///
    /// # Panics
    /// If `n` is 0.
    #[track_caller]
    #[must_use]
    pub const fn of(n: u64) -> Self {
        match Self::new(n) {
            Some(cost) => cost,
            None => panic!("a cost must be at least 1; to look without charging, use `peek`"),
        }
    }

    /// Returns the cost as a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// What can be the cost of a request: a [`Cost`], or a number whose type excludes 0.
///
/// ```
/// use std::num::NonZeroU64;
///
/// use ratekeeper_core::{Cost, IntoCost};
///
/// assert_eq!(Cost::of(5).into_cost(), NonZeroU64::new(5).unwrap().into_cost());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cost",
    label = "a cost is a whole number of at least 1",
    note = "for a constant, use `Cost::of(5)`; for a number that may be 0, `Cost::new(n)`, which returns an `Option`"
)]
pub trait IntoCost {
    /// Returns the cost.
    fn into_cost(self) -> Cost;
}

impl IntoCost for Cost {
    #[inline]
    fn into_cost(self) -> Cost {
        self
    }
}

impl IntoCost for NonZeroU64 {
    #[inline]
    fn into_cost(self) -> Cost {
        Cost(self)
    }
}

impl IntoCost for NonZeroU32 {
    #[inline]
    fn into_cost(self) -> Cost {
        Cost(self.into())
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

/// The error of converting 0 to a [`Cost`].
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{Cost, ZeroCost};
///
/// assert_eq!(Cost::try_from(0), Err(ZeroCost));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCost;

impl fmt::Display for ZeroCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cost must be at least 1; to look without charging, use `peek`")
    }
}

impl core::error::Error for ZeroCost {}
