//! The default: finds the knee of the throughput curve.

use super::{LimitAlgorithm, Window};

/// Keeps as many requests in flight as the service needs to be busy, and a few more.
///
/// More requests in flight bring more throughput, until all workers are busy: the knee. Beyond it
/// they only wait, and latency grows instead. The knee is throughput × latency without queueing
/// (Little's law), which is what BBR uses for the path of a TCP connection. The limit is 1.4 times
/// that, plus 1.5 times its square root, plus the requests in flight that wait for nothing: streams after
/// their first byte, and requests that hang.
///
/// The latency without queueing is the difficult part, because under overload no request is without
/// queueing, and because a service that became slower looks like a service that is overloaded. One
/// test distinguishes them, and is all that this controller relies on:
///
/// > Lower the limit. If latency falls as much as a queue would make it fall, there was a queue. If
/// > not, the service is just that slow, and this is the latency without queueing.
///
/// It is a state machine:
///
/// - **climb**: after a cold start the limit grows by half in each window in which it was reached,
///   until latency grows as a queue would make it grow.
/// - **descend**: the requests in flight shrink by three to five tenths per window while that
///   removes queueing. Once it does not, the baseline is found.
/// - **hold**: the limit follows throughput × baseline. It descends again when latency says that
///   the queue is too long, and every 24 windows under load, so that the baseline cannot drift in
///   either direction. Those descents end a little below the knee, where nothing waits.
///
/// A descent costs some throughput in its last window, which is below the knee: about 1% of all
/// under sustained overload. It begins only if the limit was reached or if latency is much higher
/// than the baseline: no caller is rejected to measure a service that is well. When a service with
/// spare capacity becomes several times slower at once, the first descent rejects some callers for
/// a few windows, until it has found the new baseline.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::Micros;
/// use ratekeeper_control::adaptive::{Bounds, ConcurrencyController, Knee, Window};
///
/// // 10 workers of 10 ms, and more requests than they can process.
/// let mut controller = ConcurrencyController::new(Knee::default(), Bounds::DEFAULT);
/// for second in 0..60 {
///     let limit = controller.limit();
///     let latency = Duration::from_millis(u64::from(limit.max(10)));
///     let throughput = (u64::from(limit) * 100).min(1_000);
///     let _ = controller.update(&Window {
///         now: Micros::new(second * 1_000_000),
///         duration: Duration::from_secs(1),
///         samples: throughput,
///         successes: throughput,
///         latency_min: latency,
///         latency_typical: latency,
///         latency_mean: latency,
///         latency_p90: latency,
///         in_flight_peak: limit,
///         in_flight_mean: f64::from(limit),
///         ..Window::default()
///     });
/// }
/// assert!((10..=20).contains(&controller.limit()), "{}", controller.limit());
/// ```
#[derive(Clone, Debug)]
pub struct Knee {
    phase: Phase,
    baseline: Option<Baseline>,
    /// What the window before showed.
    previous: Option<Point>,
    /// Requests in flight that are not waiting for their sample.
    held: f64,
    /// The limit before the latest step of the climb.
    climbed_from: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Climb,
    Descend,
    Hold { windows_left: u32 },
}

/// Latencies without queueing, in seconds.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    typical: f64,
    mean: f64,
    /// Whether a descent has found it. Before that, it may be one of a queue.
    is_found: bool,
}

/// What a window shows of the throughput curve.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// Requests in flight that wait for their sample.
    active: f64,
    throughput: f64,
    typical: f64,
    mean: f64,
}

impl Point {
    /// Returns which share of the additional requests of `more` waited in a queue: 1 if they brought
    /// latency and no throughput, 0 if they brought throughput and no latency. Both are noisy, so the
    /// mean of both counts.
    fn queued_share(&self, more: &Self) -> f64 {
        let requests = (more.active - self.active).max(f64::MIN_POSITIVE);
        let by_latency = (more.typical - self.typical) * more.throughput / requests;
        let by_throughput =
            1.0 - (more.throughput / self.throughput).ln() / (more.active / self.active).ln();
        (by_latency.clamp(0.0, 1.0) + by_throughput.clamp(0.0, 1.0)) / 2.0
    }
}

impl Baseline {
    fn of(point: Point) -> Self {
        Self { typical: point.typical, mean: point.mean, is_found: false }
    }

    /// Follows latencies that are much shorter. Those that are a little shorter are noise.
    fn lower(self, point: Point) -> Self {
        if point.typical < 0.7 * self.typical { Self::of(point) } else { self }
    }

    /// Returns the baseline that a descent has found.
    fn found(self, point: Point) -> Self {
        let is_close = (0.75..1.33).contains(&(point.typical / self.typical));
        let weight = if is_close { 0.5 } else { 1.0 };
        Self {
            is_found: true,
            typical: self.typical + (point.typical - self.typical) * weight,
            mean: self.mean + (point.mean - self.mean) * weight,
        }
    }
}

impl Knee {
    /// How far the limit is above the knee, so that workers always find work.
    const GAIN: f64 = 1.4;
    /// Times the square root of the knee: a few workers need more, as all of them are idle more often.
    const HEADROOM: f64 = 1.5;
    const CLIMB: f64 = 1.5;
    /// A descent shrinks the requests in flight at least to this ...
    const DESCEND: f64 = 0.7;
    /// ... and at most to this, in one window.
    const DESCEND_FAR: f64 = 0.5;
    const BELOW_KNEE: f64 = 0.85;
    /// Windows between two descents under load.
    const HOLD_WINDOWS: u32 = 24;
    /// A share of queued requests above this is a queue.
    const QUEUED: f64 = 0.5;
    /// Latency above the baseline by less than this is no queueing.
    const QUEUEING: f64 = 1.15;
    /// The same below the knee, where a wrong answer costs throughput.
    const STILL_QUEUEING: f64 = 1.3;
    /// Timeouts up to this share are requests that hang, not overload.
    const OVERLOAD_SHARE: f64 = 0.1;
    /// Windows with fewer samples are too noisy.
    const SAMPLES_MIN: u64 = 20;
    /// A smaller share of requests that seem to be held is noise.
    const HELD_SHARE: f64 = 0.15;

