//! Calendar windows: worked cases, and a slow model that reads the local clock step by step.

mod support;

use std::collections::HashSet;
use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use ratekeeper_core::{
    ALGORITHMS, Algorithm, CalendarPeriod, CalendarUnit, Limit, Micros, Rate, TimeZone, Wait,
};
use support::Key;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600;

/// A time as `2026-03-29T02:00:00+01:00`, in seconds.
fn at(text: &str) -> u64 {
    text.parse::<Timestamp>().unwrap().as_second().try_into().unwrap()
}

fn period(text: &str) -> CalendarPeriod {
    format!("1/calendar {text}").parse::<Rate>().unwrap().calendar().unwrap()
}

fn window(period: CalendarPeriod, second: u64) -> Range<u64> {
    let window = period.window_of(Micros::new(second * SECOND));
    window.start.get() / SECOND..window.end.get() / SECOND
}

/// Asserts that a window begins and ends at these times, for the first and the last second in it.
#[track_caller]
fn lasts(text: &str, start: &str, end: &str) {
    let (start, end) = (at(start), at(end));
    for second in [start, start + 1, (start + end) / 2, end - 1] {
        assert_eq!(window(period(text), second), start..end, "{text} at {second}");
    }
    assert_eq!(window(period(text), end).start, end, "{text}: the next one follows");
    assert_eq!(window(period(text), start - 1).end, start, "{text}: the one before ends there");
}

