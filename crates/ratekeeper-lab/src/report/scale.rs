//! Axes: round steps, and numbers as text.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::chart::Unit;
use crate::round;
use crate::text::{number_text, span_text};

const DAY_US: f64 = 86_400e6;
const SECOND_US: f64 = 1e6;

/// The least and greatest number of an axis, and its labelled numbers.
#[derive(Debug)]
pub(crate) struct Scale {
    pub(crate) min: f64,
    pub(crate) max: f64,
    step: f64,
}

impl Scale {
    /// Creates a scale from 0 to a round number of at least `max`, in at most `steps_max` steps.
    pub(crate) fn from_zero(max: f64, unit: Unit, steps_max: u32) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_step(max / f64::from(steps_max), unit);
        Self { min: 0.0, max: (max / step).ceil() * step, step }
    }

    /// Creates a scale of exactly these numbers.
    pub(crate) fn between(min: f64, max: f64, unit: Unit, steps_max: u32) -> Self {
        let max = if max > min { max } else { min + 1.0 };
        Self { min, max, step: round_step((max - min) / f64::from(steps_max), unit) }
    }

    /// Returns the numbers to label, in ascending order.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = f64> {
        let first = (self.min / self.step).ceil();
        let tick = move |n: u32| (first + f64::from(n)) * self.step;
        // Sums of steps miss the end by a rounding error.
        let end = self.max + self.step * 1e-9;
        (0..).map(tick).take_while(move |tick| *tick <= end)
    }

    /// Returns where a number is, from 0 to 1.
    pub(crate) fn part(&self, value: f64) -> f64 {
        ((value - self.min) / (self.max - self.min)).clamp(0.0, 1.0)
    }

    /// Returns a number of the axis as short text.
    pub(crate) fn text(&self, value: f64, unit: Unit) -> String {
        match unit {
            Unit::Count | Unit::Number if value >= 1_000.0 && self.step >= 100.0 => {
                number_text(value as u64)
            }
            Unit::Time if self.step >= DAY_US => time_text(value, "%Y-%m-%d"),
            Unit::Time if self.step >= 60.0 * SECOND_US => time_text(value, "%H:%M"),
            Unit::Time => time_text(value, "%H:%M:%S"),
            _ => value_text(unit, value),
        }
    }
}

/// Returns the smallest round number that is at least `least`.
fn round_step(least: f64, unit: Unit) -> f64 {
    // Labels of times have no fractions of a second.
    let least = if unit == Unit::Time { least.max(SECOND_US) } else { least };
    if matches!(unit, Unit::Duration | Unit::Time) {
        return round::duration_us(least.ceil() as u64) as f64;
    }
    if unit == Unit::Count && least < 1.0 {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// Returns a number as text, with all digits that matter.
pub(crate) fn value_text(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Count | Unit::Number => decimal_text(value),
        Unit::Percent => format!("{}%", decimal_text(value)),
        Unit::Duration => span_text(value.round() as u64),
        Unit::Time => time_text(value, "%Y-%m-%d %H:%M:%S"),
    }
}

/// Returns a number with at most three decimals.
fn decimal_text(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn time_text(us: f64, format: &str) -> String {
    let time = Timestamp::from_microsecond(us.round() as i64).unwrap_or_default();
    time.to_zoned(TimeZone::UTC).strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: &Scale, unit: Unit) -> Vec<String> {
        scale.ticks().map(|tick| scale.text(tick, unit)).collect()
    }

    #[test]
    fn axes_have_round_numbers_up_to_the_greatest() {
        let check = |max, unit, expected: &[&str]| {
            assert_eq!(ticks(&Scale::from_zero(max, unit, 5), unit), expected, "{max}");
        };
        check(9.0, Unit::Number, &["0", "2", "4", "6", "8", "10"]);
        check(1.0, Unit::Count, &["0", "1"]);
        check(0.0, Unit::Number, &["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        check(4_500.0, Unit::Number, &["0", "1k", "2k", "3k", "4k", "5k"]);
        check(0.3, Unit::Percent, &["0%", "0.1%", "0.2%", "0.3%"]);
        check(900_000.0, Unit::Duration, &["0s", "200ms", "400ms", "600ms", "800ms", "1s"]);
    }

    #[test]
    fn times_are_labelled_at_round_ones() {
        let noon = 1_700_000_000e6;
        let scale = Scale::between(noon, noon + 3_600e6, Unit::Time, 4);
        assert_eq!(ticks(&scale, Unit::Time), ["22:15", "22:30", "22:45", "23:00"]);
        assert_eq!(value_text(Unit::Time, noon), "2023-11-14 22:13:20");
    }
}
