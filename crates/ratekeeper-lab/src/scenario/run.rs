//! The discrete event simulation of a scenario.

use std::collections::VecDeque;

use ratekeeper_control::Micros;

use super::limiter::Limiter;
use super::measures::Measures;
use super::setup::{ClientClass, ServiceSetup, Setup, Source};
use crate::event_queue::EventQueue;
use crate::random::Random;
use crate::retry::{Failed, RetryModel};

/// The most requests that can be under way.
const REQUESTS_MAX: usize = 2_000_000;

/// An attempt of a request: its place, and a number by which events of earlier attempts are recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AttemptId {
    place: usize,
    number: u64,
    class: usize,
    key: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A new request of a class comes, or several.
    Arrival { class: usize },
    /// A user sends the next request.
    User { class: usize },
    /// A client sends an attempt.
    Send { place: usize },
    /// The limiter receives an attempt.
    Received(AttemptId),
    /// The service receives an attempt.
    Admitted(AttemptId),
    /// A worker is done.
    Done(AttemptId),
    /// The client gets a response.
    Response(AttemptId, Outcome),
    /// The client gives up waiting.
    Deadline(AttemptId),
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Served,
    Failed(Failed),
}

#[derive(Clone, Debug)]
struct Request {
    class: usize,
    key: u64,
    retries: u32,
    began_us: u64,
    attempt: u64,
    is_open: bool,
}

struct Client<'s> {
    class: &'s ClientClass,
    retry: RetryModel,
    /// Arrivals have their own numbers, so that all variants get the same ones.
    arrivals: Random,
    random: Random,
    /// Time with a fraction, of open loops.
    arrival_us: f64,
    next: usize,
}

pub(super) struct Simulation<'s> {
    setup: &'s Setup,
    duration_us: u64,
    now_us: u64,
    events: EventQueue<Event>,
    clients: Vec<Client<'s>>,
    limiter: Option<Limiter<'s>>,
    requests: Vec<Request>,
    free: Vec<usize>,
    attempts: u64,
    queue: VecDeque<AttemptId>,
    busy_workers: u64,
    work: Random,
    measures: Measures,
}

impl<'s> Simulation<'s> {
    pub(super) fn new(setup: &'s Setup, duration_us: u64, seed: u64) -> Self {
        let mut seeds = Random::new(seed);
        let clients = setup.clients.iter().map(|class| Client::new(class, seeds.next()));
        let clients: Vec<_> = clients.collect();
        let keys = setup.clients.iter().map(|class| class.keys).sum();
        let limiter = setup.limiter.as_ref();
        Self {
            limiter: limiter.map(|limiter| Limiter::new(limiter, &setup.store, keys, seeds.next())),
            setup,
            duration_us,
            now_us: 0,
            events: EventQueue::default(),
            clients,
            requests: Vec::new(),
            free: Vec::new(),
            attempts: 0,
            queue: VecDeque::new(),
            busy_workers: 0,
            work: Random::new(seeds.next()),
            measures: Measures::new(duration_us),
        }
    }

    pub(super) fn run(mut self) -> Measures {
        (0..self.clients.len()).for_each(|class| self.start(class));
        while let Some(at_us) = self.events.next_us().filter(|at_us| *at_us < self.duration_us) {
            self.now_us = at_us;
            match self.events.pop().expect("it has a time") {
                Event::Arrival { class } => self.on_arrival(class),
                Event::User { class } => self.on_request(class, None),
                Event::Send { place } => self.on_send(place),
                Event::Received(attempt) => self.on_received(attempt),
                Event::Admitted(attempt) => self.on_admitted(attempt),
                Event::Done(attempt) => self.on_done(attempt),
                Event::Response(attempt, outcome) => self.on_response(attempt, outcome),
                Event::Deadline(attempt) => self.on_deadline(attempt),
            }
        }
        self.measures
    }

