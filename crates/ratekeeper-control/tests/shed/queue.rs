//! A service with workers and a bounded queue, in virtual time: what it serves under overload.

use std::collections::VecDeque;
use std::time::Duration;

use ratekeeper_control::{Class, Micros, Overload, Shedder, ShedderConfig, user_hash};

const START: u64 = 1_790_000_000_000_000;
const TICK_US: u64 = 100;
const SECOND: u64 = 1_000_000;

const WORKERS: usize = 10;
const SERVICE_MS: u64 = 10;
/// Requests per second.
const CAPACITY: u64 = WORKERS as u64 * 1_000 / SERVICE_MS;
const QUEUE_MAX: usize = 200;
const USERS: u64 = 5_000;

const CRITICAL: Class = Class::new(0);
const NORMAL: Class = Class::new(1);
const BULK: Class = Class::new(2);

/// A generator of numbers that is good enough for arrivals (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn up_to(&mut self, max: u64) -> u64 {
        self.next() % (max + 1)
    }
}

struct Queued {
    class: Class,
    at: u64,
}

/// What happened to the requests of a class in one second.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    offered: u64,
    served: u64,
    wait_max_us: u64,
}

struct Service {
    now: u64,
    random: Random,
    shedder: Option<Shedder>,
    queue: VecDeque<Queued>,
    /// When each worker is free.
    workers: [u64; WORKERS],
    /// The share of the next arrival that is due, in millionths, for each class.
    due: [u64; 3],
}

impl Service {
    fn new(shedder: Option<Shedder>) -> Self {
        let random = Random(0x2545_f491_4f6c_dd1d);
        let workers = [START; WORKERS];
        Self { now: START, random, shedder, queue: VecDeque::new(), workers, due: [0; 3] }
    }

    fn with(config: ShedderConfig) -> Self {
        Self::new(Some(Shedder::new(config.with_classes(3)).unwrap()))
    }

    /// Runs for a second with these rates of requests per second.
    fn run_second(&mut self, rates: [u64; 3]) -> [Served; 3] {
        let mut served = [Served::default(); 3];
        let end = self.now + SECOND;
        while self.now < end {
            for (class, rate) in [CRITICAL, NORMAL, BULK].into_iter().zip(rates) {
                let of_class = &mut served[usize::from(class.rank())];
                let due = &mut self.due[usize::from(class.rank())];
                // Between nothing and twice the rate, so that arrivals are uneven.
                *due += self.random.up_to(2 * rate * TICK_US);
                for _ in 0..*due / SECOND {
                    of_class.offered += 1;
                    self.arrive(class);
                }
                let due = &mut self.due[usize::from(class.rank())];
                *due %= SECOND;
            }
            self.serve(&mut served);
            self.now += TICK_US;
        }
        served
    }

    fn arrive(&mut self, class: Class) {
        let now = Micros::new(self.now);
        let user = user_hash(&self.random.up_to(USERS - 1).to_le_bytes());
        if let Some(shedder) = &mut self.shedder
            && !shedder.admit(class, user, now).is_admitted()
        {
            return;
        }
        if self.queue.len() < QUEUE_MAX {
            self.queue.push_back(Queued { class, at: self.now });
        }
    }

    fn serve(&mut self, served: &mut [Served; 3]) {
        for worker in &mut self.workers {
            if *worker > self.now {
                continue;
            }
            let Some(request) = self.queue.pop_front() else { return };
            let waited = self.now - request.at;
            if let Some(shedder) = &mut self.shedder {
                let signal = Overload::QueueTime(Duration::from_micros(waited));
                shedder.observe(signal, Micros::new(self.now));
            }
            // Between half and one and a half times the mean.
            *worker = self.now + SERVICE_MS * 500 + self.random.up_to(SERVICE_MS * 1_000);
            let of_class = &mut served[usize::from(request.class.rank())];
            of_class.served += 1;
            of_class.wait_max_us = of_class.wait_max_us.max(waited);
        }
    }

    /// Runs for some seconds with these rates.
    fn run(&mut self, secs: usize, rates: [u64; 3]) -> Vec<[Served; 3]> {
        (0..secs).map(|_| self.run_second(rates)).collect()
    }
}

