//! Quotas of the servers for tests: counted in integers, from a time that is an argument.

use std::time::Duration;

/// How much a server accepts in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    window: Duration,
    algorithm: QuotaAlgorithm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaAlgorithm {
    FixedWindow,
    TokenBucket { burst: u64 },
}

impl Quota {
    /// Accepts up to `limit` in each window. The first window begins when the server starts.
    ///
    /// # Panics
    ///
    /// If the limit or the window is zero.
    pub fn fixed_window(limit: u64, window: Duration) -> Self {
        Self::new(limit, window, QuotaAlgorithm::FixedWindow)
    }

    /// Fills a bucket at `limit` per `window`. It holds up to `limit`, and is full when the server starts.
    ///
    /// # Panics
    ///
    /// If the limit or the window is zero.
    pub fn token_bucket(limit: u64, window: Duration) -> Self {
        Self::new(limit, window, QuotaAlgorithm::TokenBucket { burst: limit })
    }

    /// Sets how much the bucket holds.
    ///
    /// # Panics
    ///
    /// If this is a fixed window, or the burst is zero.
    pub fn burst(self, burst: u64) -> Self {
        assert!(self.algorithm != QuotaAlgorithm::FixedWindow, "a fixed window has no burst");
        assert!(burst > 0, "a burst of zero accepts nothing");
        Self { algorithm: QuotaAlgorithm::TokenBucket { burst }, ..self }
    }

    fn new(limit: u64, window: Duration, algorithm: QuotaAlgorithm) -> Self {
        assert!(limit > 0 && !window.is_zero(), "a quota of zero accepts nothing");
        Self { limit, window, algorithm }
    }

    /// Returns what is accepted per window.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns what is accepted at once, if nothing was before.
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            QuotaAlgorithm::FixedWindow => self.limit,
            QuotaAlgorithm::TokenBucket { burst } => burst,
        }
    }
}

/// What is left of a quota. Times are those since the server's start, and never decrease.
pub(crate) struct QuotaCounter {
    quota: Quota,
    state: QuotaState,
}

enum QuotaState {
    FixedWindow {
        number: u128,
        used: u64,
    },
    /// The level is in units of which one request takes as many as its window has nanoseconds, so that
    /// each nanosecond adds `limit` of them.
    TokenBucket {
        level: u128,
        updated_ns: u128,
    },
}

