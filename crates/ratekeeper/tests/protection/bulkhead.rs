//! Permits, queue and deadline.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use ratekeeper::{Bulkhead, BulkheadError, QueueOrder};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{Arrivals, MS, SEC, settle};

fn bulkhead(permits: usize, waiting: usize, wait: Duration) -> Bulkhead {
    Bulkhead::new(permits).unwrap().with_queue(waiting, wait)
}

/// Spawns a request that is in flight for 10 ms.
fn spawn(bulkhead: &Bulkhead, who: u64, arrivals: &Arrivals) -> JoinHandle<Option<BulkheadError>> {
    let (bulkhead, arrivals) = (bulkhead.clone(), arrivals.clone());
    tokio::spawn(async move {
        match bulkhead.acquire().await {
            Ok(_permit) => {
                arrivals.note(who);
                tokio::time::sleep(10 * MS).await;
                None
            }
            Err(error) => Some(error),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn permits_go_to_whoever_has_waited_longest() {
    let (bulkhead, arrivals) = (bulkhead(2, 100, SEC), Arrivals::new());
    let tasks: Vec<_> = (0..20).map(|who| spawn(&bulkhead, who, &arrivals)).collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), None);
    }
    let expected: Vec<_> = (0..20).map(|who| (who, 10 * MS * (who as u32 / 2))).collect();
    assert_eq!(arrivals.list(), expected);
    let stats = bulkhead.stats();
    assert_eq!((stats.admitted, stats.in_flight, stats.waiting), (20, 0, 0));
    assert_eq!((stats.waits.count, stats.waits.sum), (20, 900 * MS));
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded() {
    let (bulkhead, arrivals) = (bulkhead(1, 3, SEC), Arrivals::new());
    let tasks: Vec<_> = (0..6).map(|who| spawn(&bulkhead, who, &arrivals)).collect();
    settle().await;
    assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 3));
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    let full = Some(BulkheadError::Full { waiting: 3 });
    assert_eq!(results, [None, None, None, None, full, full]);
    assert_eq!(bulkhead.stats().full, 2);
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_was_granted_leaves_room_in_the_queue_at_once() {
    let bulkhead = bulkhead(1, 1, SEC);
    let held = bulkhead.try_acquire().unwrap();
    let mut first = pin!(bulkhead.acquire());
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    drop(held);
    assert_eq!(bulkhead.waiting(), 0);
    assert!(bulkhead.try_acquire().is_err(), "the permit is the waiting request's");
    let mut second = pin!(bulkhead.acquire());
    assert!(second.as_mut().poll(&mut context).is_pending(), "it waits instead of being rejected");
    drop(first.await.unwrap());
    drop(second.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_deadline_and_says_how_long_it_was() {
    let bulkhead = bulkhead(1, 10, 500 * MS);
    let held = bulkhead.try_acquire().unwrap();
    let began = Instant::now();
    let error = bulkhead.acquire().await.unwrap_err();
    assert_eq!(error, BulkheadError::TimedOut { waited: 500 * MS });
    assert_eq!((began.elapsed(), error.waited()), (500 * MS, 500 * MS));
    let error = bulkhead.acquire_within(20 * MS).await.unwrap_err();
    assert_eq!(error.waited(), 20 * MS);
    let error = bulkhead.acquire_within(10 * SEC).await.unwrap_err();
    assert_eq!(error.waited(), 500 * MS, "the wait of the queue is the longest");
    assert_eq!(bulkhead.waiting(), 0);
    drop(held);
    assert!(bulkhead.acquire().await.is_ok());
    assert_eq!(bulkhead.stats().timed_out, 3);
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_nobody_waits() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let held = bulkhead.acquire().await.unwrap();
    assert_eq!(bulkhead.acquire().await.unwrap_err(), BulkheadError::Full { waiting: 0 });
    drop(held);
    assert!(bulkhead.acquire().await.is_ok());
}

/// A wait has three places to be dropped at: before the first poll, in the queue, and with a permit that was granted
/// but not noticed.
#[tokio::test(start_paused = true)]
async fn a_wait_can_be_dropped_at_every_await_point() {
    for order in [QueueOrder::Fifo, QueueOrder::AdaptiveLifo] {
        let bulkhead = bulkhead(1, 10, SEC).with_order(order);
        let mut context = Context::from_waker(Waker::noop());

        drop(bulkhead.acquire());
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (0, 0));

        let held = bulkhead.try_acquire().unwrap();
        {
            let mut waiting = pin!(bulkhead.acquire());
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            assert_eq!(bulkhead.waiting(), 1);
        }
        assert_eq!(bulkhead.waiting(), 0);

        let mut second = Box::pin(bulkhead.acquire());
        let mut third = Box::pin(bulkhead.acquire());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(held);
        drop(second); // it was granted the permit, which goes to the third
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 0));
        drop(third.await.unwrap());
        assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (0, 0));
        assert_eq!(bulkhead.stats().cancelled, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn cancellation_and_timeouts_neither_leak_permits_nor_exceed_the_limit() {
    for order in [QueueOrder::Fifo, QueueOrder::AdaptiveLifo] {
        let bulkhead = bulkhead(3, 20, 50 * MS).with_order(order);
        let mut tasks = Vec::new();
        for n in 0..500u64 {
            let bulkhead = bulkhead.clone();
            tasks.push(tokio::spawn(async move {
                let permit = bulkhead.acquire().await;
                assert!(bulkhead.in_flight() <= 3 && bulkhead.waiting() <= 20);
                tokio::time::sleep(MS * (n % 40) as u32).await;
                drop(permit);
            }));
            tokio::time::sleep(3 * MS).await;
            if n % 7 == 0 {
                tasks[n as usize / 2].abort();
            }
        }
        for task in tasks {
            let _ = task.await;
        }
        let stats = bulkhead.stats();
        assert_eq!((stats.in_flight, stats.waiting), (0, 0));
        assert!(stats.admitted > 100 && stats.timed_out + stats.evicted + stats.full > 10);
        let all: Vec<_> = (0..3).map(|_| bulkhead.try_acquire()).collect();
        assert!(all.iter().all(Result::is_ok));
    }
}

#[tokio::test(start_paused = true)]
async fn newest_first_only_while_the_queue_is_not_emptied() {
    let bulkhead = bulkhead(1, 100, 10 * SEC).with_order(QueueOrder::AdaptiveLifo);
    let arrivals = Arrivals::new();
    let mut tasks: Vec<_> = (0..5).map(|who| spawn(&bulkhead, who, &arrivals)).collect();
    settle().await;
    tokio::time::sleep(60 * MS).await;
    assert_eq!(arrivals.order(), [0, 1, 2, 3, 4], "a burst of 50 ms is served in order");

    // 20 requests at once: after 100 ms, the newest is next.
    tasks.extend((10..30).map(|who| spawn(&bulkhead, who, &arrivals)));
    for task in tasks {
        assert_eq!(task.await.unwrap(), None);
    }
    let in_order = 10..20;
    let newest_first = (20..30).rev();
    let expected: Vec<u64> = (0..5).chain(in_order).chain(newest_first).collect();
    assert_eq!(arrivals.order(), expected);

    // The queue has been empty, so it is a burst again.
    let tasks: Vec<_> = (40..43).map(|who| spawn(&bulkhead, who, &arrivals)).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(arrivals.order()[25..], [40, 41, 42]);
}

#[tokio::test(start_paused = true)]
async fn under_overload_the_newest_takes_the_place_of_the_oldest() {
    let bulkhead = bulkhead(1, 2, 10 * SEC).with_order(QueueOrder::AdaptiveLifo);
    let arrivals = Arrivals::new();
    let held = bulkhead.try_acquire().unwrap();
    let oldest = spawn(&bulkhead, 1, &arrivals);
    let second = spawn(&bulkhead, 2, &arrivals);
    settle().await;
    let early = bulkhead.acquire().await;
    assert_eq!(early.unwrap_err(), BulkheadError::Full { waiting: 2 });
    tokio::time::sleep(150 * MS).await;
    let newest = spawn(&bulkhead, 3, &arrivals);
    settle().await;
    assert_eq!(oldest.await.unwrap(), Some(BulkheadError::Evicted { waited: 150 * MS }));
    assert_eq!(bulkhead.waiting(), 2);
    drop(held);
    assert_eq!((second.await.unwrap(), newest.await.unwrap()), (None, None));
    assert_eq!(arrivals.order(), [3, 2]);
    assert_eq!(bulkhead.stats().evicted, 1);
}

/// 100 requests per second are served, 200 arrive, and callers give up after 400 ms.
#[tokio::test(start_paused = true)]
async fn under_overload_newest_first_waits_are_short() {
    let mut waits = Vec::new();
    for order in [QueueOrder::Fifo, QueueOrder::AdaptiveLifo] {
        let bulkhead = bulkhead(1, 50, 400 * MS).with_order(order);
        let arrivals = Arrivals::new();
        let mut tasks = Vec::new();
        for who in 0..1_000 {
            tasks.push(spawn(&bulkhead, who, &arrivals));
            tokio::time::sleep(5 * MS).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        let stats = bulkhead.stats();
        assert!(stats.admitted > 480, "{order:?}: {stats:?}");
        waits.push(stats.waits.sum / stats.waits.count as u32);
    }
    assert!(waits[0] > 300 * MS && waits[1] < 100 * MS, "{waits:?}");
}
