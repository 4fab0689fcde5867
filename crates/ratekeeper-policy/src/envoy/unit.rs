//! Units of time of the rate limit protocol.

use std::time::Duration;

use ratekeeper_core::CalendarUnit;

const DAY_SECS: u64 = 86_400;

/// A unit of time. A month has 30 days, a year 365.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// All units, in ascending order.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the name used in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the unit with that name, ignoring case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Returns the length of the unit.
    #[must_use]
    pub fn period(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY_SECS,
            Self::Week => 7 * DAY_SECS,
            Self::Month => 30 * DAY_SECS,
            Self::Year => 365 * DAY_SECS,
        })
    }

    /// Returns the unit with that length.
    #[must_use]
    pub fn of(period: Duration) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.period() == period)
    }

    /// Returns the unit of the calendar, if it is one whose length or start depends on the time zone.
    #[must_use]
    pub fn of_calendar(self) -> Option<CalendarUnit> {
        match self {
            Self::Hour => Some(CalendarUnit::Hour),
            Self::Day => Some(CalendarUnit::Day),
            Self::Week => Some(CalendarUnit::Week),
            Self::Month => Some(CalendarUnit::Month),
            Self::Second | Self::Minute | Self::Year => None,
        }
    }

    /// Returns the protobuf enum value.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Second => 1,
            Self::Minute => 2,
            Self::Hour => 3,
            Self::Day => 4,
            Self::Month => 5,
            Self::Year => 6,
            Self::Week => 7,
        }
    }

    /// Returns the unit with that protobuf enum value.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.number() == number)
    }
}
