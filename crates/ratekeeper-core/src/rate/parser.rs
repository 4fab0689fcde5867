//! The parser of rates and durations. Words are read without regard to case.

use alloc::format;
use alloc::string::{String, ToString};
use core::ops::Range;
use core::time::Duration;

use super::{COUNT_MAX, Period, Rate, RateError, UNITS, UNITS_TEXT, check_period, checked_count};
use crate::calendar::{CalendarPeriod, CalendarUnit, TimeZone, UTC};
use crate::suggest::is_one_edit_apart;

pub(super) const EXPECTED_DURATION: &str = "expected a duration such as 5s or 250ms";

/// What a text is, for the words of its errors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Rate,
    Duration,
}

impl Kind {
    /// Returns what a number and a unit are called.
    fn period(self) -> &'static str {
        match self {
            Self::Rate => "period",
            Self::Duration => "duration",
        }
    }
}

pub(super) struct Parser<'a> {
    text: &'a str,
    kind: Kind,
    at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, kind: Kind) -> Self {
        Self { text, kind, at: 0 }
    }

    pub(super) fn rate(mut self) -> Result<Rate, RateError> {
        let count =
            self.count("count", "a rate is <count>/<period>, such as 100/minute or 5/s burst 10")?;
        self.slash()?;
        let period = self.rate_period()?;
        let burst = self.burst()?;
        Ok(Rate { count, period, burst })
    }

    fn rate_period(&mut self) -> Result<Period, RateError> {
        let start = self.at;
        if self.word_is("calendar") {
            return self.calendar_period().map(Period::Calendar);
        }
        self.at = start;
        self.period().map(Period::Micros)
    }

    /// Parses what follows the word `calendar`.
    fn calendar_period(&mut self) -> Result<CalendarPeriod, RateError> {
        let unit = self.calendar_unit()?;
        let (mut first_day, mut zone) = (None, None);
        loop {
            let start = self.at;
            if zone.is_none() && self.word_is("in") {
                zone = Some(self.time_zone()?);
                continue;
            }
            self.at = start;
            if first_day.is_none() && self.word_is("from") {
                first_day = Some(self.first_day()?);
                continue;
            }
            self.at = start;
            break;
        }
        let zone = match zone {
            Some(zone) => zone,
            None => {
                TimeZone::named(UTC).map_err(|error| self.error(0..self.at, error.to_string()))?
            }
        };
        let period = CalendarPeriod::new(unit, zone);
        match first_day {
            Some((day, span)) => {
                period.from_day(day).map_err(|error| self.error(span, error.to_string()))
            }
            None => Ok(period),
        }
    }

    fn calendar_unit(&mut self) -> Result<CalendarUnit, RateError> {
        let word = self.take(|c| !c.is_whitespace());
        let name = &self.text[word.clone()];
        let length = unit_us(name).map(Duration::from_micros);
        let unit = CalendarUnit::ALL.into_iter().find(|unit| Some(unit.usual_length()) == length);
        unit.ok_or_else(|| {
            let names = CalendarUnit::ALL.map(CalendarUnit::name);
            let lower = name.to_lowercase();
            let near = names.iter().find(|known| is_one_edit_apart(&lower, known));
            let remedy = match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "use hour, day, week or month".to_string(),
            };
            let message = match name {
                "" => format!("the calendar period is missing; {remedy}"),
                _ => format!("unknown calendar period \"{name}\"; {remedy}"),
            };
            self.error(word.clone(), message)
        })
    }

    fn time_zone(&mut self) -> Result<TimeZone, RateError> {
        let word = self.take(|c| !c.is_whitespace());
        match &self.text[word.clone()] {
            "" => Err(self.error(word, "the time zone is missing, as in \"in Europe/Berlin\"")),
            name => TimeZone::named(name).map_err(|error| self.error(word, error.to_string())),
        }
    }

    fn first_day(&mut self) -> Result<(u64, Range<usize>), RateError> {
        const EXPECTED: &str = "expected the day on which the month begins, as in \"from day 15\"";
        let day = self.take(|c| !c.is_whitespace());
        if !self.text[day.clone()].eq_ignore_ascii_case("day") {
            return Err(self.error(day, EXPECTED));
        }
        let word = self.take(|c| !c.is_whitespace());
        match word.is_empty() {
            true => Err(self.error(word, EXPECTED)),
            false => Ok((self.number("day", word.clone())?, word)),
        }
    }

    /// Consumes a word, and returns whether it is this one.
    fn word_is(&mut self, expected: &str) -> bool {
        let word = self.take(|c| !c.is_whitespace());
        self.text[word].eq_ignore_ascii_case(expected)
    }

    fn count(&mut self, what: &str, expected: &str) -> Result<u32, RateError> {
        let word = self.take(|c| !c.is_whitespace() && c != '/');
        let digits = &self.text[word.clone()];
        if digits.is_empty() {
            return Err(self.error(word, expected));
        }
        let n = self.number(what, word.clone())?;
        checked_count(what, n).map_err(|message| self.error(word, message))
    }

    fn number(&self, what: &str, word: Range<usize>) -> Result<u64, RateError> {
        let digits = &self.text[word.clone()];
        let invalid = |message: String| Err(self.error(word.clone(), message));
        if digits.starts_with('-') {
            return invalid(format!("the {what} is negative; it must be at least 1"));
        }
        if digits.contains('.') && digits.starts_with(|c: char| c.is_ascii_digit()) {
            let remedy = match self.kind {
                Kind::Rate => "for less than one, lengthen the period: 0.5/s is 1/2s",
                Kind::Duration => "use a smaller unit: 1.5s is 1500ms",
            };
            return invalid(format!("the {what} is not a whole number; {remedy}"));
        }
        if digits.contains(|c: char| !c.is_ascii_digit()) {
            return invalid(format!("the {what} is not a whole number"));
        }
        digits.parse().or_else(|_| invalid(format!("the {what} is too large; at most {COUNT_MAX}")))
    }

    fn slash(&mut self) -> Result<(), RateError> {
        let separator = self.take(|c| !c.is_whitespace() && !c.is_ascii_digit());
        match &self.text[separator.clone()] {
            text if text.eq_ignore_ascii_case("per") => Ok(()),
            text if text.starts_with('/') => {
                self.at = separator.start + 1;
                Ok(())
            }
            _ => {
                Err(self
                    .error(separator, "expected \"/\" or \"per\" and a period, as in 100/minute"))
            }
        }
    }

    pub(super) fn period(&mut self) -> Result<u64, RateError> {
        let digits = self.take(|c| c.is_ascii_digit() || c == '-' || c == '.');
        let times = match digits.is_empty() {
            true => 1,
            false => self.number(self.kind.period(), digits.clone())?,
        };
        let unit = self.take(|c| !c.is_whitespace());
        let unit_us = match unit_us(&self.text[unit.clone()]) {
            Some(us) => us,
            None => return Err(self.unknown_unit(!digits.is_empty(), unit)),
        };
        let us = times.saturating_mul(unit_us);
        check_period(self.kind.period(), us)
            .map_err(|message| self.error(digits.start..unit.end, message))?;
        Ok(us)
    }

    fn unknown_unit(&self, has_number: bool, unit: Range<usize>) -> RateError {
        let name = &self.text[unit.clone()];
        let is_calendar = name.eq_ignore_ascii_case("calendar");
        if is_calendar && has_number && self.kind == Kind::Rate {
            let message = "a calendar period has no number, as in \"calendar day\"; for several, use a period such as 2d";
            return self.error(unit, message);
        }
        let near = closest_unit(name).map(|near| format!("did you mean \"{near}\"?"));
        let remedy = near.unwrap_or_else(|| format!("use {UNITS_TEXT}"));
        let message = match (self.kind, name) {
            (Kind::Rate, "") => format!("the period is missing; {remedy}"),
            (Kind::Rate, _) => format!("unknown period \"{name}\"; {remedy}"),
            (Kind::Duration, "") if has_number => {
                format!("the unit is missing; {EXPECTED_DURATION}")
            }
            (Kind::Duration, _) if has_number => format!("unknown unit \"{name}\"; {remedy}"),
            (Kind::Duration, _) => EXPECTED_DURATION.to_string(),
        };
        self.error(unit, message)
    }

    fn burst(&mut self) -> Result<Option<u32>, RateError> {
        let word = self.take(|c| !c.is_whitespace());
        match self.text[word.clone()].to_lowercase().as_str() {
            "" => return Ok(None),
            "burst" => {}
            "in" | "from" => {
                let message = "only a calendar period has a time zone or a first day, as in 1000/calendar day in Europe/Berlin";
                return Err(self.error(word, message));
            }
            other if is_one_edit_apart(other, "burst") => {
                let message = format!("unknown word \"{other}\"; did you mean \"burst\"?");
                return Err(self.error(word, message));
            }
            _ => return Err(self.error(word, "expected \"burst <n>\" or the end")),
        }
        let burst = self.count("burst", "a burst needs a number, as in burst 10")?;
        let rest = self.take(|_| true);
        match rest.is_empty() {
            true => Ok(Some(burst)),
            false => Err(self.error(rest, "nothing may follow the burst")),
        }
    }

    /// Skips whitespace, then consumes characters while `accepts` holds, and returns their range.
    pub(super) fn take(&mut self, accepts: impl Fn(char) -> bool) -> Range<usize> {
        let rest = &self.text[self.at..];
        let start = self.at + (rest.len() - rest.trim_start().len());
        let word = &self.text[start..];
        let len = word.find(|c| !accepts(c)).unwrap_or(word.len());
        self.at = start + len;
        start..self.at
    }

    pub(super) fn error(&self, span: Range<usize>, message: impl Into<String>) -> RateError {
        RateError { text: self.text.to_string(), span, message: message.into() }
    }
}

fn unit_us(name: &str) -> Option<u64> {
    let is_known = |known: &&str| known.eq_ignore_ascii_case(name);
    UNITS.iter().find(|(names, _)| names.iter().any(is_known)).map(|(_, us)| *us)
}

/// Returns the unit that was probably meant. Units of one or two letters are not guessed, because any word
/// of one letter is near.
fn closest_unit(name: &str) -> Option<&'static str> {
    let mut names = UNITS.iter().flat_map(|(names, _)| *names).filter(|known| known.len() > 2);
    let lower = name.to_lowercase();
    if is_one_edit_apart(&lower, "calendar") {
        return Some("calendar");
    }
    names.find(|known| is_one_edit_apart(&lower, known)).copied()
}
