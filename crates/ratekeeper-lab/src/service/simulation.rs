//! The discrete event simulation.

use std::collections::VecDeque;
use std::time::Duration;

use ratekeeper_control::adaptive::SampleOutcome;
use ratekeeper_control::{Backoff, Micros, RetryBudget};

use super::event::{Attempt, Event};
use super::load::Clients;
use super::measures::Measures;
use super::protection::{ConcurrencyLimiter, Protection};
use super::service_time::fraction;
use super::{Scenario, micros};
use crate::event_queue::EventQueue;
use crate::random::Random;

/// Naive clients retry after this.
const NAIVE_DELAY_US: u64 = 50_000;

/// Runs a scenario behind a protection.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_lab::service::{Load, Protection, Scenario, ServiceTime, simulate};
///
/// let service_time = ServiceTime::Exponential(Duration::from_millis(10));
/// let load = Load::constant(2_000.0, Duration::from_secs(10));
/// let scenario = Scenario::new("twice the capacity", 10, service_time, load);
/// let [one, two] = [1, 1].map(|seed| simulate(&scenario, Protection::Knee, seed).goodput());
/// assert_eq!(one, two);
/// ```
#[must_use]
pub fn simulate(scenario: &Scenario, protection: Protection, seed: u64) -> Measures {
    simulate_behind(scenario, &mut *protection.limiter(), seed)
}

/// Runs a scenario behind a concurrency limit.
#[must_use]
pub fn simulate_behind(
    scenario: &Scenario,
    limiter: &mut dyn ConcurrencyLimiter,
    seed: u64,
) -> Measures {
    Simulation::new(scenario, limiter, seed).run()
}

struct Simulation<'s> {
    scenario: &'s Scenario,
    timeout_us: u64,
    limiter: &'s mut dyn ConcurrencyLimiter,
    measures: Measures,
    /// Each kind of chance has its own numbers, so that all protections get the same arrivals.
    arrivals: Random,
    chances: Random,
    retries: Random,
    events: EventQueue<Event>,
    /// Admitted requests in the order of their deadlines, which is that of their admission.
    deadlines: VecDeque<(u64, usize)>,
    requests: Vec<Request>,
    /// Places in `requests` that can be reused.
    free: Vec<usize>,
    queue: VecDeque<usize>,
    busy_workers: u32,
    in_flight: u32,
    budget: RetryBudget,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    attempt: Attempt,
    admitted_us: u64,
    work_us: f64,
    is_stream: bool,
    /// Has a response, or its client gave up.
    is_over: bool,
    /// It is in the list of deadlines, and in the service: it is freed when it is in neither.
    references: u8,
}

