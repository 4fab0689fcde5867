//! Arrivals and clients.

use std::time::Duration;

use super::micros;
use crate::random::Random;

/// How clients react to a request that failed: rejected, or without a response in time.
///
/// ```
/// use ratekeeper_lab::service::Clients;
///
/// let storm = Clients::Naive { retries: 3 };
/// assert_ne!(storm, Clients::Budgeted);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// They do not retry.
    OneShot,
    /// They retry after 50 ms, so many times.
    Naive {
        /// The most retries of one request.
        retries: u32,
    },
    /// They retry up to twice, with backoff and jitter, within a common retry budget.
    Budgeted,
}

/// The rate of new requests over time. They arrive at random (Poisson), whatever happens to the others.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_lab::service::Load;
///
/// let second = Duration::from_secs(1);
/// let load = Load::constant(100.0, 10 * second).ramp(900.0, 20 * second).then(50.0, 5 * second);
/// assert_eq!(load.duration(), 35 * second);
/// assert_eq!(load.rate_at(5 * second), 100.0);
/// assert_eq!(load.rate_at(20 * second), 500.0);
/// ```
#[derive(Clone, Debug)]
pub struct Load {
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    from_us: u64,
    until_us: u64,
    rate_from: f64,
    rate_until: f64,
}

impl Load {
    /// Returns a load of so many requests per second.
    #[must_use]
    pub fn constant(rate: f64, duration: Duration) -> Self {
        Self { pieces: Vec::new() }.then(rate, duration)
    }

    /// Continues with another rate.
    #[must_use]
    pub fn then(self, rate: f64, duration: Duration) -> Self {
        self.piece(rate, rate, duration)
    }

    /// Continues with a rate that grows or shrinks steadily up to `rate`.
    #[must_use]
    pub fn ramp(self, rate: f64, duration: Duration) -> Self {
        let from = self.pieces.last().map_or(0.0, |piece| piece.rate_until);
        self.piece(from, rate, duration)
    }

    fn piece(mut self, rate_from: f64, rate_until: f64, duration: Duration) -> Self {
        let from_us = self.end_us();
        let until_us = from_us + micros(duration);
        self.pieces.push(Piece { from_us, until_us, rate_from, rate_until });
        self
    }

    /// Returns how long requests arrive.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.end_us())
    }

    /// Returns the rate at a time since the begin, per second.
    #[must_use]
    pub fn rate_at(&self, at: Duration) -> f64 {
        let at_us = micros(at);
        self.piece_at(at_us).map_or(0.0, |piece| piece.rate_at(at_us))
    }

    fn end_us(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.until_us)
    }

    fn piece_at(&self, at_us: u64) -> Option<&Piece> {
        self.pieces.iter().find(|piece| at_us < piece.until_us)
    }

    /// Returns when the next request arrives after `at_us`; `None` after the end.
    pub(crate) fn next_arrival_us(&self, mut at_us: f64, random: &mut Random) -> Option<f64> {
        loop {
            let piece = self.piece_at(at_us as u64)?;
            let rate_per_us = piece.rate_at(at_us as u64) / 1e6;
            let next_us = at_us + random.gap() / rate_per_us;
            // Beyond the piece the rate is another. A gap has no memory, so it is drawn anew there.
            if next_us < piece.until_us as f64 {
                return Some(next_us);
            }
            at_us = piece.until_us as f64;
        }
    }
}

impl Piece {
    fn rate_at(&self, at_us: u64) -> f64 {
        let share = (at_us - self.from_us) as f64 / (self.until_us - self.from_us) as f64;
        self.rate_from + (self.rate_until - self.rate_from) * share
    }
}