impl QuotaCounter {
    pub(crate) fn new(quota: Quota) -> Self {
        let level = u128::from(quota.capacity()) * quota.window.as_nanos();
        let state = match quota.algorithm {
            QuotaAlgorithm::FixedWindow => QuotaState::FixedWindow { number: 0, used: 0 },
            QuotaAlgorithm::TokenBucket { .. } => QuotaState::TokenBucket { level, updated_ns: 0 },
        };
        Self { quota, state }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns how much would be accepted.
    pub(crate) fn remaining(&mut self, now: Duration) -> u64 {
        self.advance(now);
        match self.state {
            QuotaState::FixedWindow { used, .. } => self.quota.limit - used,
            QuotaState::TokenBucket { level, .. } => (level / self.window_ns()) as u64,
        }
    }

    /// Takes `amount`, which has to be at most what remains.
    pub(crate) fn take(&mut self, amount: u64, now: Duration) {
        assert!(amount <= self.remaining(now), "more than remains");
        let window_ns = self.window_ns();
        match &mut self.state {
            QuotaState::FixedWindow { used, .. } => *used += amount,
            QuotaState::TokenBucket { level, .. } => *level -= u128::from(amount) * window_ns,
        }
    }

    /// Returns how long it takes until `amount` remains, if nothing is taken meanwhile. `None` means never.
    pub(crate) fn wait_for(&mut self, amount: u64, now: Duration) -> Option<Duration> {
        if amount > self.quota.capacity() {
            return None;
        }
        if amount <= self.remaining(now) {
            return Some(Duration::ZERO);
        }
        let needed = u128::from(amount) * self.window_ns();
        Some(match self.state {
            QuotaState::FixedWindow { .. } => self.reset_after(now),
            QuotaState::TokenBucket { level, .. } => self.time_to_fill(needed - level),
        })
    }

    /// Returns how long it takes until the window ends, or until the bucket is full.
    pub(crate) fn reset_after(&mut self, now: Duration) -> Duration {
        self.advance(now);
        match self.state {
            QuotaState::FixedWindow { number, .. } => {
                nanoseconds((number + 1) * self.window_ns() - now.as_nanos())
            }
            QuotaState::TokenBucket { level, .. } => {
                self.time_to_fill(u128::from(self.quota.capacity()) * self.window_ns() - level)
            }
        }
    }

    fn advance(&mut self, now: Duration) {
        let (window_ns, now_ns) = (self.window_ns(), now.as_nanos());
        match &mut self.state {
            QuotaState::FixedWindow { number, used } => {
                if now_ns / window_ns > *number {
                    (*number, *used) = (now_ns / window_ns, 0);
                }
            }
            QuotaState::TokenBucket { level, updated_ns } => {
                let full = u128::from(self.quota.capacity()) * window_ns;
                let added = (now_ns - *updated_ns) * u128::from(self.quota.limit);
                (*level, *updated_ns) = (full.min(*level + added), now_ns);
            }
        }
    }

    fn time_to_fill(&self, missing: u128) -> Duration {
        nanoseconds(missing.div_ceil(u128::from(self.quota.limit)))
    }

    fn window_ns(&self) -> u128 {
        self.quota.window.as_nanos()
    }
}

fn nanoseconds(time: u128) -> Duration {
    Duration::from_nanos(time.try_into().unwrap_or(u64::MAX))
}

/// Returns whole seconds, rounded up.
pub(crate) fn seconds_ceil(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Returns whole milliseconds, rounded up.
pub(crate) fn milliseconds_ceil(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_fixed_window_is_empty_until_it_ends() {
        let mut counter = QuotaCounter::new(Quota::fixed_window(3, SECOND));
        counter.take(2, ms(100));
        counter.take(1, ms(999));
        assert_eq!(counter.remaining(ms(999)), 0);
        assert_eq!(counter.wait_for(1, ms(999)), Some(ms(1)));
        assert_eq!(counter.remaining(ms(1000)), 3);
        assert_eq!(counter.reset_after(ms(1250)), ms(750));
        assert_eq!(counter.wait_for(4, ms(1250)), None);
    }

    #[test]
    fn a_bucket_fills_by_the_nanosecond() {
        let mut counter = QuotaCounter::new(Quota::token_bucket(3, SECOND));
        counter.take(3, Duration::ZERO);
        // A third of a second, rounded up to a whole nanosecond.
        let wait = Duration::from_nanos(333_333_334);
        assert_eq!(counter.wait_for(1, Duration::ZERO), Some(wait));
        assert_eq!(counter.remaining(wait - Duration::from_nanos(1)), 0);
        assert_eq!(counter.remaining(wait), 1);
        assert_eq!(counter.remaining(ms(999)), 2);
        assert_eq!(counter.remaining(ms(5000)), 3);
        assert_eq!(counter.reset_after(ms(5000)), Duration::ZERO);
    }

    #[test]
    fn a_bucket_holds_its_burst() {
        let mut counter = QuotaCounter::new(Quota::token_bucket(10, SECOND).burst(2));
        assert_eq!(counter.remaining(ms(9000)), 2);
        counter.take(2, ms(9000));
        assert_eq!(counter.wait_for(1, ms(9000)), Some(ms(100)));
        assert_eq!(counter.reset_after(ms(9000)), ms(200));
        assert_eq!(counter.wait_for(3, ms(9000)), None);
    }

    #[test]
    fn wait_for_is_exact() {
        for quota in [Quota::fixed_window(7, ms(30)), Quota::token_bucket(7, ms(30)).burst(5)] {
            let mut counter = QuotaCounter::new(quota);
            let mut now = Duration::ZERO;
            for step in 0..1000_u64 {
                let amount = 1 + step % 5;
                let wait = counter.wait_for(amount, now).expect("the amount is below the capacity");
                if !wait.is_zero() {
                    let almost = now + wait - Duration::from_nanos(1);
                    assert!(counter.remaining(almost) < amount, "{quota:?} at step {step}");
                }
                now += wait;
                counter.take(amount, now);
                now += Duration::from_nanos(step * 7919 % 2_000_003);
            }
        }
    }
}
