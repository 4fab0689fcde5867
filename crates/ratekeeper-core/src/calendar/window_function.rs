//! The window that contains a time: `start ≤ t < end`, in whole seconds since the epoch.
//!
//! Days, weeks and months begin at the first moment of a date. That is not always midnight: where summer time
//! begins at midnight, the day begins at 1:00. Where the clock is set back over midnight, the second evening
//! belongs to the day that has begun already.
//!
//! Hours begin whenever the local clock shows a full hour or skips one. So the hour that the end of summer time
//! repeats is two windows, and a day has 23 or 25 of them.

use core::ops::Range;

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use super::{CalendarPeriod, CalendarUnit, HOUR_SECS};
use crate::time::Micros;

const SECOND_US: u64 = 1_000_000;
const HOUR: i64 = HOUR_SECS as i64;

impl CalendarPeriod {
    /// Returns the window that contains a time. The one that contains the epoch begins there.
    #[must_use]
    pub fn window_of(&self, at: Micros) -> Range<Micros> {
        let window = self.window_of_second(at.get() / SECOND_US);
        Micros::new(window.start * SECOND_US)..Micros::new(window.end * SECOND_US)
    }

    /// Returns the window that contains a second.
    pub(super) fn window_of_second(&self, at: u64) -> Range<u64> {
        let (at, zone) = (at.cast_signed(), self.zone.get());
        let window = match self.unit {
            CalendarUnit::Hour => hour_start(zone, at)..hour_end(zone, at),
            CalendarUnit::Day | CalendarUnit::Week | CalendarUnit::Month => self.dates(zone, at),
        };
        let since_epoch = |second: i64| u64::try_from(second).unwrap_or(0);
        since_epoch(window.start)..since_epoch(window.end)
    }

    fn dates(&self, zone: &TimeZone, at: i64) -> Range<i64> {
        let mut date = self.first_date(zone.to_datetime(timestamp(at)).date());
        let mut window = first_second(zone, date)..first_second(zone, self.next_date(date));
        while window.end <= at {
            date = self.next_date(date);
            window = window.end..first_second(zone, self.next_date(date));
        }
        window
    }

    /// Returns the first date of the window that contains a date.
    fn first_date(&self, date: Date) -> Date {
        match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => date,
            CalendarUnit::Week => {
                date.saturating_sub(date.weekday().to_monday_zero_offset().days())
            }
            CalendarUnit::Month => match self.first_date_in_month(date) {
                first if first <= date => first,
                _ => self.first_date_in_month(date.saturating_sub(1.month())),
            },
        }
    }

    /// Returns the first date of the window that follows the one that begins at a date.
    fn next_date(&self, first: Date) -> Date {
        match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => first.saturating_add(1.day()),
            CalendarUnit::Week => first.saturating_add(1.week()),
            CalendarUnit::Month => self.first_date_in_month(first.saturating_add(1.month())),
        }
    }

    /// Returns the date in the month of `date` on which a window begins.
    fn first_date_in_month(&self, date: Date) -> Date {
        let day = self.first_day.cast_signed().min(date.days_in_month());
        date.first_of_month().saturating_add((day - 1).days())
    }
}

/// Returns the first second of a date, or of the time after it if the time zone skips the date.
fn first_second(zone: &TimeZone, date: Date) -> i64 {
    let midnight = zone.to_ambiguous_timestamp(date.to_datetime(Time::midnight()));
    let is_skipped = matches!(midnight.offset(), AmbiguousOffset::Gap { .. });
    let earlier = midnight.earlier().unwrap_or(Timestamp::MAX);
    match is_skipped {
        true => zone.following(earlier).next().map_or(earlier, |change| change.timestamp()),
        false => earlier,
    }
    .as_second()
}

fn hour_start(zone: &TimeZone, mut at: i64) -> i64 {
    loop {
        let start = at - local(zone, at).rem_euclid(HOUR);
        // A change at `at` itself counts.
        let change = zone.preceding(timestamp(at + 1)).next().map(|c| c.timestamp().as_second());
        match change.filter(|change| *change > start) {
            None => return start,
            Some(change) if begins_hour(zone, change) => return change,
            Some(change) => at = change - 1,
        }
    }
}

fn hour_end(zone: &TimeZone, mut at: i64) -> i64 {
    loop {
        let end = at - local(zone, at).rem_euclid(HOUR) + HOUR;
        let change = zone.following(timestamp(at)).next().map(|c| c.timestamp().as_second());
        match change.filter(|change| *change <= end) {
            None => return end,
            Some(change) if begins_hour(zone, change) => return change,
            Some(change) => at = change,
        }
    }
}

/// Whether the local clock shows a full hour after this change of it, or has skipped one.
fn begins_hour(zone: &TimeZone, change: i64) -> bool {
    let (before, after) = (local(zone, change - 1) + 1, local(zone, change));
    let next_full = before + (-before).rem_euclid(HOUR);
    after.rem_euclid(HOUR) == 0 || next_full <= after
}

/// What the local clock shows, as seconds since the epoch.
fn local(zone: &TimeZone, at: i64) -> i64 {
    at + i64::from(zone.to_offset(timestamp(at)).seconds())
}

fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}
