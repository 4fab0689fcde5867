//! Waiting for admission: order, deadlines and cancellation, in virtual time.
#![cfg(feature = "tokio")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratekeeper::{ALGORITHMS, Clock, ConcurrencyLimit, Cost, Limit, Limiter, Micros, WaitError};
use tokio::time::Instant;

/// Tokio's clock, which these tests pause and advance.
#[derive(Clone)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Micros {
        Micros::new(60_000_000).after(self.0.elapsed())
    }
}

fn limiter(limit: Limit) -> Arc<Limiter<TokioClock>> {
    let clock = TokioClock(Instant::now());
    Arc::new(Limiter::builder(limit).unwrap().capacity(100).clock(clock).build())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The waiters that were admitted, and how long after the start.
#[derive(Clone)]
struct Arrivals(Arc<Mutex<Vec<(u64, Duration)>>>, Instant);

impl Arrivals {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    fn note(&self, who: u64) {
        self.0.lock().unwrap().push((who, self.1.elapsed()));
    }

    fn list(&self) -> Vec<(u64, Duration)> {
        self.0.lock().unwrap().clone()
    }
}

/// Lets everything that can run do so.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_each_at_its_time() {
    let limiter = limiter(Limit::token_bucket("10/s burst 1").unwrap());
    let arrivals = Arrivals::new();
    let tasks: Vec<_> = (0..5)
        .map(|who| {
            let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
            tokio::spawn(async move {
                let _ = limiter.key("k").wait(ms(10_000)).await.unwrap();
                arrivals.note(who);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let expected: Vec<_> = (0..5).map(|who| (who, ms(100 * who))).collect();
    assert_eq!(arrivals.list(), expected);
}

#[tokio::test(start_paused = true)]
async fn wait_works_with_every_algorithm() {
    for algorithm in ALGORITHMS {
        let limiter = limiter(Limit::new("2/s".parse().unwrap(), *algorithm).unwrap());
        for _ in 0..6 {
            let _ = limiter.key("k").wait(ms(10_000)).await.unwrap();
        }
        let refused = limiter.key("k").cost(Cost::of(3)).wait(ms(10_000)).await;
        assert!(matches!(refused, Err(WaitError::Never(_))), "{algorithm}: {refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_cannot_be_met_fails_at_once() {
    let limiter = limiter(Limit::token_bucket("10/s burst 1").unwrap());
    assert!(limiter.check("k").allowed());
    // Three are queued, so the fourth is admitted after 400 ms.
    for _ in 0..3 {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.key("k").wait(ms(1_000)).await });
        settle().await;
    }
    let before = Instant::now();
    let refused = limiter.key("k").wait(ms(399)).await;
    assert_eq!(refused, Err(WaitError::TooLong { would_take: ms(400) }));
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(limiter.key("k").wait(ms(400)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_leaves_the_queue_and_is_not_charged() {
    let limiter = limiter(Limit::token_bucket("10/s burst 1").unwrap());
    let arrivals = Arrivals::new();
    assert!(limiter.check("k").allowed());
    let wait = |who| {
        let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
        tokio::spawn(async move {
            let _ = limiter.key("k").wait(ms(1_000)).await.unwrap();
            arrivals.note(who);
        })
    };
    let (first, second, third) = (wait(1), wait(2), wait(3));
    settle().await;
    first.abort(); // at the front
    second.abort(); // in the middle
    third.await.unwrap();
    assert_eq!(arrivals.list(), [(3, ms(100))]);
}

#[tokio::test(start_paused = true)]
async fn a_check_may_overtake_the_queue_without_blocking_it() {
    let limiter = limiter(Limit::token_bucket("10/s burst 1").unwrap());
    assert!(limiter.check("k").allowed());
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.key("k").wait(ms(500)).await }
    });
    settle().await;
    limiter.key("k").reset();
    assert!(limiter.check("k").allowed());
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_leaky_queue_spaces_a_burst_evenly() {
    let limiter = limiter(Limit::leaky_bucket("100/s burst 1000").unwrap());
    let arrivals = Arrivals::new();
    let tasks: Vec<_> = (0..1_001)
        .map(|who| {
            let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
            tokio::spawn(async move {
                let admitted = limiter.key("outbox").queue().await.is_ok();
                if admitted {
                    arrivals.note(who);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += u64::from(task.await.unwrap());
    }
    assert_eq!(admitted, 1_000);
    let expected: Vec<_> = (0..1_000).map(|who| (who, ms(10 * who))).collect();
    assert_eq!(arrivals.list(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_at_the_end_of_the_queue_is_refunded() {
    let limiter = limiter(Limit::leaky_bucket("10/s burst 10").unwrap());
    let queue = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.key("k").queue().await })
    };
    let _ = limiter.key("k").queue().await.unwrap();
    let second = queue();
    settle().await;
    second.abort();
    settle().await;
    // The charge is refunded: the next delay is 100 ms again.
    assert_eq!(limiter.key("k").peek().delay(), ms(100));

    // The same holds for `wait`.
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.key("k").wait(ms(1_000)).await }
    });
    settle().await;
    assert_eq!(limiter.key("k").peek().delay(), ms(200));
    waiting.abort();
    settle().await;
    assert_eq!(limiter.key("k").peek().delay(), ms(100));

    let (second, _third) = (queue(), queue());
    settle().await;
    second.abort();
    settle().await;
    // Another request is queued behind it, so its charge stays.
    assert_eq!(limiter.key("k").peek().delay(), ms(300));
}

#[tokio::test(start_paused = true)]
async fn permits_are_granted_in_order_of_arrival() {
    let bulkhead = ConcurrencyLimit::new(1).unwrap();
    let arrivals = Arrivals::new();
    let held = bulkhead.try_acquire("db").unwrap();
    let wait = |who| {
        let (bulkhead, arrivals) = (bulkhead.clone(), arrivals.clone());
        tokio::spawn(async move {
            let permit = bulkhead.acquire("db", ms(1_000)).await;
            if permit.is_some() {
                arrivals.note(who);
                tokio::time::sleep(ms(10)).await;
            }
        })
    };
    let (first, second, third) = (wait(1), wait(2), wait(3));
    settle().await;
    second.abort();
    drop(held);
    // A released permit goes to the first waiter; `try_acquire` cannot take it.
    assert!(bulkhead.try_acquire("db").is_none());
    first.await.unwrap();
    third.await.unwrap();
    assert_eq!(arrivals.list(), [(1, ms(0)), (3, ms(10))]);
    assert_eq!(bulkhead.in_flight("db"), 0);
}

#[tokio::test(start_paused = true)]
async fn acquire_ends_at_its_timeout() {
    let bulkhead = ConcurrencyLimit::new(1).unwrap();
    let held = bulkhead.try_acquire("db").unwrap();
    assert!(bulkhead.acquire("db", ms(50)).await.is_none());
    drop(held);
    assert!(bulkhead.acquire("db", ms(50)).await.is_some());
    assert_eq!(bulkhead.in_flight("db"), 0);
}

#[tokio::test]
async fn cancellation_neither_leaks_permits_nor_exceeds_the_limit() {
    let bulkhead = ConcurrencyLimit::new(3).unwrap();
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let bulkhead = bulkhead.clone();
            tokio::spawn(async move {
                // A third has a timeout of zero; every seventh task is aborted.
                let timeout = ms(if i % 3 == 0 { 0 } else { 5_000 });
                let permit = bulkhead.acquire("db", timeout).await;
                assert!(bulkhead.in_flight("db") <= 3);
                tokio::task::yield_now().await;
                drop(permit);
            })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        if i % 7 == 0 {
            task.abort();
        }
        let _ = task.await;
    }
    assert_eq!(bulkhead.in_flight("db"), 0);
    let all: Vec<_> = (0..3).map(|_| bulkhead.try_acquire("db")).collect();
    assert!(all.iter().all(Option::is_some));
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_time_range_fails_at_once() {
    let limiter = limiter(Limit::token_bucket("10/minute").unwrap());
    let reserved = limiter.key("k").reserve(ms(1_000)).unwrap();
    let _ = reserved.settle(u64::MAX).unwrap();
    let refused = limiter.key("k").wait(ms(1_000)).await;
    assert!(matches!(refused, Err(WaitError::TooLong { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_prolonged_by_another_charge_ends_at_its_deadline() {
    let limiter = limiter(Limit::leaky_bucket("7/s burst 7").unwrap());
    let reserved = limiter.key("k").cost(Cost::of(7)).reserve(ms(1_000)).unwrap();
    let start = Instant::now();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.key("k").wait(ms(1_050)).await }
    });
    settle().await;
    let _ = reserved.settle(11).unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(WaitError::TooLong { .. })));
    assert!(start.elapsed() <= ms(1_051), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn limiters_over_different_stores_do_not_share_queues() {
    let limit = || Limit::token_bucket("1/hour").unwrap();
    let first = limiter(limit());
    assert!(first.check("k").allowed());
    let waiting = tokio::spawn({
        let first = first.clone();
        async move { first.key("k").wait(ms(4_000_000)).await }
    });
    settle().await;
    let second = limiter(limit());
    assert!(second.key("k").wait(ms(10)).await.is_ok());
    waiting.abort();
}
