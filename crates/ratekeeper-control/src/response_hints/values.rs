//! The forms in which servers write numbers, durations and times.

use std::time::{Duration, UNIX_EPOCH};

use ratekeeper_core::Micros;

/// Turns what a header says into a wait: relative to the server's own time if it is known, and
/// bounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitReader<'a> {
    /// The value of the `Date` header. It is parsed only if something needs it.
    pub(super) date: Option<&'a [u8]>,
    pub(super) now: Micros,
    pub(super) max_wait: Duration,
}

impl WaitReader<'_> {
    /// Reads the value of `Retry-After`: seconds or an HTTP date.
    pub(super) fn retry_after(&self, value: &[u8]) -> Option<Duration> {
        self.seconds(value).or_else(|| http_date_us(value).map(|at| self.until(at)))
    }

    /// Reads seconds, which may have decimals.
    pub(super) fn seconds(&self, value: &[u8]) -> Option<Duration> {
        decimal_millionths(value).map(|us| self.bound(us))
    }

    /// Reads milliseconds, which may have decimals.
    pub(super) fn millis(&self, value: &[u8]) -> Option<Duration> {
        decimal_millionths(value).map(|ns| self.bound(ns.div_ceil(1_000)))
    }

    /// Reads a reset in any form: a number, a duration with units, an RFC 3339 time or an HTTP
    /// date.
    pub(super) fn reset(&self, value: &[u8]) -> Option<Duration> {
        if let Some(number) = decimal_millionths(value) {
            return self.number(number);
        }
        if let Some(us) = duration_us(value) {
            return Some(self.bound(us));
        }
        rfc3339_us(value).or_else(|| http_date_us(value)).map(|at| self.until(at))
    }

    /// Reads a number, in millionths: seconds that are left, or seconds or milliseconds since the
    /// epoch, by its magnitude. `None` if it is none of them.
    fn number(&self, millionths: u64) -> Option<Duration> {
        /// 2001-09-09. A clock before it does not count from the epoch.
        const EARLIEST_US: u64 = 1_000_000_000_000_000;
        let now_us = self.server_now_us().max(EARLIEST_US);
        let is_time = |us: u64| us >= now_us / 2 && us < now_us * 2;
        match millionths {
            us if us < now_us / 2 => Some(self.bound(us)),
            us if is_time(us) => Some(self.until(us)),
            ns if is_time(ns / 1_000) => Some(self.until(ns / 1_000)),
            _ => None,
        }
    }

    /// Returns the time left until a time, in microseconds since the epoch.
    fn until(&self, at_us: u64) -> Duration {
        self.bound(at_us.saturating_sub(self.server_now_us()))
    }

    /// Returns the time of the `Date` header if it is valid, and the local time otherwise.
    fn server_now_us(&self) -> u64 {
        self.date.and_then(http_date_us).unwrap_or(self.now.get())
    }

    fn bound(&self, us: u64) -> Duration {
        Duration::from_micros(us).min(self.max_wait)
    }
}

/// Returns the value without spaces and tabs around it.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Reads a whole number; `None` if it has no digits, others than digits, or does not fit.
pub(super) fn integer(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |number, byte| number.checked_mul(10)?.checked_add(digit(*byte)?))
}

/// Reads a number such as `12` or `0.25`, in millionths. It is rounded up, and saturates.
pub(super) fn decimal_millionths(value: &[u8]) -> Option<u64> {
    let point = value.iter().position(|byte| *byte == b'.').unwrap_or(value.len());
    let (whole, fraction) = (&value[..point], value.get(point + 1..));
    if whole.is_empty() || fraction.is_some_and(<[u8]>::is_empty) {
        return None;
    }
    let mut number = 0u64;
    for byte in whole {
        number = number.saturating_mul(10).saturating_add(digit(*byte)?);
    }
    let millionths = fraction_millionths(fraction.unwrap_or_default())?;
    Some(number.saturating_mul(1_000_000).saturating_add(millionths))
}

/// Reads the digits after a decimal point, in millionths, rounded up.
fn fraction_millionths(digits: &[u8]) -> Option<u64> {
    let (mut millionths, mut place, mut is_cut) = (0, 100_000, false);
    for byte in digits {
        let digit = digit(*byte)?;
        is_cut |= place == 0 && digit > 0;
        millionths += digit * place;
        place /= 10;
    }
    Some(millionths + u64::from(is_cut))
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// Reads a duration as Go writes it, such as `1h2m3.5s` or `120ms`, in microseconds.
fn duration_us(mut value: &[u8]) -> Option<u64> {
    let mut sum = 0u64;
    loop {
        let unit_at = value.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'.'))?;
        let (number, rest) = value.split_at(unit_at);
        let (unit_ns, rest) = duration_unit(rest)?;
        let ns = u128::from(decimal_millionths(number)?) * unit_ns / 1_000_000;
        sum = sum.saturating_add(u64::try_from(ns.div_ceil(1_000)).unwrap_or(u64::MAX));
        if rest.is_empty() {
            return Some(sum);
        }
        value = rest;
    }
}

/// Splits a unit off, in nanoseconds.
fn duration_unit(text: &[u8]) -> Option<(u128, &[u8])> {
    // A unit before those that it begins with.
    const UNITS: [(&[u8], u128); 8] = [
        (b"ns", 1),
        (b"us", 1_000),
        ("µs".as_bytes(), 1_000),
        ("μs".as_bytes(), 1_000),
        (b"ms", 1_000_000),
        (b"s", 1_000_000_000),
        (b"m", 60_000_000_000),
        (b"h", 3_600_000_000_000),
    ];
    UNITS.iter().find_map(|(unit, ns)| Some((*ns, text.strip_prefix(*unit)?)))
}

