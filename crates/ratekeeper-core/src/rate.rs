//! Rates and their text form: `100/minute`, `5/s burst 10`, `1000 per 2h`.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::ops::Range;
use core::str::{Chars, FromStr};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    period_us: u64,
    burst: Option<u32>,
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
        Ok(Self { count, period_us, burst: None })
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

    /// Returns the period.
    #[must_use]
    pub fn period(&self) -> core::time::Duration {
        core::time::Duration::from_micros(self.period_us)
    }

    /// Returns the burst, if the rate has one.
    #[must_use]
    pub fn burst(&self) -> Option<u64> {
        self.burst.map(u64::from)
    }

    pub(crate) fn period_us(&self) -> u64 {
        self.period_us
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, period_text(self.period_us))?;
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

const EXPECTED_DURATION: &str = "expected a duration such as 5s or 250ms";

/// What a text is, for the words of its errors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
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

struct Parser<'a> {
    text: &'a str,
    kind: Kind,
    at: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, kind: Kind) -> Self {
        Self { text, kind, at: 0 }
    }

    fn rate(mut self) -> Result<Rate, RateError> {
        let count =
            self.count("count", "a rate is <count>/<period>, such as 100/minute or 5/s burst 10")?;
        self.slash()?;
        let period_us = self.period()?;
        let burst = self.burst()?;
        Ok(Rate { count, period_us, burst })
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
            "per" => Ok(()),
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

    fn period(&mut self) -> Result<u64, RateError> {
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
        match &self.text[word.clone()] {
            "" => return Ok(None),
            "burst" => {}
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
    fn take(&mut self, accepts: impl Fn(char) -> bool) -> Range<usize> {
        let rest = &self.text[self.at..];
        let start = self.at + (rest.len() - rest.trim_start().len());
        let word = &self.text[start..];
        let len = word.find(|c| !accepts(c)).unwrap_or(word.len());
        self.at = start + len;
        start..self.at
    }

    fn error(&self, span: Range<usize>, message: impl Into<String>) -> RateError {
        RateError { text: self.text.to_string(), span, message: message.into() }
    }
}

fn unit_us(name: &str) -> Option<u64> {
    UNITS.iter().find(|(names, _)| names.contains(&name)).map(|(_, us)| *us)
}

/// Returns the unit that was probably meant. Units of one or two letters are not guessed, because any word
/// of one letter is near.
fn closest_unit(name: &str) -> Option<&'static str> {
    let mut names = UNITS.iter().flat_map(|(names, _)| *names).filter(|known| known.len() > 2);
    let lower = name.to_lowercase();
    names.find(|known| **known == lower || is_one_edit_apart(&lower, known)).copied()
}

/// Whether one inserted, deleted or changed character, or two swapped ones, make one word of the other.
fn is_one_edit_apart(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.chars(), other.chars());
    skip_equal(&mut one, &mut other, Iterator::next);
    skip_equal(&mut one, &mut other, DoubleEndedIterator::next_back);
    let (one, other) = (one.as_str(), other.as_str());
    let swapped = |text: &str| text.chars().rev().eq(other.chars());
    match (one.chars().count(), other.chars().count()) {
        (0, 1) | (1, 0 | 1) => true,
        (2, 2) => swapped(one),
        _ => false,
    }
}

fn skip_equal<'a>(
    one: &mut Chars<'a>,
    other: &mut Chars<'a>,
    next: impl Fn(&mut Chars<'a>) -> Option<char>,
) {
    loop {
        let (mut after_one, mut after_other) = (one.clone(), other.clone());
        match (next(&mut after_one), next(&mut after_other)) {
            (Some(a), Some(b)) if a == b => (*one, *other) = (after_one, after_other),
            _ => return,
        }
    }
}

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