    /// Schedules what a class does first.
    fn start(&mut self, class: usize) {
        match &self.clients[class].class.source {
            Source::Open(_) | Source::Trace(_) => self.schedule_arrival(class),
            Source::Bursts { first_us, .. } => {
                self.events.schedule(*first_us, Event::Arrival { class });
            }
            Source::Closed { users, think_us } => {
                let (users, think_us) = (*users, *think_us);
                for _ in 0..users {
                    let at_us = self.clients[class].random.below(think_us.max(1));
                    self.events.schedule(at_us, Event::User { class });
                }
            }
        }
    }

    fn schedule_arrival(&mut self, class: usize) {
        let client = &mut self.clients[class];
        let next_us = match &client.class.source {
            Source::Open(load) => {
                let next_us = load.next_arrival_us(client.arrival_us, &mut client.arrivals);
                next_us.map(|us| {
                    client.arrival_us = us;
                    us as u64
                })
            }
            Source::Trace(arrivals) => arrivals.get(client.next).map(|arrival| arrival.at.get()),
            Source::Bursts { every_us, .. } => Some(self.now_us + every_us),
            Source::Closed { .. } => None,
        };
        if let Some(at_us) = next_us {
            self.events.schedule(at_us, Event::Arrival { class });
        }
    }

    fn on_arrival(&mut self, class: usize) {
        match &self.clients[class].class.source {
            Source::Bursts { size, .. } => {
                (0..*size).for_each(|n| self.on_request(class, Some(n)));
            }
            Source::Trace(_) => {
                let key = self.clients[class].next as u64;
                self.clients[class].next += 1;
                self.on_request(class, Some(key));
            }
            _ => self.on_request(class, None),
        }
        self.schedule_arrival(class);
    }

    /// A client has a new request.
    fn on_request(&mut self, class: usize, number: Option<u64>) {
        let now = Micros::new(self.now_us);
        let client = &mut self.clients[class];
        client.retry.requested(now);
        let keys = client.class.keys;
        let key = match (&client.class.source, number) {
            (Source::Trace(_), Some(number)) => number,
            (_, Some(number)) => number % keys,
            (Source::Open(_), None) => client.arrivals.below(keys),
            (_, None) => client.random.below(keys),
        };
        self.measures.requested();
        let began_us = self.now_us;
        let request = Request { class, key, retries: 0, began_us, attempt: 0, is_open: false };
        let place = match self.free.pop() {
            Some(place) => {
                self.requests[place] = request;
                place
            }
            None if self.requests.len() < REQUESTS_MAX => {
                self.requests.push(request);
                self.requests.len() - 1
            }
            None => return self.measures.overflowed(),
        };
        self.on_send(place);
    }

    fn on_send(&mut self, place: usize) {
        self.attempts += 1;
        let number = self.attempts;
        let request = &mut self.requests[place];
        (request.attempt, request.is_open) = (number, true);
        let (class, key) = (request.class, request.key);
        let attempt = AttemptId { place, number, class, key };
        let class = self.clients[class].class;
        self.events.schedule(self.now_us + class.timeout_us, Event::Deadline(attempt));
        let there_us = self.now_us + class.round_trip_us / 2;
        self.events.schedule(there_us, Event::Received(attempt));
    }

    fn on_received(&mut self, attempt: AttemptId) {
        let Some(limiter) = &mut self.limiter else {
            self.measures.decided(self.now_us, true);
            return self.on_admitted(attempt);
        };
        let class = self.clients[attempt.class].class;
        let key = match &class.source {
            Source::Trace(arrivals) => arrivals[attempt.key as usize].key.clone(),
            _ if class.keys == 1 => class.name.clone(),
            _ => format!("{}-{}", class.name, attempt.key + 1),
        };
        let decided = limiter.decide(&key, self.now_us);
        self.measures.decided(self.now_us, decided.is_admitted);
        let at_us = self.now_us + decided.held_us;
        if decided.is_admitted {
            self.events.schedule(at_us, Event::Admitted(attempt));
        } else {
            let failed = Failed { retry_after: decided.retry_after };
            self.respond(attempt, at_us, Outcome::Failed(failed));
        }
    }