/// Reads an HTTP date in any of its three formats, in microseconds since the epoch.
fn http_date_us(value: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    u64::try_from(date.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

/// Reads an RFC 3339 time, in microseconds since the epoch; a time before the epoch is 0.
fn rfc3339_us(value: &[u8]) -> Option<u64> {
    let (date_time, rest) = value.split_at_checked("2026-01-31T23:59:59".len())?;
    let [y, e, a, r, b'-', m, o, b'-', d, i, b'T' | b't' | b' ', time @ ..] = date_time else {
        return None;
    };
    let [h, j, b':', k, l, b':', s, t] = time else { return None };
    let field = |digits: &[u8], range: std::ops::RangeInclusive<u64>| {
        integer(digits).filter(|number| range.contains(number)).map(u64::cast_signed)
    };
    let (year, month) = (field(&[*y, *e, *a, *r], 0..=9999)?, field(&[*m, *o], 1..=12)?);
    let day = field(&[*d, *i], 1..=days_in_month(year, month))?;
    let (hour, minute) = (field(&[*h, *j], 0..=23)?, field(&[*k, *l], 0..=59)?);
    // 60 is a leap second.
    let second = field(&[*s, *t], 0..=60)?;
    let (fraction_us, zone) = split_fraction(rest)?;
    let secs = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second
        - zone_offset_secs(zone)?;
    let secs = u64::try_from(secs).unwrap_or(0);
    Some(secs * 1_000_000 + fraction_us)
}

/// Splits off the fraction of a second, in microseconds.
fn split_fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else { return Some((0, text)) };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = digits.split_at(end);
    (!digits.is_empty()).then_some((fraction_millionths(digits)?, rest))
}

fn zone_offset_secs(zone: &[u8]) -> Option<i64> {
    let (sign, offset) = match zone {
        [b'Z' | b'z'] => return Some(0),
        [b'+', offset @ ..] => (1, offset),
        [b'-', offset @ ..] => (-1, offset),
        _ => return None,
    };
    let [hours @ .., b':', a, b] = offset else { return None };
    let hours = integer(hours).filter(|hours| *hours <= 23)?;
    let minutes = integer(&[*a, *b]).filter(|minutes| *minutes <= 59)?;
    Some(sign * (hours * 3_600 + minutes * 60).cast_signed())
}

fn days_in_month(year: i64, month: i64) -> u64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from
/// March, so that a leap day is the last one.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    /// From 0000-03-01 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - EPOCH
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, us) in [
            ("1s", 1_000_000),
            ("6m0s", 360_000_000),
            ("120ms", 120_000),
            ("1h2m3.5s", 3_723_500_000),
            ("7.66s", 7_660_000),
            ("250us", 250),
            ("250µs", 250),
            ("1ns", 1),
            ("0s", 0),
        ] {
            assert_eq!(duration_us(text.as_bytes()), Some(us), "{text}");
        }
        for text in ["", "s", "1", "1x", "1s2", "-1s", "1..2s", ".5s", "1 s", "1e3s"] {
            assert_eq!(duration_us(text.as_bytes()), None, "{text}");
        }
        assert_eq!(duration_us(b"99999999999999999999999999999h"), Some(u64::MAX));
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400_000_000),
            ("2026-10-19T12:00:00Z", 1_792_411_200_000_000),
            ("2026-10-19t12:00:00.25z", 1_792_411_200_250_000),
            ("2026-10-19T14:30:00+02:30", 1_792_411_200_000_000),
            ("2026-10-19 04:00:00-08:00", 1_792_411_200_000_000),
        ] {
            assert_eq!(rfc3339_us(text.as_bytes()), Some(us), "{text}");
        }
        for text in [
            "",
            "2026-10-19",
            "2026-10-19T12:00:00",
            "2026-13-19T12:00:00Z",
            "2026-02-29T12:00:00Z",
            "2026-10-19T24:00:00Z",
            "2026-10-19T12:00:00.Z",
            "2026-10-19T12:00:00+2",
            "2026-10-19T12:00:00+99:00",
            "2026-10-19T12:00:00Zz",
            "+026-10-19T12:00:00Z",
        ] {
            assert_eq!(rfc3339_us(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn fractions_are_rounded_up() {
        for (text, millionths) in [
            ("0", Some(0)),
            ("1.5", Some(1_500_000)),
            ("0.0000001", Some(1)),
            ("0.0000000", Some(0)),
            ("999999999999999999999999999999", Some(u64::MAX)),
            ("1.", None),
            (".5", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("NaN", None),
            ("inf", None),
            ("", None),
        ] {
            assert_eq!(decimal_millionths(text.as_bytes()), millionths, "{text}");
        }
    }

    proptest! {
        #[test]
        fn dates_are_those_of_httpdate(secs in 0..253_402_300_799u64) {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(secs));
            prop_assert_eq!(http_date_us(date.as_bytes()), Some(secs * 1_000_000));
            // "Sun, 06 Nov 1994 08:49:37 GMT"
            let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
                .iter().position(|name| *name == &date[8..11]).unwrap() + 1;
            let rfc3339 = format!("{}-{month:02}-{}T{}Z", &date[12..16], &date[5..7], &date[17..25]);
            prop_assert_eq!(rfc3339_us(rfc3339.as_bytes()), Some(secs * 1_000_000), "{}", rfc3339);
        }
    }
}
