//! Without the feature `calendar` there is no time zone, and so no calendar period.

use core::convert::Infallible;
use core::ops::Range;
use core::time::Duration;

use super::{CalendarError, CalendarPeriod};
use crate::algorithm::{LocatedCounts, WindowFunction, WindowTime};
use crate::cell::{Cell, Ttl};
use crate::time::Micros;

/// A time zone. There is none without the feature `calendar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeZone(Infallible);

impl TimeZone {
    /// Returns an error: time zones need the feature `calendar`.
    ///
    /// # Errors
    /// Always.
    pub fn named(_name: &str) -> Result<Self, CalendarError> {
        Err(CalendarError::Disabled)
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.0 {}
    }
}

impl CalendarPeriod {
    /// Returns the window that contains a time.
    #[must_use]
    pub fn window_of(&self, _at: Micros) -> Range<Micros> {
        match self.zone.0 {}
    }
}

/// The windows of a calendar period.
#[derive(Clone, Debug)]
pub struct CalendarWindows(Infallible);

impl CalendarWindows {
    pub(crate) fn new(period: CalendarPeriod) -> Self {
        match period.zone.0 {}
    }

    pub(crate) fn last_length(&self) -> Duration {
        match self.0 {}
    }

    pub(crate) fn bounds_around(&self, _at: u64) -> [u64; 4] {
        match self.0 {}
    }
}

impl WindowFunction for CalendarWindows {
    fn time(&self, _us: u64) -> WindowTime {
        match self.0 {}
    }

    fn end(&self, _start: u64) -> u64 {
        match self.0 {}
    }

    fn ttl(&self) -> Ttl {
        match self.0 {}
    }

    fn locate(&self, _cell: Cell, _now: WindowTime) -> LocatedCounts {
        match self.0 {}
    }
}