    const HOLD: Phase = Phase::Hold { windows_left: Self::HOLD_WINDOWS };

    /// Returns the limit for a throughput.
    fn target(&self, throughput: f64, baseline: Baseline) -> f64 {
        let knee = throughput * baseline.mean;
        self.held + Self::GAIN * knee + Self::HEADROOM * knee.sqrt()
    }

    fn point(&mut self, window: &Window) -> Point {
        let (throughput, mean) = (window.throughput(), window.latency_mean.as_secs_f64());
        let held = window.in_flight_mean - throughput * mean;
        let held = if held > Self::HELD_SHARE * window.in_flight_mean { held } else { 0.0 };
        // New streams occupy the limit at once.
        self.held = held.max((self.held + held) / 2.0);
        let active = (window.in_flight_mean - self.held).max(throughput * mean * 0.5);
        Point { active, throughput, typical: window.latency_typical.as_secs_f64(), mean }
    }

    fn climb(&mut self, limit: f64, point: Point, previous: Option<Point>) -> f64 {
        let is_queueing = previous.is_some_and(|previous| {
            point.active > previous.active * 1.1 && previous.queued_share(&point) > Self::QUEUED
        });
        // The guards stopped it, so the only way to learn more is down.
        let is_stopped = self.climbed_from.is_some_and(|from| limit < from * 1.1);
        if is_queueing || is_stopped {
            return self.begin_descent(point);
        }
        self.climbed_from = Some(limit);
        limit * Self::CLIMB
    }

    fn begin_descent(&mut self, point: Point) -> f64 {
        self.phase = Phase::Descend;
        // A little below the knee, where nothing waits if the baseline is right.
        let knee = self.baseline.map_or(0.0, |baseline| point.throughput * baseline.mean);
        let below_knee = Self::BELOW_KNEE * knee;
        self.held + below_knee.clamp(point.active * Self::DESCEND_FAR, point.active * Self::DESCEND)
    }

    fn descend(&mut self, point: Point, previous: Point, baseline: Baseline) -> f64 {
        let is_queueing =
            !baseline.is_found || point.typical > Self::STILL_QUEUEING * baseline.typical;
        let is_less = point.active < previous.active * 0.95;
        if is_queueing && is_less && point.queued_share(&previous) > Self::QUEUED {
            return self.begin_descent(point);
        }
        // Fewer requests do not make it faster: this is the latency without queueing.
        self.phase = Self::HOLD;
        let baseline = baseline.found(point);
        self.baseline = Some(baseline);
        self.target(previous.throughput.max(point.throughput), baseline)
    }

    fn hold(&mut self, limit: f64, target: f64, windows_left: u32, is_queueing: bool) -> f64 {
        self.phase = Phase::Hold { windows_left: windows_left.saturating_sub(1) };
        let target = if is_queueing { target } else { target.max(limit * Self::CLIMB) };
        // Streams occupy the limit faster than an average would follow.
        if target > 1.2 * limit || (target > limit && self.held > limit / 2.0) {
            target.min(limit * Self::CLIMB)
        } else {
            limit + (target - limit) * 0.3
        }
    }
}

impl Default for Knee {
    fn default() -> Self {
        Self { phase: Phase::Climb, baseline: None, previous: None, held: 0.0, climbed_from: None }
    }
}

impl LimitAlgorithm for Knee {
    fn name(&self) -> &'static str {
        "knee"
    }

    fn next_limit(&mut self, limit: f64, window: &Window) -> f64 {
        if window.overload_share() > Self::OVERLOAD_SHARE {
            self.previous = None;
            return limit * Self::DESCEND;
        }
        let is_limited = window.reached(limit as u32);
        if window.samples < Self::SAMPLES_MIN {
            return limit;
        }
        if is_limited && window.in_flight_mean < (limit - 1.0) / 2.0 {
            // The load rose within the window, so its means are those of no load in particular.
            self.previous = None;
            return limit;
        }
        let point = self.point(window);
        let baseline = self.baseline.unwrap_or(Baseline::of(point)).lower(point);
        self.baseline = Some(baseline);
        let previous = self.previous.replace(point);
        let target = self.target(point.throughput, baseline);
        let is_queueing = point.typical > Self::QUEUEING * baseline.typical;
        match self.phase {
            Phase::Climb if is_limited && target >= 0.8 * window.in_flight_mean => {
                self.climb(limit, point, previous)
            }
            Phase::Descend if is_limited => match previous {
                Some(previous) => self.descend(point, previous, baseline),
                None => self.begin_descent(point),
            },
            _ if target < 0.8 * window.in_flight_mean => self.begin_descent(point),
            Phase::Hold { windows_left: 0 } if is_limited => self.begin_descent(point),
            Phase::Hold { windows_left } if is_limited => {
                self.hold(limit, target, windows_left, is_queueing)
            }
            Phase::Descend => {
                self.phase = Self::HOLD;
                limit.max(target)
            }
            Phase::Climb | Phase::Hold { .. } => limit,
        }
    }
}