#[test]
fn a_day_has_23_24_or_25_hours() {
    lasts("day in Europe/Berlin", "2026-03-28T00:00:00+01:00", "2026-03-29T00:00:00+01:00");
    lasts("day in Europe/Berlin", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00");
    lasts("day in Europe/Berlin", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00");
    let length = |text| window(period("day in Europe/Berlin"), at(text)).count() as u64 / HOUR;
    assert_eq!(
        ["2026-03-29T12:00Z", "2026-06-01T12:00Z", "2026-10-25T12:00Z"].map(length),
        [23, 24, 25]
    );
}

#[test]
fn a_day_whose_midnight_is_skipped_begins_at_one() {
    lasts("day in America/Sao_Paulo", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00");
    // Clocks go back at midnight: the day before has 25 hours.
    lasts("day in America/Sao_Paulo", "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00");
}

#[test]
fn a_midnight_that_comes_twice_begins_one_day() {
    // Clocks went back from 0:01 to 23:01: Sunday had begun, and the second Saturday evening belongs to it.
    lasts("day in America/St_Johns", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30");
}

#[test]
fn a_day_that_a_time_zone_skips_is_no_window() {
    lasts("day in Pacific/Apia", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00");
}

#[test]
fn half_hours_count() {
    lasts("day in Australia/Lord_Howe", "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30");
    lasts("day in Australia/Lord_Howe", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00");
    lasts("hour in Asia/Kathmandu", "2026-01-01T07:00:00+05:45", "2026-01-01T08:00:00+05:45");
    lasts("hour", "2026-01-01T07:00:00Z", "2026-01-01T08:00:00Z");
}

#[test]
fn an_hour_begins_when_the_clock_shows_a_full_hour_or_skips_one() {
    // The hour that is repeated is two hours.
    lasts("hour in Europe/Berlin", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00");
    lasts("hour in Europe/Berlin", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00");
    lasts("hour in Europe/Berlin", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00");
    // The clock goes back from 2:00 to 1:30, and forward from 2:00 to 2:30.
    lasts("hour in Australia/Lord_Howe", "2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+10:30");
    lasts("hour in Australia/Lord_Howe", "2026-10-04T02:30:00+11:00", "2026-10-04T03:00:00+11:00");
}

#[test]
fn a_week_begins_on_monday_also_across_a_year() {
    lasts("week", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z");
    lasts("week in Europe/Berlin", "2026-03-23T00:00:00+01:00", "2026-03-30T00:00:00+02:00");
}

#[test]
fn a_month_is_as_long_as_it_is() {
    lasts("month", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z");
    lasts("month", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z");
    lasts("month in Europe/Berlin", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00");
    lasts("month in Asia/Tokyo", "2025-12-01T00:00:00+09:00", "2026-01-01T00:00:00+09:00");
}

#[test]
fn a_billing_month_begins_on_its_day_or_on_the_last_one() {
    lasts("month from day 15", "2026-12-15T00:00:00Z", "2027-01-15T00:00:00Z");
    let zone = "month from day 31 in Europe/Berlin";
    lasts(zone, "2026-01-31T00:00:00+01:00", "2026-02-28T00:00:00+01:00");
    lasts(zone, "2026-02-28T00:00:00+01:00", "2026-03-31T00:00:00+02:00");
    lasts(zone, "2026-03-31T00:00:00+02:00", "2026-04-30T00:00:00+02:00");
    lasts("month from day 30", "2028-02-29T00:00:00Z", "2028-03-30T00:00:00Z");
    lasts("month from day 29", "2026-02-28T00:00:00Z", "2026-03-29T00:00:00Z");
}

#[test]
fn the_first_window_begins_at_the_epoch_and_the_last_one_contains_the_end_of_time() {
    let month = period("month from day 15 in Europe/Berlin");
    assert_eq!(window(month, 0), 0..at("1970-01-15T00:00:00+01:00"));
    assert!(month.window_of(Micros::MAX).start < Micros::MAX);
    let mut key = Key::new(&"2/calendar month".parse().unwrap());
    let last = key.check(2, Micros::MAX.get());
    assert!(last.allowed() && last.reset_after().as_secs() < 31 * 24 * HOUR);
    assert!(!key.check(1, Micros::MAX.get()).allowed());
}

/// Every second at which a local clock changes, in all time zones that differ.
fn clock_changes() -> Vec<(TimeZone, u64)> {
    let database = TimeZoneDatabase::bundled();
    let (epoch, until) = (Timestamp::UNIX_EPOCH, "2030-01-01T00:00Z".parse().unwrap());
    let (mut seen, mut all) = (HashSet::new(), Vec::new());
    for name in database.available() {
        let zone = database.get(name.as_str()).unwrap();
        let changes = zone.following(epoch).map(|change| (change.timestamp(), change.offset()));
        let changes: Vec<_> = changes.take_while(|(at, _)| *at < until).collect();
        if let Ok(zone) = TimeZone::named(name.as_str())
            && seen.insert(changes.clone())
        {
            let seconds = changes.iter().map(|(at, _)| u64::try_from(at.as_second()).unwrap());
            all.extend(seconds.map(|second| (zone, second)));
        }
    }
    assert!(seen.len() > 200, "the database is compiled in");
    all
}

#[test]
fn windows_follow_each_other_around_every_clock_change_of_every_time_zone() {
    let units = CalendarUnit::ALL.into_iter();
    let periods = |zone| units.clone().map(move |unit| CalendarPeriod::new(unit, zone));
    let mut count = 0;
    for (zone, change) in clock_changes() {
        for period in periods(zone) {
            let greatest = period.unit().greatest_length().as_secs();
            let mut second = change.saturating_sub(greatest);
            while second <= change + HOUR {
                let current = window(period, second);
                assert!(current.contains(&second), "{period} at {second}: {current:?}");
                let length = current.end - current.start;
                assert!(length <= greatest, "{period} at {second}: {length} seconds");
                assert_eq!(window(period, current.end - 1), current, "{period} at {second}");
                assert_eq!(window(period, current.end).start, current.end, "{period} at {second}");
                if period.unit() == CalendarUnit::Hour && current.end < change - HOUR {
                    second = change - HOUR;
                } else {
                    second = current.end;
                }
                count += 1;
            }
        }
    }
    assert!(count > 20_000, "{count} windows");
}

/// What a local clock shows.
fn clock(zone: &jiff::tz::TimeZone, second: u64) -> jiff::civil::DateTime {
    zone.to_datetime(Timestamp::from_second(second.try_into().unwrap()).unwrap())
}

/// The window that begins at or before a date, by its first date.
fn first_date(period: CalendarPeriod, date: Date) -> Date {
    let begins = |date: &Date| match period.unit() {
        CalendarUnit::Hour | CalendarUnit::Day => true,
        CalendarUnit::Week => date.weekday() == jiff::civil::Weekday::Monday,
        CalendarUnit::Month => {
            let first_day = period.first_day() as i8;
            date.day() == first_day || date.day() < first_day && *date == date.last_of_month()
        }
    };
    std::iter::successors(Some(date), |date| date.yesterday().ok()).find(begins).unwrap()
}

/// Reads the clock every half minute (every offset since 1970 is whole half minutes), and returns when the
/// window of `second` began and ends.
fn model(period: CalendarPeriod, second: u64) -> Range<u64> {
    const STEP: u64 = 30;
    let zone = TimeZoneDatabase::bundled().get(period.zone().name()).unwrap();
    let span = period.unit().greatest_length().as_secs() + 48 * HOUR;
    let from = (second - span) / STEP * STEP;
    let (mut latest, mut before) = (Date::MIN, clock(&zone, from));
    let (mut start, mut label) = (from, Date::MIN);
    for now in (from..second + span).step_by(STEP as usize) {
        let shown = clock(&zone, now);
        let is_boundary = match period.unit() {
            CalendarUnit::Hour => {
                let is_full = shown.minute() == 0 && shown.second() == 0;
                let skips = shown > before
                    && (shown.date(), shown.hour()) != (before.date(), before.hour());
                is_full || skips
            }
            _ => {
                latest = latest.max(shown.date());
                let changes = first_date(period, latest) != label;
                label = first_date(period, latest);
                changes
            }
        };
        before = shown;
        if is_boundary && now > second {
            return start..now;
        }
        if is_boundary {
            start = now;
        }
    }
    panic!("{period} at {second} has no end");
}

fn any_period() -> impl Strategy<Value = CalendarPeriod> {
    let zones = [
        "UTC",
        "Europe/Berlin",
        "America/Sao_Paulo",
        "Australia/Lord_Howe",
        "America/St_Johns",
        "Pacific/Apia",
        "Asia/Kathmandu",
        "Africa/Monrovia",
        "Antarctica/Troll",
        "Asia/Gaza",
        "America/Havana",
        "Africa/Cairo",
        "Antarctica/Casey",
        "Asia/Kolkata",
    ];
    let unit = proptest::sample::select(&CalendarUnit::ALL[..]);
    (unit, proptest::sample::select(zones.to_vec()), 1..=31u64).prop_map(|(unit, zone, day)| {
        let period = CalendarPeriod::new(unit, TimeZone::named(zone).unwrap());
        if unit == CalendarUnit::Month { period.from_day(day).unwrap() } else { period }
    })
}

/// Times since 1971, half of them near a change of the clock.
fn any_second(period: CalendarPeriod, time: u64, is_near: bool) -> u64 {
    if !is_near {
        return time;
    }
    let zone = TimeZoneDatabase::bundled().get(period.zone().name()).unwrap();
    let change = zone.following(Timestamp::from_second(time as i64).unwrap()).next();
    let change = change.map_or(time, |change| change.timestamp().as_second() as u64);
    change + time % (28 * HOUR) - 26 * HOUR
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn windows_are_those_of_a_clock_that_is_read_step_by_step(
        period in any_period(), time in at("1972-06-01T00:00Z")..at("2045-01-01T00:00Z"), is_near: bool,
    ) {
        let second = any_second(period, time, is_near);
        prop_assert_eq!(window(period, second), model(period, second), "{} at {}", period, second);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn decisions_are_those_of_a_count_for_each_window(
        period in any_period(), count in 1..20u64,
        time in at("1972-06-01T00:00Z")..at("2045-01-01T00:00Z"), is_near: bool,
        trace in proptest::collection::vec((0..1_000u64, 1..8u64), 1..60),
    ) {
        let limit = Limit::new(Rate::per_calendar(count, period).unwrap(), Algorithm::FixedWindow).unwrap();
        let (mut key, mut counted) = (Key::new(&limit), (0..0, 0));
        let mut now = any_second(period, time, is_near) * SECOND;
        for (step, cost) in trace {
            // Up to a window and a half, or to the end of the window exactly.
            now += step * step * period.unit().usual_length().as_micros() as u64 / 700_000;
            let window = period.window_of(Micros::new(now));
            let (start, end) = (window.start.get(), window.end.get());
            if step % 10 == 0 {
                now = end - 1;
            }
            if counted.0 != (start..end) {
                counted = (start..end, 0);
            }
            let fits = counted.1 + cost <= count;
            let decision = key.check(cost, now);
            prop_assert_eq!(decision.allowed(), fits, "{} at {}", limit, now);
            counted.1 += if fits { cost } else { 0 };
            prop_assert_eq!(decision.remaining(), count - counted.1);
            prop_assert_eq!(decision.reset_after().as_micros(), u128::from(end - now));
            prop_assert!(counted.1 == 0 || key.expires_at() >= end);
            let wait = match () {
                _ if fits => Wait::None,
                _ if cost > count => Wait::Never,
                _ => Wait::Micros(end - now),
            };
            prop_assert_eq!(decision.wait(), wait);
            if let Wait::Micros(us) = wait {
                prop_assert!(!key.peek(cost, now + us - 1).allowed());
                prop_assert!(key.peek(cost, now + us).allowed());
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_only_denies_more(
        period in any_period(), time in at("1990-06-01T00:00Z")..at("2045-01-01T00:00Z"), back in 0..u64::MAX,
    ) {
        let limit = Limit::new(Rate::per_calendar(3, period).unwrap(), Algorithm::FixedWindow).unwrap();
        let (mut key, now) = (Key::new(&limit), time * SECOND);
        let end = period.window_of(Micros::new(now)).end.get();
        prop_assert!(key.check(3, now).allowed());
        let earlier = now - back % (60 * 24 * HOUR * SECOND);
        let denied = key.check(1, earlier);
        prop_assert_eq!(denied.wait(), Wait::Micros(end - earlier), "the window that was counted in");
    }
}

fn limit(text: &str) -> Limit {
    text.parse::<Limit>().unwrap().named("quota")
}

#[test]
fn a_count_stays_if_the_window_begins_at_the_same_time() {
    let now = at("2026-03-20T12:00:00Z") * SECOND;
    let mut key = Key::new(&limit("10/calendar month from day 15 in Europe/Berlin"));
    assert!(key.check(6, now).allowed());
    for (text, left) in [
        ("10/calendar month from day 15 in Europe/Berlin", 4),
        ("10/calendar month from day 15 in Europe/Paris", 4),
        ("20/calendar month from day 15 in Europe/Berlin", 14),
        ("10/calendar month from day 16 in Europe/Berlin", 10),
        ("10/calendar month in Europe/Berlin", 10),
        ("10/calendar month from day 15", 10),
    ] {
        assert_eq!(key.with_limit(&limit(text)).peek(1, now).remaining(), left, "{text}");
    }
    let mut moved = key.with_limit(&limit("10/calendar month in Europe/Berlin"));
    assert_eq!(moved.check(3, now).remaining(), 7, "the window that contains now");
    assert_eq!(moved.check(3, now).remaining(), 4);
}

#[test]
fn usage_carries_over_to_another_unit_and_to_other_windows() {
    let now = at("2026-03-20T12:00:00Z") * SECOND;
    let mut key = Key::new(&limit("10/calendar day"));
    assert!(key.check(6, now).allowed());
    for text in ["10/calendar month", "10/calendar hour", "10/calendar week in Europe/Berlin"] {
        let mut other = key.with_limit(&limit(text));
        assert_eq!(other.peek(1, now).remaining(), 4, "{text}");
        let denied = other.check(5, now);
        let Wait::Micros(wait) = denied.wait() else { panic!("{text}: {denied:?}") };
        assert!(!other.peek(5, now + wait - 1).allowed() && other.peek(5, now + wait).allowed());
    }
    let plain = Limit::fixed_window("10/day").unwrap();
    assert_eq!(key.with_limit(&plain).peek(1, now).remaining(), 4);
    let mut plain = Key::new(&plain);
    assert!(plain.check(6, now).allowed());
    assert_eq!(plain.with_limit(&limit("10/calendar day")).peek(1, now).remaining(), 4);
}

#[test]
fn refunds_and_debts_belong_to_their_window() {
    let (monday, tuesday) =
        (at("2026-03-02T12:00:00Z") * SECOND, at("2026-03-03T12:00:00Z") * SECOND);
    let mut key = Key::new(&limit("10/calendar day"));
    assert_eq!(key.charge(25, monday).remaining(), 0);
    assert_eq!(key.refund(16, monday, monday).remaining(), 1);
    assert_eq!(key.check(4, tuesday).remaining(), 6);
    assert_eq!(key.refund(4, monday, tuesday).remaining(), 6, "Monday's is over");
    assert_eq!(key.refund(4, tuesday, tuesday).remaining(), 10);
}

#[test]
fn a_calendar_period_selects_the_fixed_window() {
    let rate: Rate = "1000/calendar day".parse().unwrap();
    assert_eq!(Algorithm::default_for(&rate), Algorithm::FixedWindow);
    assert_eq!(Algorithm::default_for(&"1/s".parse().unwrap()), Algorithm::TokenBucket);
    let limit: Limit = "1000/Calendar DAY in europe/berlin".parse().unwrap();
    assert_eq!(limit.to_string(), "fixed_window 1000/calendar day in Europe/Berlin");
    for algorithm in ALGORITHMS {
        let made = Limit::new(rate, *algorithm);
        assert_eq!(made.is_ok(), *algorithm == Algorithm::FixedWindow, "{algorithm}");
    }
    assert_eq!(
        Limit::token_bucket("1000/calendar day").unwrap_err().to_string(),
        "token_bucket has no calendar windows; use fixed_window, or a period without \"calendar\""
    );
    let error = Limit::fixed_window("1000/calendar day burst 5").unwrap_err().to_string();
    assert!(error.contains("a calendar period has no burst"), "{error}");
}

#[test]
fn every_form_of_a_calendar_rate_parses() {
    for (text, canonical) in [
        ("1000/calendar day", "1000/calendar day"),
        ("1000 per calendar day in UTC", "1000/calendar day"),
        ("5/CALENDAR Hour IN asia/kathmandu", "5/calendar hour in Asia/Kathmandu"),
        ("5/calendar weeks", "5/calendar week"),
        ("5/calendar month from day 1", "5/calendar month"),
        (
            "5/calendar month from day 31 in Europe/Berlin",
            "5/calendar month from day 31 in Europe/Berlin",
        ),
        (
            "5/calendar month in Europe/Berlin FROM DAY 31",
            "5/calendar month from day 31 in Europe/Berlin",
        ),
    ] {
        let rate: Rate = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rate.to_string(), canonical);
        assert_eq!(canonical.parse::<Rate>().unwrap(), rate, "{canonical} round-trips");
    }
}

#[track_caller]
fn rejects(text: &str, marked: &str, message: &str) {
    let error = text.parse::<Rate>().unwrap_err();
    assert_eq!(&text[error.span()], marked, "{error}");
    assert!(error.message().contains(message), "{error}");
}

#[test]
fn errors_mark_the_invalid_part_and_say_what_would_work() {
    let near = |name: &str, meant: &str| {
        let text = format!("5/calendar day in {name}");
        rejects(&text, name, &format!("unknown time zone \"{name}\"; did you mean \"{meant}\"?"));
    };
    near("Europe/Berln", "Europe/Berlin");
    near("berlin", "Europe/Berlin");
    near("america/new-york", "America/New_York");
    rejects(
        "5/calendar day in Mars",
        "Mars",
        "use a name of the IANA database, such as Europe/Berlin, or UTC",
    );
    rejects("5/calendar day in Etc/Unknown", "Etc/Unknown", "unknown time zone");
    rejects("5/calendar day in", "", "the time zone is missing");
    rejects("5/calendar", "", "the calendar period is missing; use hour, day, week or month");
    rejects(
        "5/calendar minute",
        "minute",
        "unknown calendar period \"minute\"; use hour, day, week or month",
    );
    rejects("5/calendar mnth", "mnth", "did you mean \"month\"?");
    rejects("5/calender day", "calender", "did you mean \"calendar\"?");
    rejects("5/2 calendar days", "calendar", "a calendar period has no number");
    rejects("5/day in Europe/Berlin", "in", "only a calendar period has a time zone");
    rejects("5/calendar day from day 15", "15", "only a calendar month begins on a given day");
    rejects("5/calendar month from day 32", "32", "no month has a day 32");
    rejects("5/calendar month from day 0", "0", "no month has a day 0");
    rejects("5/calendar month from day x", "x", "the day is not a whole number");
    rejects("5/calendar month from 15", "15", "as in \"from day 15\"");
    rejects("5/calendar month from day 1 in UTC in UTC", "in", "only a calendar period");
    rejects("5/calendar day of week", "of", "expected \"burst <n>\" or the end");
}
