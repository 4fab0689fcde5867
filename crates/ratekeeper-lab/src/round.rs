//! Round numbers for axes: durations and maxima.

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
const HOUR_US: u64 = 60 * MINUTE_US;
const DAY_US: u64 = 24 * HOUR_US;

/// Returns durations that people read easily, in ascending order: 1, 2 and 5 times a power of ten below a
/// second and from a day on, and the usual parts of minutes, hours and days between.
pub(crate) fn durations_us() -> impl Iterator<Item = u64> {
    powers(1, 6, &[1, 2, 5])
        .chain(multiples(SECOND_US, &[1, 2, 5, 10, 15, 20, 30]))
        .chain(multiples(MINUTE_US, &[1, 2, 5, 10, 15, 20, 30]))
        .chain(multiples(HOUR_US, &[1, 2, 3, 4, 6, 8, 12]))
        .chain(powers(DAY_US, 8, &[1, 2, 5]))
}

/// Returns durations of which each divides the next, at most six times as long. Each also divides all of
/// [`durations_us`] that are at least twice as long.
pub(crate) fn nested_durations_us() -> impl Iterator<Item = u64> {
    powers(1, 6, &[1, 5])
        .chain(multiples(SECOND_US, &[1, 5, 10, 30]))
        .chain(multiples(MINUTE_US, &[1, 5, 10, 30]))
        .chain(multiples(HOUR_US, &[1, 6, 12]))
        .chain(powers(DAY_US, 8, &[1, 5]))
}

/// Returns the smallest round duration that is at least `us`.
pub(crate) fn duration_us(us: u64) -> u64 {
    durations_us().find(|round_us| *round_us >= us).unwrap_or(u64::MAX)
}

/// Returns a round number that is at least `n` and less than twice `n`, and even if it is above 1, so that
/// half of it is a label too.
pub(crate) fn maximum(n: u64) -> u64 {
    let small = [1, 2, 4, 6, 8].into_iter();
    let larger = powers(1, 18, &[10, 12, 16, 20, 30, 40, 50, 60, 80]);
    small.chain(larger).find(|round| *round >= n).unwrap_or(u64::MAX)
}

fn multiples(unit: u64, factors: &'static [u64]) -> impl Iterator<Item = u64> {
    factors.iter().map(move |factor| factor * unit)
}

fn powers(unit: u64, count: u32, factors: &'static [u64]) -> impl Iterator<Item = u64> {
    (0..count).flat_map(move |power| multiples(unit * 10u64.pow(power), factors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_ascending_order() {
        assert!(durations_us().is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn nested_durations_divide_the_next_and_all_durations_twice_as_long() {
        let nested: Vec<_> = nested_durations_us().collect();
        for pair in nested.windows(2) {
            assert!(pair[1].is_multiple_of(pair[0]) && pair[1] / pair[0] <= 6, "{pair:?}");
        }
        for us in nested {
            let longer = durations_us().filter(|longer_us| *longer_us >= 2 * us);
            longer.for_each(|longer_us| assert!(longer_us.is_multiple_of(us), "{us} {longer_us}"));
        }
    }

    #[test]
    fn a_maximum_is_round_and_close() {
        let check = |n, round| assert_eq!(maximum(n), round);
        check(0, 1);
        check(3, 4);
        check(13, 16);
        check(100, 100);
        check(101, 120);
        for n in 1..100_000 {
            let round = maximum(n);
            assert!(n <= round && round < 2 * n.max(2), "{n} {round}");
            assert!(round == 1 || round.is_multiple_of(2), "{n} {round}");
        }
    }
}