impl<'s> Simulation<'s> {
    fn new(scenario: &'s Scenario, limiter: &'s mut dyn ConcurrencyLimiter, seed: u64) -> Self {
        let mut seeds = Random::new(seed);
        Self {
            scenario,
            timeout_us: micros(scenario.timeout),
            limiter,
            measures: Measures::new(scenario),
            arrivals: Random::new(seeds.next()),
            chances: Random::new(seeds.next()),
            retries: Random::new(seeds.next()),
            events: EventQueue::default(),
            deadlines: VecDeque::new(),
            requests: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            busy_workers: 0,
            in_flight: 0,
            budget: RetryBudget::default(),
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(2)),
        }
    }

    fn run(mut self) -> Measures {
        let load = &self.scenario.load;
        let mut arrival_us = load.next_arrival_us(0.0, &mut self.arrivals);
        while let Some(next_us) = arrival_us {
            let now_us = next_us as u64;
            self.run_until(now_us);
            self.measures.on_arrival(now_us);
            if self.scenario.clients == Clients::Budgeted {
                self.budget.deposit(Micros::new(now_us));
            }
            self.attempt(Attempt { retry: 0 }, now_us);
            arrival_us = load.next_arrival_us(next_us, &mut self.arrivals);
        }
        self.run_until(micros(load.duration()));
        self.measures
    }

    /// Runs all events up to `until_us`.
    fn run_until(&mut self, until_us: u64) {
        loop {
            let event_us = self.events.next_us().unwrap_or(u64::MAX);
            let deadline_us = self.deadlines.front().map_or(u64::MAX, |(at_us, _)| *at_us);
            if event_us.min(deadline_us) > until_us {
                return;
            }
            if deadline_us < event_us {
                let (_, request) = self.deadlines.pop_front().expect("it has a deadline");
                self.on_deadline(request, deadline_us);
            } else {
                match self.events.pop().expect("it has a time") {
                    Event::Done { request } => self.on_done(request, event_us),
                    Event::StreamEnd => self.in_flight -= 1,
                    Event::Retry(attempt) => self.attempt(attempt, event_us),
                }
            }
        }
    }

    fn attempt(&mut self, attempt: Attempt, now_us: u64) {
        let limit = self.limiter.limit();
        self.measures.on_limit(limit, now_us);
        if self.in_flight >= limit {
            self.measures.on_rejected(now_us);
            return self.on_failure(attempt, now_us);
        }
        self.in_flight += 1;
        let is_hung = self.chance(self.scenario.hung_share);
        let streams = self.scenario.streams;
        let is_stream = streams.is_some_and(|streams| self.chance(streams.share));
        let request = Request {
            attempt,
            admitted_us: now_us,
            work_us: self.scenario.service_time.draw_us(&mut self.chances),
            is_stream,
            is_over: false,
            references: if is_hung { 1 } else { 2 },
        };
        let request = self.insert(request);
        self.deadlines.push_back((now_us + self.timeout_us, request));
        if is_hung {
            return;
        }
        if self.busy_workers < self.scenario.workers {
            self.begin(request, now_us);
        } else {
            self.queue.push_back(request);
            self.measures.on_queue(self.queue.len());
        }
    }

    fn begin(&mut self, request: usize, now_us: u64) {
        self.busy_workers += 1;
        let work_us = self.requests[request].work_us * self.scenario.slowness(now_us);
        self.events.schedule(now_us + work_us.ceil() as u64, Event::Done { request });
    }

    fn on_done(&mut self, request: usize, now_us: u64) {
        self.busy_workers -= 1;
        if let Some(next) = self.queue.pop_front() {
            self.begin(next, now_us);
        }
        let Request { admitted_us, is_stream, is_over, .. } = self.requests[request];
        self.release(request);
        if is_over {
            return;
        }
        self.requests[request].is_over = true;
        let latency_us = now_us - admitted_us;
        self.record(SampleOutcome::Success, latency_us, now_us);
        self.measures.on_success(latency_us, now_us);
        match self.scenario.streams {
            Some(streams) if is_stream && self.limiter.holds_streams() => {
                self.events.schedule(now_us + micros(streams.duration), Event::StreamEnd);
            }
            _ => self.in_flight -= 1,
        }
    }

    fn on_deadline(&mut self, request: usize, now_us: u64) {
        let Request { attempt, is_over, .. } = self.requests[request];
        self.requests[request].is_over = true;
        self.release(request);
        if is_over {
            return;
        }
        self.record(SampleOutcome::Overload, self.timeout_us, now_us);
        self.measures.on_timeout(self.timeout_us, now_us);
        self.in_flight -= 1;
        self.on_failure(attempt, now_us);
    }

    fn record(&mut self, outcome: SampleOutcome, latency_us: u64, now_us: u64) {
        let latency = Duration::from_micros(latency_us);
        self.limiter.record(outcome, latency, self.in_flight, Micros::new(now_us));
    }

    /// Lets the client retry.
    fn on_failure(&mut self, attempt: Attempt, now_us: u64) {
        if !attempt.may_retry(self.scenario.clients) {
            return;
        }
        let delay_us = match self.scenario.clients {
            Clients::OneShot => return,
            Clients::Naive { .. } => NAIVE_DELAY_US,
            Clients::Budgeted => {
                if !self.budget.try_withdraw(Micros::new(now_us)) {
                    return;
                }
                let random = self.retries.next();
                micros(self.backoff.delay(attempt.retry + 1, Duration::ZERO, random))
            }
        };
        let retry = Event::Retry(Attempt { retry: attempt.retry + 1 });
        self.events.schedule(now_us + delay_us, retry);
    }

    fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && fraction(&mut self.chances) < share
    }

    fn insert(&mut self, request: Request) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.requests[place] = request;
                place
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        }
    }

    fn release(&mut self, request: usize) {
        let references = &mut self.requests[request].references;
        *references -= 1;
        if *references == 0 {
            self.free.push(request);
        }
    }
}
