//! Calendar periods: the hours, days, weeks and months of a time zone, and billing months.
//!
//! Their windows follow each other without gap or overlap, but differ in length: a day with a DST change has
//! 23 or 25 hours. Time zones come from a database that is compiled in (feature `calendar`), so that nothing
//! is read from the machine and every node of one version has the same windows.

#[cfg(not(feature = "calendar"))]
mod disabled;
#[cfg(feature = "calendar")]
mod time_zone;
#[cfg(feature = "calendar")]
mod window_function;
#[cfg(feature = "calendar")]
mod windows;

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::suggest::quoted_list;

#[cfg(not(feature = "calendar"))]
pub(crate) use disabled::CalendarWindows;
#[cfg(not(feature = "calendar"))]
pub use disabled::TimeZone;
#[cfg(feature = "calendar")]
pub use time_zone::TimeZone;
#[cfg(feature = "calendar")]
pub(crate) use windows::CalendarWindows;

const HOUR_SECS: u64 = 3_600;
const DAY_SECS: u64 = 24 * HOUR_SECS;
/// How much longer than usual clock changes can make a day: by 7 hours at Vostok in 1994. A test checks all time
/// zones.
const CLOCK_CHANGES_SECS: u64 = 8 * HOUR_SECS;

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From one full hour of the local clock to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday, as in ISO 8601.
    Week,
    /// From the first day of a month, or another given day, to the next one.
    Month,
}

impl CalendarUnit {
    /// All units.
    pub const ALL: [Self; 4] = [Self::Hour, Self::Day, Self::Week, Self::Month];

    /// Returns the name, as written in a rate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// Returns the usual length. A month counts as 30 days.
    #[must_use]
    pub const fn usual_length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Hour => HOUR_SECS,
            Self::Day => DAY_SECS,
            Self::Week => 7 * DAY_SECS,
            Self::Month => 30 * DAY_SECS,
        })
    }

    /// Returns a length that no window of the unit exceeds.
    #[must_use]
    pub const fn greatest_length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Hour => 2 * HOUR_SECS,
            Self::Day => DAY_SECS + CLOCK_CHANGES_SECS,
            Self::Week => 7 * DAY_SECS + CLOCK_CHANGES_SECS,
            Self::Month => 31 * DAY_SECS + CLOCK_CHANGES_SECS,
        })
    }
}

/// A period of the calendar in a time zone.
///
/// ```
/// # #[cfg(feature = "calendar")] {
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::{CalendarPeriod, CalendarUnit, Micros, TimeZone};
///
/// let day = CalendarPeriod::new(CalendarUnit::Day, TimeZone::named("Europe/Berlin")?);
/// // 2026-03-29 at noon; summer time began at 2:00.
/// let window = day.window_of(Micros::new(1_774_778_400_000_000));
/// assert_eq!(window.end.since(window.start).as_secs(), 23 * 3_600);
/// assert_eq!(day.to_string(), "calendar day in Europe/Berlin");
/// # }
/// # Ok::<(), ratekeeper_core::CalendarError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarPeriod {
    unit: CalendarUnit,
    /// The day on which a month begins; 1 for the other units.
    first_day: u8,
    zone: TimeZone,
}

impl CalendarPeriod {
    /// Returns the period of this unit in this time zone.
    #[must_use]
    pub const fn new(unit: CalendarUnit, zone: TimeZone) -> Self {
        Self { unit, first_day: 1, zone }
    }

    /// Returns a billing month, which begins on this day. In a month that lacks the day, it begins on the last
    /// day.
    ///
    /// # Errors
    /// If the unit is not a month, or no month has the day.
    pub fn from_day(self, day: u64) -> Result<Self, CalendarError> {
        if self.unit != CalendarUnit::Month {
            return Err(CalendarError::FirstDayOf(self.unit));
        }
        match u8::try_from(day) {
            Ok(first_day @ 1..=31) => Ok(Self { first_day, ..self }),
            _ => Err(CalendarError::FirstDay(day)),
        }
    }

    /// Returns the unit.
    #[must_use]
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// Returns the day on which a month begins; 1 for the other units.
    #[must_use]
    pub const fn first_day(&self) -> u8 {
        self.first_day
    }

    /// Returns the time zone.
    #[must_use]
    pub const fn zone(&self) -> TimeZone {
        self.zone
    }
}

impl fmt::Display for CalendarPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "calendar {}", self.unit.name())?;
        if self.first_day > 1 {
            write!(f, " from day {}", self.first_day)?;
        }
        match self.zone.name() {
            UTC => Ok(()),
            name => write!(f, " in {name}"),
        }
    }
}

/// The time zone of a calendar period without one.
pub(crate) const UTC: &str = "UTC";

/// Why a calendar period is invalid, and what would work instead.
///
/// ```
/// # #[cfg(feature = "calendar")] {
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::TimeZone;
///
/// let error = TimeZone::named("Europe/Berln").unwrap_err();
/// assert_eq!(error.to_string(), "unknown time zone \"Europe/Berln\"; did you mean \"Europe/Berlin\"?");
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CalendarError {
    /// The crate is built without time zones.
    Disabled,
    /// No time zone has this name.
    UnknownTimeZone {
        /// The name.
        name: String,
        /// The names that were probably meant.
        near: alloc::vec::Vec<&'static str>,
    },
    /// A day other than the first was given for something that is not a month.
    FirstDayOf(CalendarUnit),
    /// No month has this day.
    FirstDay(u64),
}

impl fmt::Display for CalendarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str(
                "calendar periods need the feature \"calendar\" of the crate; without it, use a period such as 24h",
            ),
            Self::UnknownTimeZone { name, near } if near.is_empty() => write!(
                f,
                "unknown time zone \"{name}\"; use a name of the IANA database, such as Europe/Berlin, or UTC"
            ),
            Self::UnknownTimeZone { name, near } => {
                write!(f, "unknown time zone \"{name}\"; did you mean {}?", quoted_list(near))
            }
            Self::FirstDayOf(unit) => {
                write!(f, "only a calendar month begins on a given day, not a calendar {}", unit.name())
            }
            Self::FirstDay(day) => {
                write!(f, "no month has a day {day}; a billing month begins on day 1 to 31")
            }
        }
    }
}

impl core::error::Error for CalendarError {}
