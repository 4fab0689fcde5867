//! Rates and their text form: `100/minute`, `5/s burst 10`, `1000 per 2h`, `1000/calendar day`.

mod parser;

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use crate::calendar::CalendarPeriod;
use parser::{EXPECTED_DURATION, Kind, Parser};

/// The largest count, and the largest burst.
pub(crate) const COUNT_MAX: u64 = u32::MAX as u64;
/// The longest period: ten years of 365 days.
pub(crate) const PERIOD_MAX_US: u64 = 10 * 365 * DAY_US;

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 86_400 * SECOND_US;

/// The units of a period: names, of which the first one is printed, and length in microseconds.
const UNITS: &[(&[&str], u64)] = &[
    (&["ms"], 1_000),
    (&["s", "sec", "second", "seconds"], SECOND_US),
    (&["m", "min", "minute", "minutes"], 60 * SECOND_US),
    (&["h", "hour", "hours"], 3_600 * SECOND_US),
    (&["d", "day", "days"], DAY_US),
    (&["week", "weeks"], 7 * DAY_US),
    (&["month", "months"], 30 * DAY_US),
    (&["year", "years"], 365 * DAY_US),
];

/// The units, as an error lists them.
const UNITS_TEXT: &str = "ms, s, m, h, d, week, month or year";

/// A count per period and, for token and leaky buckets, a burst.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::Rate;
///
/// let rate: Rate = "1000 per 2h burst 50".parse()?;
/// assert_eq!(rate.count(), 1000);
/// assert_eq!(rate.period().as_secs(), 7200);
/// assert_eq!(rate.to_string(), "1000/2h burst 50");
///
/// let error = "100/fortnight".parse::<Rate>().unwrap_err();
/// assert_eq!(error.span(), 4..13);
/// # Ok::<(), ratekeeper_core::RateError>(())
/// ```
///
/// With the feature `calendar`, the period can be one of the calendar, in a time zone:
/// ```
/// # #[cfg(feature = "calendar")] {
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::Rate;
///
/// let rate: Rate = "1000/calendar month from day 15 in Europe/Berlin".parse()?;
/// assert_eq!(rate.calendar().map(|period| period.first_day()), Some(15));
/// # }
/// # Ok::<(), ratekeeper_core::RateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    period: Period,
    burst: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Period {
    Micros(u64),
    Calendar(CalendarPeriod),
}

impl Rate {
    /// Returns the rate of `count` per `period`.
    ///
    /// # Errors
    /// If either is 0 or too large, or the period is not whole microseconds.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// # use ratekeeper_core as ratekeeper;
    /// use ratekeeper::Rate;
    ///
    /// let rate = Rate::new(5, Duration::from_secs(1))?.with_burst(10)?;
    /// assert_eq!(rate, "5/s burst 10".parse()?);
    /// # Ok::<(), ratekeeper_core::RateError>(())
    /// ```
    pub fn new(count: u64, period: core::time::Duration) -> Result<Self, RateError> {
        let text = || format!("{count}/{period:?}");
        let count = checked_count("count", count)
            .map_err(|message| RateError::of_whole_text(text(), message))?;
        let period_us = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        if !period.subsec_nanos().is_multiple_of(1_000) {
            return Err(RateError::of_whole_text(
                text(),
                "the period must be a whole number of microseconds".into(),
            ));
        }
        check_period("period", period_us)
            .map_err(|message| RateError::of_whole_text(text(), message))?;
        Ok(Self { count, period: Period::Micros(period_us), burst: None })
    }

    /// Returns the rate of `count` per period of the calendar.
    ///
    /// # Errors
    /// If the count is 0 or too large.
    pub fn per_calendar(count: u64, period: CalendarPeriod) -> Result<Self, RateError> {
        let text = || format!("{count}/{period}");
        let count = checked_count("count", count)
            .map_err(|message| RateError::of_whole_text(text(), message))?;
        Ok(Self { count, period: Period::Calendar(period), burst: None })
    }

    /// Returns the rate of `count` in the period of this one, without a burst.
    ///
    /// # Errors
    /// If the count is 0 or too large.
    pub fn with_count(self, count: u64) -> Result<Self, RateError> {
        match self.period {
            Period::Micros(_) => Self::new(count, self.period()),
            Period::Calendar(period) => Self::per_calendar(count, period),
        }
    }

