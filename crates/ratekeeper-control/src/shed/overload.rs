//! Signals of overload, and what they say about an interval.

use std::time::Duration;

use super::config::ShedderConfig;

/// How busy a service is. Each is compared with its target: see
/// [`ShedderConfig`](crate::ShedderConfig).
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Micros, Overload, Shedder, ShedderConfig};
///
/// let mut shedder = Shedder::new(ShedderConfig::DEFAULT)?;
/// let now = Micros::new(1_790_000_000_000_000);
/// shedder.observe(Overload::QueueTime(Duration::from_millis(3)), now);
/// shedder.observe(Overload::InFlight { in_flight: 42, limit: 100 }, now);
/// shedder.observe(Overload::Utilization(0.7), now);
/// # Ok::<(), ratekeeper_control::ShedderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Overload {
    /// How long a request has waited in a queue until it was served, or gave up.
    ///
    /// An interval is overloaded if the shortest time in it is above the target, as in CoDel: a
    /// burst makes some requests wait, but only overload makes all of them wait.
    QueueTime(Duration),
    /// How many requests are in flight, including those that wait or were rejected, and how many
    /// may be: a concurrency limit, also one that adapts.
    ///
    /// An interval is overloaded if the mean is above the limit.
    InFlight {
        /// The requests in flight.
        in_flight: u64,
        /// The limit.
        limit: u64,
    },
    /// A utilization from 0 to 1 that the program measures: of workers, connections or CPU time.
    ///
    /// An interval is overloaded if the mean is above the target.
    Utilization(f64),
}

/// The signals of one interval.
#[derive(Clone, Debug, Default)]
pub(super) struct IntervalSignal {
    queue_min: Option<f64>,
    in_flight: Mean,
    utilization: Mean,
}

impl IntervalSignal {
    pub(super) fn add(&mut self, signal: Overload, config: &ShedderConfig) {
        match signal {
            Overload::QueueTime(waited) => {
                let ratio = waited.as_secs_f64() / config.queue_target().as_secs_f64();
                let excess = ratio - 1.0;
                self.queue_min = Some(self.queue_min.map_or(excess, |min| min.min(excess)));
            }
            Overload::InFlight { in_flight, limit } => {
                self.in_flight.add(in_flight as f64 / limit.max(1) as f64 - 1.0);
            }
            Overload::Utilization(utilization) => {
                // A NaN says nothing.
                if utilization.is_nan() {
                    return;
                }
                let target = config.utilization_target();
                let above = utilization.clamp(0.0, 1.0) - target;
                // At most 1, because a utilization says nothing about how much is rejected.
                let range = if above > 0.0 { 1.0 - target } else { target };
                self.utilization.add(above / range);
            }
        }
    }

    /// Returns how far the interval was above its target, relative to it: 0 at the target, −1 if
    /// idle. Of several signals the highest counts. `None` if there was none.
    pub(super) fn excess(&self) -> Option<f64> {
        [self.queue_min, self.in_flight.get(), self.utilization.get()]
            .into_iter()
            .flatten()
            .reduce(f64::max)
    }
}

#[derive(Clone, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}