    fn on_admitted(&mut self, attempt: AttemptId) {
        let Some(service) = &self.setup.service else {
            return self.respond(attempt, self.now_us, Outcome::Served);
        };
        if self.busy_workers < service.workers {
            self.begin(service, attempt);
        } else if (self.queue.len() as u64) < service.queue_max {
            self.queue.push_back(attempt);
        } else {
            self.respond(attempt, self.now_us, Outcome::Failed(Failed::default()));
        }
    }

    fn begin(&mut self, service: &ServiceSetup, attempt: AttemptId) {
        self.busy_workers += 1;
        let work_us = service.time.draw_us(&mut self.work) * service.slowness(self.now_us);
        self.events.schedule(self.now_us + work_us.ceil() as u64, Event::Done(attempt));
    }

    /// The service does not know that a client gave up, and works for it anyway.
    fn on_done(&mut self, attempt: AttemptId) {
        self.busy_workers -= 1;
        if let (Some(next), Some(service)) = (self.queue.pop_front(), &self.setup.service) {
            self.begin(service, next);
        }
        self.respond(attempt, self.now_us, Outcome::Served);
    }

    fn respond(&mut self, attempt: AttemptId, at_us: u64, outcome: Outcome) {
        let class = self.clients[attempt.class].class;
        let there_us = at_us + class.round_trip_us / 2;
        self.events.schedule(there_us, Event::Response(attempt, outcome));
    }

    fn is_current(&self, attempt: AttemptId) -> bool {
        let request = &self.requests[attempt.place];
        request.is_open && request.attempt == attempt.number
    }

    fn on_response(&mut self, attempt: AttemptId, outcome: Outcome) {
        if !self.is_current(attempt) {
            return;
        }
        self.requests[attempt.place].is_open = false;
        match outcome {
            Outcome::Served => {
                let Request { class, retries, began_us, .. } = self.requests[attempt.place];
                self.clients[class].retry.served(retries, Micros::new(self.now_us));
                self.measures.served(self.now_us, self.now_us - began_us);
                self.end(attempt.place);
            }
            Outcome::Failed(failed) => self.on_failure(attempt.place, failed),
        }
    }

    fn on_deadline(&mut self, attempt: AttemptId) {
        if self.is_current(attempt) {
            self.requests[attempt.place].is_open = false;
            self.measures.timed_out();
            self.on_failure(attempt.place, Failed::default());
        }
    }

    fn on_failure(&mut self, place: usize, failed: Failed) {
        let now = Micros::new(self.now_us);
        let request = &mut self.requests[place];
        let Client { class, retry, random, .. } = &mut self.clients[request.class];
        let retry_number = request.retries + 1;
        let delay = (retry_number <= class.retries_max)
            .then(|| retry.delay(retry_number, failed, now, &mut || random.next()))
            .flatten();
        match delay {
            Some(delay) => {
                request.retries = retry_number;
                let at_us = self.now_us + delay.as_micros() as u64;
                self.events.schedule(at_us, Event::Send { place });
            }
            None => {
                self.measures.failed(self.now_us);
                self.end(place);
            }
        }
    }

    /// A request is over. Its user thinks.
    fn end(&mut self, place: usize) {
        let class = self.requests[place].class;
        self.free.push(place);
        let client = &mut self.clients[class];
        if let Source::Closed { think_us, .. } = client.class.source {
            let think_us = client.random.gap() * think_us as f64;
            self.events.schedule(self.now_us + think_us as u64 + 1, Event::User { class });
        }
    }
}

impl<'s> Client<'s> {
    fn new(class: &'s ClientClass, seed: u64) -> Self {
        let retry = RetryModel::by_name(&class.retry).unwrap_or(RetryModel::Never);
        let mut seeds = Random::new(seed);
        let (arrivals, random) = (Random::new(seeds.next()), Random::new(seeds.next()));
        Self { class, retry, arrivals, random, arrival_us: 0.0, next: 0 }
    }
}
