//! What requests wait and take at a rate: a queue in virtual time.
//!
//! Requests arrive at random (Poisson) and go to a pod at random. A pod processes as many as its concurrency
//! at once, and the others wait in the order of their arrival. With one pod and exponential latencies this
//! is the M/M/c queue of the textbooks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::{CapacityPlan, LatencyModel, Percentile, Ratio, ResponseTimes, Slo};
use crate::random::Random;

/// Enough for a p99 within a few percent.
const REQUESTS: usize = 200_000;
/// Requests of the beginning, when the queues are still empty.
const WARM_UP: usize = REQUESTS / 10;
const SEED: u64 = 1;
/// Rates are searched to this part of the ceiling.
const SEARCH_STEPS: u64 = 1_000;

/// The queues of the pods of a plan.
#[derive(Clone, Debug)]
pub struct QueueModel<'p> {
    plan: &'p CapacityPlan,
    latencies: &'p LatencyModel,
}

/// What response times are at a rate.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Whose rate it is.
    pub name: String,
    /// The rate.
    pub per_second: f64,
    /// The share of the concurrency that is in use, from 0 to 1 and above.
    pub utilisation: f64,
    /// The response times; `None` if the queues grow without end.
    pub response_times: Option<ResponseTimes>,
}

/// Whether an objective is kept.
#[derive(Clone, Debug, Serialize)]
pub struct SloCheck {
    /// The objective.
    pub slo: String,
    /// The percentile at the safe rate; `None` if the queues grow without end.
    pub at_safe_rate_us: Option<u64>,
    /// Whether the objective is kept there.
    pub is_kept: bool,
    /// The highest rate up to the capacity at which it is kept; `None` if it is not kept even without load.
    pub kept_up_to_per_second: Option<f64>,
}

impl<'p> QueueModel<'p> {
    /// Creates the model of a plan.
    #[must_use]
    pub fn new(plan: &'p CapacityPlan, latencies: &'p LatencyModel) -> Self {
        Self { plan, latencies }
    }

    /// Returns the response times without load, at the safe rate and at the ceiling.
    #[must_use]
    pub fn loads(&self) -> Vec<Load> {
        let safe = Ratio::per_second(self.plan.safe).as_f64();
        let ceiling = self.plan.ceiling.as_f64();
        vec![self.load("no load", 0.0), self.load("safe rate", safe), self.load("ceiling", ceiling)]
    }

    /// Returns whether an objective is kept at the safe rate, and up to which rate.
    #[must_use]
    pub fn check(&self, slo: Slo) -> SloCheck {
        let at = |per_second: f64| {
            let is_stable = self.utilisation(per_second) < 1.0;
            is_stable.then(|| slo.percentile.of(&self.response_times(per_second)))
        };
        let is_kept = |us: Option<u64>| us.is_some_and(|us| us <= slo.us);
        let at_safe_rate_us = at(Ratio::per_second(self.plan.safe).as_f64());
        SloCheck {
            slo: slo.to_string(),
            at_safe_rate_us,
            is_kept: is_kept(at_safe_rate_us),
            kept_up_to_per_second: self.highest_rate(|per_second| is_kept(at(per_second))),
        }
    }

    /// Returns how many requests per second keep all workers busy.
    fn capacity(&self) -> f64 {
        self.plan.concurrency as f64 / self.latencies.mean_us() * 1e6
    }

    fn utilisation(&self, per_second: f64) -> f64 {
        per_second / self.capacity()
    }

    fn highest_rate(&self, is_kept: impl Fn(f64) -> bool) -> Option<f64> {
        let rate = |step: u64| self.capacity() * step as f64 / SEARCH_STEPS as f64;
        if !is_kept(rate(0)) {
            return None;
        }
        let (mut kept, mut missed) = (0, SEARCH_STEPS);
        while missed - kept > 1 {
            let middle = kept.midpoint(missed);
            *(if is_kept(rate(middle)) { &mut kept } else { &mut missed }) = middle;
        }
        Some(rate(kept))
    }

    fn load(&self, name: &str, per_second: f64) -> Load {
        let utilisation = self.utilisation(per_second);
        let response_times = (utilisation < 1.0).then(|| {
            let sorted = self.response_times(per_second);
            ResponseTimes {
                p50_us: Percentile::P50.of(&sorted),
                p95_us: Percentile::P95.of(&sorted),
                p99_us: Percentile::P99.of(&sorted),
            }
        });
        Load { name: name.to_string(), per_second, utilisation, response_times }
    }

    /// Returns the response times of requests at a rate, sorted.
    fn response_times(&self, per_second: f64) -> Vec<u64> {
        let (mut arrivals, mut draws) = (Random::new(SEED), Random::new(SEED + 1));
        let mut pods = vec![Pod::new(self.plan.per_pod); self.plan.pods as usize];
        let gap_us = if per_second > 0.0 { 1e6 / per_second } else { f64::INFINITY };
        let mut now_us = 0.0;
        let mut times = Vec::with_capacity(REQUESTS - WARM_UP);
        for n in 0..REQUESTS {
            let work_us = self.latencies.draw_us(&mut draws);
            let pod = arrivals.below(u64::from(self.plan.pods)) as usize;
            let response_us = match gap_us.is_finite() {
                false => work_us,
                true => {
                    now_us += arrivals.gap() * gap_us;
                    pods[pod].response_us(now_us, work_us)
                }
            };
            if n >= WARM_UP {
                times.push(response_us as u64);
            }
        }
        times.sort_unstable();
        times
    }
}

/// When the requests in flight of a pod end.
#[derive(Clone, Debug)]
struct Pod {
    concurrency: usize,
    ends_us: BinaryHeap<Reverse<u64>>,
}

impl Pod {
    fn new(concurrency: u32) -> Self {
        Self { concurrency: concurrency as usize, ends_us: BinaryHeap::new() }
    }

    fn response_us(&mut self, now_us: f64, work_us: f64) -> f64 {
        let mut begin_us = now_us;
        if self.ends_us.len() == self.concurrency {
            let Reverse(free_us) = self.ends_us.pop().expect("a pod has concurrency");
            begin_us = begin_us.max(free_us as f64);
        }
        let end_us = begin_us + work_us;
        self.ends_us.push(Reverse(end_us as u64));
        end_us - now_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Capacity;

    /// The share of requests that wait in an M/M/c queue (Erlang C).
    fn erlang_c(servers: u32, offered: f64) -> f64 {
        let blocking = (1..=servers).fold(1.0, |blocking, n| {
            let next = offered * blocking;
            next / (f64::from(n) + next)
        });
        let busy = offered / f64::from(servers);
        blocking / (1.0 - busy * (1.0 - blocking))
    }

    #[test]
    fn one_pod_with_exponential_latencies_is_the_queue_of_the_textbook() {
        let plan = Capacity::new(1, 10, 100_000, "100%".parse().unwrap()).unwrap().plan().unwrap();
        let mean_us = 100_000.0;
        let latencies = LatencyModel::of_p95((mean_us * 20f64.ln()) as u64);
        let model = QueueModel::new(&plan, &latencies);
        for busy in [0.5, 0.8, 0.9] {
            let per_second = busy * model.capacity();
            let times = model.response_times(per_second);
            let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
            let wait = erlang_c(10, 10.0 * busy) * mean_us / (10.0 * (1.0 - busy));
            let expected = mean_us + wait;
            assert!((mean / expected - 1.0).abs() < 0.03, "{busy}: {mean} instead of {expected}");
        }
    }
}
