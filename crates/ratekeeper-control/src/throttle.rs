//! Client-side throttling: requests that the server would reject are rejected locally.

use std::time::Duration;

use ratekeeper_core::Micros;

use crate::uniform::fraction;
use crate::window_counter::{WindowCounter, checked_window};

/// Rejects requests locally with a probability that grows with the share the server rejects.
///
/// It is the adaptive throttling of Google's SRE book: with the requests and accepts of a sliding
/// window, a request is rejected with the probability max(0, (requests − K·accepts) / (requests +
/// 1)). With K = 2, nothing is rejected while the server accepts half of the requests. Some
/// requests are always sent, so it notices when the server recovers.
///
/// Each request counts, also one that is rejected locally. An accept is a response that is not a
/// rejection because of load. The window is counted in 40 slots: what is older than 39 to 40 of
/// them is forgotten.
///
/// ```
/// use ratekeeper_control::{Micros, Throttle};
///
/// let now = Micros::new(1_790_000_000_000_000);
/// let mut throttle = Throttle::default();
/// for _request in 0..99 {
///     throttle.on_request(now);
/// }
/// assert_eq!(throttle.reject_probability(now), 0.99); // the server accepts nothing
/// for _response in 0..50 {
///     throttle.on_accept(now);
/// }
/// assert!(!throttle.rejects(now, 0)); // it accepts half of the requests
/// ```
#[derive(Clone, Debug)]
pub struct Throttle {
    k: f64,
    requests: WindowCounter,
    accepts: WindowCounter,
}

impl Throttle {
    /// The multiplier K of [`Throttle::default`].
    pub const DEFAULT_K: f64 = 2.0;

    /// The window of [`Throttle::default`].
    pub const DEFAULT_WINDOW: Duration = Duration::from_secs(120);

    /// Returns a throttle that has seen no request.
    ///
    /// A lower `k` rejects earlier: with 1.1, one request is rejected by the server for about ten
    /// that it accepts.
    ///
    /// # Errors
    /// `k` is below 1 or not finite, or the window is not 1 ms to 24 hours.
    pub fn new(k: f64, window: Duration) -> Result<Self, ThrottleError> {
        if !(k.is_finite() && k >= 1.0) {
            return Err(ThrottleError::K(k));
        }
        let window = checked_window(window).ok_or(ThrottleError::Window(window))?;
        Ok(Self { k, requests: WindowCounter::new(window), accepts: WindowCounter::new(window) })
    }

    /// Counts a request, whether it is sent or rejected locally.
    pub fn on_request(&mut self, now: Micros) {
        self.requests.add(1, self.at_latest(now));
    }

    /// Counts a request that the server accepted.
    pub fn on_accept(&mut self, now: Micros) {
        self.accepts.add(1, self.at_latest(now));
    }

    /// Returns the probability with which a request is to be rejected, from 0 to below 1.
    #[must_use]
    pub fn reject_probability(&self, now: Micros) -> f64 {
        let now = self.at_latest(now);
        let requests = self.requests.at_most_window(now) as f64;
        let accepts = self.accepts.at_most_window(now) as f64;
        ((requests - self.k * accepts) / (requests + 1.0)).max(0.0)
    }

    /// Returns whether to reject this request. `random` is uniform.
    #[must_use = "a request that is rejected must not be sent"]
    pub fn rejects(&self, now: Micros, random: u64) -> bool {
        fraction(random) < self.reject_probability(now)
    }

    /// Returns the time by which both counters go: never before the latest one of either.
    fn at_latest(&self, now: Micros) -> Micros {
        now.max(self.requests.latest_time()).max(self.accepts.latest_time())
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new(Self::DEFAULT_K, Self::DEFAULT_WINDOW).expect("the default is valid")
    }
}

/// Why the parameters of a [`Throttle`] are rejected.
///
/// ```
/// use ratekeeper_control::{Throttle, ThrottleError};
///
/// let result = Throttle::new(0.5, Throttle::DEFAULT_WINDOW);
/// assert_eq!(result.unwrap_err(), ThrottleError::K(0.5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// The multiplier would reject requests of a server that accepts all of them.
    #[error("K must be at least 1, not {0}; use 2 to reject once the server accepts under half")]
    K(f64),
    /// The window is too short or too long.
    #[error("{0:?} is no window of a throttle; use 1 ms to 24 h")]
    Window(Duration),
}