    /// Returns this rate with a burst, which only token and leaky buckets accept.
    ///
    /// # Errors
    /// If the burst is 0 or too large.
    pub fn with_burst(self, burst: u64) -> Result<Self, RateError> {
        let text = || format!("{self} burst {burst}");
        let burst = checked_count("burst", burst)
            .map_err(|message| RateError::of_whole_text(text(), message))?;
        Ok(Self { burst: Some(burst), ..self })
    }

    /// Returns the count per period.
    #[must_use]
    pub fn count(&self) -> u64 {
        u64::from(self.count)
    }

    /// Returns the period; of a period of the calendar, its usual length.
    #[must_use]
    pub fn period(&self) -> core::time::Duration {
        match self.period {
            Period::Micros(us) => core::time::Duration::from_micros(us),
            Period::Calendar(period) => period.unit().usual_length(),
        }
    }

    /// Returns the period of the calendar, if it is one.
    #[inline]
    #[must_use]
    pub fn calendar(&self) -> Option<CalendarPeriod> {
        match self.period {
            Period::Micros(_) => None,
            Period::Calendar(period) => Some(period),
        }
    }

    /// Returns the burst, if the rate has one.
    #[must_use]
    pub fn burst(&self) -> Option<u64> {
        self.burst.map(u64::from)
    }

    pub(crate) fn period_us(&self) -> u64 {
        self.period().as_micros() as u64
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.period {
            Period::Micros(us) => write!(f, "{}/{}", self.count, period_text(us))?,
            Period::Calendar(period) => write!(f, "{}/{period}", self.count)?,
        }
        match self.burst {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        Parser::new(text, Kind::Rate).rate()
    }
}

/// Parses a duration in the format of a rate's period, such as `10s` or `2m`. Without a number, it
/// is one of the unit.
///
/// # Errors
/// If the text is not a number and a unit, or is out of range.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// assert_eq!(ratekeeper_core::parse_duration("500ms")?, Duration::from_millis(500));
/// assert!(ratekeeper_core::parse_duration("soon").is_err());
/// # Ok::<(), ratekeeper_core::RateError>(())
/// ```
pub fn parse_duration(text: &str) -> Result<core::time::Duration, RateError> {
    let mut parser = Parser::new(text, Kind::Duration);
    let us = parser.period()?;
    let rest = parser.take(|_| true);
    match rest.is_empty() {
        true => Ok(core::time::Duration::from_micros(us)),
        false => Err(parser.error(rest, EXPECTED_DURATION)),
    }
}

/// Formats a period in the largest unit that divides it: `2h`, `90s`, `1500µs`.
pub(crate) fn period_text(us: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, unit_us)| us.is_multiple_of(*unit_us));
    match unit {
        Some((names, unit_us)) if us == *unit_us => names[0].to_string(),
        Some((names, unit_us)) => format!("{}{}", us / unit_us, names[0]),
        None => format!("{us}µs"),
    }
}

/// What is wrong with the text of a rate, and where.
///
/// `Display` quotes the text and marks the invalid characters.
///
/// ```
/// # use ratekeeper_core as ratekeeper;
/// use ratekeeper::Rate;
///
/// let error = "100/fortnight".parse::<Rate>().unwrap_err();
/// assert_eq!(error.span(), 4..13);
/// println!("{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateError {
    text: String,
    span: Range<usize>,
    message: String,
}

impl RateError {
    fn of_whole_text(text: String, message: String) -> Self {
        Self { span: 0..text.len(), text, message }
    }

    /// Returns the byte range of the invalid part of the text.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns what is wrong, in one line, without the quoted text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indent = self.text[..self.span.start].chars().count();
        let width = self.text[self.span.clone()].chars().count().max(1);
        writeln!(f, "{}", self.message)?;
        writeln!(f, "  {}", self.text)?;
        write!(f, "  {:indent$}{:^<width$}", "", "")
    }
}

impl core::error::Error for RateError {}

fn checked_count(what: &str, n: u64) -> Result<u32, String> {
    match n {
        0 => Err(format!("the {what} is 0; it must be at least 1")),
        _ => u32::try_from(n).map_err(|_| format!("the {what} is too large; at most {COUNT_MAX}")),
    }
}

fn check_period(what: &str, us: u64) -> Result<(), String> {
    match us {
        0 => Err(format!("the {what} is 0; it must be at least 1ms")),
        _ if us > PERIOD_MAX_US => Err(format!("the {what} is too long; at most 10years")),
        _ => Ok(()),
    }
}
