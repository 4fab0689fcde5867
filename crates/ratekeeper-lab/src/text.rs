//! Durations and percentages as text.

const SECOND_US: u64 = 1_000_000;

const UNITS: &[(&str, u64)] = &[
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", SECOND_US),
    ("ms", 1_000),
    ("µs", 1),
];

/// Formats a duration in microseconds: `200ms`, `1.25s`, `2h`, `1m 40s`. It is rounded down, to
/// hundredths or to the second unit.
#[must_use]
pub fn span_text(us: u64) -> String {
    let Some(largest) = UNITS.iter().position(|(_, unit_us)| us >= *unit_us) else {
        return "0s".to_string();
    };
    let (name, unit_us) = UNITS[largest];
    let (whole, rest_us) = (us / unit_us, us % unit_us);
    if unit_us > SECOND_US {
        let (name_below, unit_below_us) = UNITS[largest + 1];
        return match rest_us / unit_below_us {
            0 => format!("{whole}{name}"),
            rest => format!("{whole}{name} {rest}{name_below}"),
        };
    }
    let hundredths = format!("{whole}.{:02}", rest_us * 100 / unit_us);
    format!("{}{name}", hundredths.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a duration like [`span_text`], rounded down to three digits so that it is short.
pub(crate) fn short_span_text(us: u64) -> String {
    let unit_us = 10u64.pow(us.max(1).ilog10().saturating_sub(2));
    span_text(us / unit_us * unit_us)
}

/// Formats `part` of `whole` in percent, with one decimal.
pub(crate) fn percent_text(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.1}%", part as f64 / whole as f64 * 100.0),
    }
}

/// Formats a count with a metric prefix: `800`, `1.5k`, `20M`. It is rounded down to one decimal.
pub(crate) fn number_text(n: u64) -> String {
    let thousands = n.max(1).ilog10() / 3;
    let unit = 1000u64.pow(thousands);
    let prefix = ["", "k", "M", "G", "T", "P", "E"][thousands as usize];
    let (whole, tenths) = (n / unit, n % unit / (unit / 10).max(1));
    match tenths {
        0 => format!("{whole}{prefix}"),
        _ => format!("{whole}.{tenths}{prefix}"),
    }
}

/// Formats a count with commas: `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time in microseconds since 1970 as a date and a time of day in UTC.
pub(crate) fn time_text(us: u64) -> String {
    let us = i64::try_from(us).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(us).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Joins names as in a sentence: `a`, `a and b`, `a, b and c`.
pub(crate) fn list_text(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_string(),
        [names @ .., last] => format!("{} and {last}", names.join(", ")),
    }
}

/// Splits text into lines of at most `width` characters, between words. A longer word has its own line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let check = |us, text| assert_eq!(span_text(us), text);
        check(0, "0s");
        check(7, "7µs");
        check(1_500, "1.5ms");
        check(200_000, "200ms");
        check(1_000_000, "1s");
        check(1_998_000, "1.99s");
        check(60_000_000, "1m");
        check(100_900_000, "1m 40s");
        check(5_400_000_000, "1h 30m");
        check(10 * 86_400_000_000, "10d");
    }

    #[test]
    fn short_durations_have_three_digits() {
        let check = |us, text| assert_eq!(short_span_text(us), text);
        check(0, "0s");
        check(899_510, "899ms");
        check(1_256_000, "1.25s");
        check(59_480_000, "59.4s");
        check(100_900_000, "1m 40s");
    }

    #[test]
    fn numbers_have_a_metric_prefix() {
        let check = |n, text| assert_eq!(number_text(n), text);
        check(0, "0");
        check(800, "800");
        check(1_000, "1k");
        check(1_500, "1.5k");
        check(20_000_000, "20M");
        check(u64::MAX, "18.4E");
    }

    #[test]
    fn counts_are_grouped_and_times_are_in_utc() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(time_text(1_791_640_536_900_000), "2026-10-10 13:55:36");
    }

    #[test]
    fn names_are_joined_as_in_a_sentence() {
        assert_eq!(list_text(&[]), "");
        assert_eq!(list_text(&["a"]), "a");
        assert_eq!(list_text(&["a", "b"]), "a and b");
        assert_eq!(list_text(&["a", "b", "c"]), "a, b and c");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a longest b", 3), ["a", "longest", "b"]);
        assert!(wrap("", 3).is_empty());
    }
}