/// Returns the share of a class that was served.
fn goodput(seconds: &[[Served; 3]], class: Class) -> f64 {
    let of_class = || seconds.iter().map(|second| second[usize::from(class.rank())]);
    let served: u64 = of_class().map(|it| it.served).sum();
    let offered: u64 = of_class().map(|it| it.offered).sum();
    served as f64 / offered as f64
}

/// Returns what was served of all classes, as a share of the capacity.
fn throughput(seconds: &[[Served; 3]]) -> f64 {
    let served: u64 = seconds.iter().flatten().map(|it| it.served).sum();
    served as f64 / (seconds.len() as u64 * CAPACITY) as f64
}

/// 40% of the capacity are critical, 40% normal, and bulk makes up the rest of the load.
fn rates(overload: u64) -> [u64; 3] {
    [CAPACITY * 4 / 10, CAPACITY * 4 / 10, CAPACITY * overload - CAPACITY * 8 / 10]
}

/// Four fifths of the capacity.
const NORMAL_LOAD: [u64; 3] = [CAPACITY * 4 / 10, CAPACITY * 3 / 10, CAPACITY / 10];

#[test]
fn without_shedding_the_critical_class_suffers_with_the_others() {
    for (overload, served) in [(2, 0.55), (10, 0.15)] {
        let seconds = Service::new(None).run(30, rates(overload));
        assert!(goodput(&seconds, CRITICAL) < served, "{}", goodput(&seconds, CRITICAL));
    }
}

#[test]
fn goodput_of_the_critical_class_stays_up_under_overload() {
    for overload in [2, 10] {
        let mut service = Service::with(ShedderConfig::DEFAULT);
        service.run(5, NORMAL_LOAD);
        let seconds = service.run(60, rates(overload));
        let converged = &seconds[2..];
        let goodputs = [CRITICAL, NORMAL, BULK].map(|class| goodput(converged, class));
        assert!(goodputs[0] > 0.99 && goodputs[1] > 0.95, "x{overload}: {goodputs:?}");
        assert!(goodputs[2] > 0.0, "x{overload}: what is left goes to the lowest class");
        assert!(throughput(converged) > 0.92, "x{overload}: {}", throughput(converged));
        let longest = converged.iter().flatten().map(|second| second.wait_max_us).max().unwrap();
        assert!(longest < 150_000, "x{overload}: {longest} us; the full queue is 200 ms");
    }
}

#[test]
fn all_is_served_again_within_ten_seconds_after_the_overload() {
    for overload in [2, 10] {
        let mut service = Service::with(ShedderConfig::DEFAULT);
        service.run(60, rates(overload));
        service.run(10, NORMAL_LOAD);
        let seconds = service.run(10, NORMAL_LOAD);
        for class in [CRITICAL, NORMAL, BULK] {
            assert!(goodput(&seconds, class) > 0.99, "x{overload} {class}");
        }
        assert!(service.shedder.unwrap().is_idle());
    }
}

#[test]
fn an_overload_of_the_critical_class_alone_is_shed_by_user() {
    let mut service = Service::with(ShedderConfig::DEFAULT);
    let seconds = service.run(60, [CAPACITY * 3, 0, 0]);
    let converged = &seconds[10..];
    assert!(throughput(converged) > 0.92, "{}", throughput(converged));
}

#[test]
fn a_flood_of_a_class_with_a_reserve_takes_no_more_than_the_reserve_from_others() {
    let config = ShedderConfig::DEFAULT.with_reserved_percent(BULK, 10);
    let mut service = Service::with(config);
    // The two other classes need all of the capacity.
    let seconds = service.run(60, [CAPACITY * 6 / 10, CAPACITY * 4 / 10, CAPACITY * 9]);
    let converged = &seconds[10..];
    assert!(goodput(converged, CRITICAL) > 0.98, "{}", goodput(converged, CRITICAL));
    let bulk: u64 = converged.iter().map(|second| second[2].served).sum();
    let all: u64 = converged.iter().flatten().map(|second| second.served).sum();
    let share = bulk as f64 / all as f64;
    assert!((0.09..0.13).contains(&share), "{share}");
}

#[test]
fn load_below_the_capacity_is_not_shed() {
    let mut service = Service::with(ShedderConfig::DEFAULT);
    let seconds = service.run(60, NORMAL_LOAD);
    for class in [CRITICAL, NORMAL, BULK] {
        assert!(goodput(&seconds, class) > 0.99);
    }
}
