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

/// Formats `part` of `whole` in percent, with one decimal.
pub(crate) fn percent_text(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.1}%", part as f64 / whole as f64 * 100.0),
    }
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
}
