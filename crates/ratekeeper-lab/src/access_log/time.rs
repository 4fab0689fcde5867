//! The times of access logs, in the shapes that servers write.
//!
//! | shape | example |
//! |---|---|
//! | common log format | `10/Oct/2026:13:55:36 +0200`, with or without milliseconds and offset |
//! | ISO 8601 | `2026-10-10T13:55:36.123+02:00`, with `T`, a space or a tab; without an offset it is UTC |
//! | a number since 1970 | seconds with a fraction, or milliseconds, microseconds or nanoseconds by its size |

use ratekeeper_core::Micros;

use super::field::digits;

const SECOND_US: u64 = 1_000_000;
const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The last time that was read, to the second: the next line often has the same.
#[derive(Clone, Debug, Default)]
pub struct TimeCache {
    /// The text of the second.
    second: Vec<u8>,
    second_secs: i64,
}

impl TimeCache {
    /// Parses a time in any of the shapes.
    pub(crate) fn parse(&mut self, text: &[u8]) -> Option<Micros> {
        let (second, rest) = match text {
            [_, _, b'/', ..] => text.split_at_checked(20)?,
            [_, _, _, _, b'-', ..] => text.split_at_checked(19)?,
            _ => return epoch(text),
        };
        if self.second != second {
            self.second_secs = civil_secs(second)?;
            self.second.clear();
            self.second.extend_from_slice(second);
        }
        let (fraction_us, offset) = fraction(rest)?;
        let secs = self.second_secs - offset_secs(offset)?;
        let us = u64::try_from(secs).ok()?.checked_mul(SECOND_US)?.checked_add(fraction_us)?;
        in_range(us)
    }
}

fn in_range(us: u64) -> Option<Micros> {
    Some(Micros::new(us)).filter(|at| at.get() == us && us > 0)
}

/// Parses a number since 1970, whose unit follows from its size.
fn epoch(text: &[u8]) -> Option<Micros> {
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let number = Some(dot).filter(|dot| *dot > 0).and_then(|dot| digits(&text[..dot]))?;
    let us = match number {
        0..100_000_000_000 => {
            let (fraction_us, rest) = fraction(&text[dot..])?;
            Some(number * SECOND_US + fraction_us).filter(|_| rest.is_empty())?
        }
        100_000_000_000..100_000_000_000_000 => number * 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => number,
        _ => number / 1_000,
    };
    in_range(us)
}

/// Splits `.123+02:00` into microseconds and the offset.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let [b'.' | b',', text @ ..] = text else { return Some((0, text)) };
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let number = &number[..end.min(6)];
    Some((digits(number)? * 10u64.pow(6 - number.len() as u32), rest))
}

/// Parses `Z`, `+0200`, ` +0200`, `+02:00` or nothing.
fn offset_secs(text: &[u8]) -> Option<i64> {
    let text = text.strip_prefix(b" ").unwrap_or(text);
    let (sign, text) = match text {
        b"" | b"Z" | b"UTC" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match text {
        [h, hh, b':', m, mm] | [h, hh, m, mm] => ([*h, *hh], [*m, *mm]),
        [h, hh] => ([*h, *hh], [b'0', b'0']),
        _ => return None,
    };
    let (hours, minutes) = (digits(&hours)? as i64, digits(&minutes)? as i64);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Parses `10/Oct/2026:13:55:36` or `2026-10-10T13:55:36` as seconds since 1970 in UTC.
fn civil_secs(text: &[u8]) -> Option<i64> {
    let (year, month, day, time) = match text {
        [d, dd, b'/', month @ .., b':', _, _, b':', _, _, b':', _, _] if text.len() == 20 => {
            let name = &month[..3];
            let month_number = MONTHS.iter().position(|known| *known == name)? as u64 + 1;
            let year = month.get(4..8).filter(|_| month[3] == b'/')?;
            (digits(year)?, month_number, digits(&[*d, *dd])?, &text[12..])
        }
        [y, yy, yyy, yyyy, b'-', m, mm, b'-', d, dd, b'T' | b't' | b' ' | b'\t', time @ ..] => {
            let year = digits(&[*y, *yy, *yyy, *yyyy])?;
            (year, digits(&[*m, *mm])?, digits(&[*d, *dd])?, time)
        }
        _ => return None,
    };
    let [h, hh, b':', m, mm, b':', s, ss] = time else { return None };
    let (hours, minutes) = (digits(&[*h, *hh])?, digits(&[*m, *mm])?);
    let secs = digits(&[*s, *ss])?;
    let is_valid = (1..=12).contains(&month) && (1..=31).contains(&day);
    // 60 is a leap second.
    if !is_valid || hours > 23 || minutes > 59 || secs > 60 || year < 1970 {
        return None;
    }
    let in_day = hours * 3_600 + minutes * 60 + secs;
    Some(days_since_1970(year as i64, month as i64, day as i64) * 86_400 + in_day as i64)
}

/// The days of the proleptic Gregorian calendar, counted in years that begin in March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(text: &str) -> Option<u64> {
        TimeCache::default().parse(text.as_bytes()).map(Micros::get)
    }

    #[test]
    fn times_are_read_in_all_shapes() {
        let at = 1_791_633_336_000_000;
        for text in [
            "10/Oct/2026:13:55:36 +0200",
            "10/Oct/2026:11:55:36 +0000",
            "10/Oct/2026:11:55:36.000",
            "2026-10-10T11:55:36Z",
            "2026-10-10T13:55:36+02:00",
            "2026-10-10 11:55:36",
            "2026-10-10\t11:55:36",
            "1791633336",
            "1791633336.000",
            "1791633336000",
            "1791633336000000",
            "1791633336000000000",
        ] {
            assert_eq!(us(text), Some(at), "{text}");
        }
        assert_eq!(us("2026-10-10T11:55:36.123456789Z"), Some(at + 123_456));
        assert_eq!(us("1791633336.5"), Some(at + 500_000));
        assert_eq!(us("29/Feb/2000:00:00:00 -0130"), Some(951_787_800_000_000));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "-",
            "now",
            "10/Okt/2026:13:55:36 +0200",
            "32/Oct/2026:13:55:36 +0200",
            "10/Oct/2026:25:55:36",
            "2026-13-10T11:55:36Z",
            "2026-10-10",
            "10/Oct",
            "1.2.3.4x",
            "2026-10-10T11:55:36 CEST",
            "99999999999999999999",
            "9999-10-10T11:55:36Z",
            "..",
        ] {
            assert_eq!(us(text), None, "{text}");
        }
    }

    #[test]
    fn a_second_is_cached_and_the_offset_is_not() {
        let mut cache = TimeCache::default();
        let one = cache.parse(b"10/Oct/2026:13:55:36 +0200").unwrap();
        let other = cache.parse(b"10/Oct/2026:13:55:36 +0000").unwrap();
        assert_eq!(other.get() - one.get(), 7_200_000_000);
    }
}
