//! The adaptive limit: permits, samples, and where it converges.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use ratekeeper::tower::{AdaptiveLimitLayer, HttpAdaptiveLimitLayer, ProtectError, Rejection};
use ratekeeper::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, AdaptivePermit, Bounds, BulkheadError,
    ManualClock, SampleOutcome, Shedder, ShedderConfig,
};
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{MS, SEC, VirtualClock};

fn always(limit: u32) -> AdaptiveConfig {
    AdaptiveConfig::DEFAULT.with_bounds(Bounds::new(limit, limit, limit).unwrap())
}

type Waiting<'l> = Pin<Box<dyn Future<Output = Result<AdaptivePermit<'l>, BulkheadError>> + 'l>>;

proptest! {
    #[test]
    fn permits_and_places_in_the_queue_are_neither_lost_nor_made(
        steps in prop::collection::vec((0..5u8, any::<prop::sample::Index>()), 1..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let limit = AdaptiveLimit::builder(always(3)).unwrap().queue(5, SEC).build();
        let mut context = Context::from_waker(Waker::noop());
        let (mut held, mut waiting): (Vec<AdaptivePermit<'_>>, Vec<Waiting<'_>>) = (vec![], vec![]);
        for (step, index) in steps {
            match step {
                0 => held.extend(limit.try_acquire()),
                1 => waiting.push(Box::pin(limit.acquire())),
                2 if !held.is_empty() => held.swap_remove(index.index(held.len())).success(),
                3 if !waiting.is_empty() => drop(waiting.swap_remove(index.index(waiting.len()))),
                _ => {}
            }
            waiting.retain_mut(|request| match request.as_mut().poll(&mut context) {
                std::task::Poll::Ready(result) => {
                    held.extend(result);
                    false
                }
                std::task::Poll::Pending => true,
            });
            prop_assert_eq!((limit.in_flight(), limit.waiting()), (held.len(), waiting.len()));
            prop_assert!(held.len() <= 3 && waiting.len() <= 5);
            prop_assert!(held.len() == 3 || waiting.is_empty(), "a permit is free and one waits");
        }
        drop((held, waiting));
        prop_assert_eq!((limit.in_flight(), limit.waiting()), (0, 0));
        let stats = limit.stats();
        prop_assert_eq!(stats.successes + stats.overloads + stats.ignored, stats.permits.admitted);
    }
}

#[test]
fn threads_never_have_more_in_flight_than_the_limit() {
    let limit = AdaptiveLimit::new(always(3)).unwrap();
    let (in_flight, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let Ok(permit) = limit.try_acquire() else { continue };
                    most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    permit.success();
                }
            });
        }
    });
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    let stats = limit.stats();
    assert_eq!((stats.permits.in_flight, stats.permits.admitted), (0, stats.successes));
    assert_eq!(stats.permits.admitted + stats.permits.full, 80_000);
}

/// Returns the limit after `seconds` of twice the load that 10 workers of 10 ms can do.
async fn converged(algorithm: AdaptiveAlgorithm, seconds: u32) -> (usize, f64) {
    let config = AdaptiveConfig::DEFAULT.with_algorithm(algorithm);
    let limit = AdaptiveLimit::builder(config).unwrap().clock(VirtualClock::start()).build();
    let (workers, served) = (Arc::new(Semaphore::new(10)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..1_000 * seconds {
        tokio::time::sleep(MS).await;
        for _ in 0..2 {
            let Ok(permit) = limit.try_acquire() else { continue };
            let permit = permit.into_owned();
            let (workers, served) = (workers.clone(), served.clone());
            tokio::spawn(async move {
                let _worker = workers.acquire().await.unwrap();
                tokio::time::sleep(10 * MS).await;
                served.fetch_add(1, Ordering::Relaxed);
                permit.success();
            });
        }
    }
    (limit.limit(), served.load(Ordering::Relaxed) as f64 / f64::from(seconds))
}

#[tokio::test(start_paused = true)]
async fn the_limit_finds_what_the_service_can_do() {
    let (limit, goodput) = converged(AdaptiveAlgorithm::Knee, 30).await;
    assert!((8..=30).contains(&limit), "{limit} for 10 workers");
    assert!(goodput > 700.0, "{goodput} per second");
}

#[test]
fn the_limit_follows_the_samples_with_time_as_an_argument() {
    let clock = ManualClock::at(ratekeeper::Micros::new(1_790_000_000_000_000));
    let config = AdaptiveConfig::DEFAULT.with_algorithm(AdaptiveAlgorithm::Aimd);
    let limit = AdaptiveLimit::builder(config).unwrap().clock(clock.clone()).build();
    let second = |outcome: SampleOutcome| {
        for _ in 0..20 {
            let permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire().ok()).collect();
            clock.advance(50 * MS);
            permits.into_iter().for_each(|permit| permit.record(outcome));
        }
    };
    second(SampleOutcome::Success);
    let grown = limit.limit();
    assert!(grown > 20, "{grown}");
    second(SampleOutcome::Ignored);
    assert_eq!(limit.limit(), grown, "they say nothing");
    (0..10).for_each(|_| second(SampleOutcome::Overload));
    assert!(limit.limit() < grown, "{} after {grown}", limit.limit());
}

#[test]
fn a_request_whose_caller_gives_up_on_a_slow_service_is_overload() {
    let clock = ManualClock::new();
    let config = AdaptiveConfig::DEFAULT.with_target(200 * MS);
    let limit = AdaptiveLimit::builder(config).unwrap().clock(clock.clone()).build();
    let permit = limit.try_acquire().unwrap();
    clock.advance(199 * MS);
    drop(permit);
    assert_eq!((limit.stats().ignored, limit.stats().overloads), (1, 0));
    let permit = limit.try_acquire().unwrap();
    clock.advance(200 * MS);
    drop(permit);
    assert_eq!((limit.stats().ignored, limit.stats().overloads), (1, 1));
}

#[test]
fn a_stream_is_sampled_once_and_stays_in_flight() {
    let clock = ManualClock::new();
    let limit = AdaptiveLimit::builder(always(1)).unwrap().clock(clock.clone()).build();
    let mut permit = limit.try_acquire().unwrap();
    permit.sample(SampleOutcome::Success);
    permit.sample(SampleOutcome::Overload);
    clock.advance(60 * SEC);
    assert_eq!(limit.try_acquire().unwrap_err(), BulkheadError::Full { waiting: 0 });
    permit.overloaded();
    let stats = limit.stats();
    assert_eq!((stats.successes, stats.overloads, stats.permits.admitted), (1, 0, 1));
    assert_eq!((limit.in_flight(), stats.permits.full), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_full_limit_makes_a_shedder_shed() {
    let shedder = Shedder::with_clock(ShedderConfig::DEFAULT, VirtualClock::start()).unwrap();
    let limit = AdaptiveLimit::builder(always(2)).unwrap().shedder(&shedder).build();
    let _held = [limit.try_acquire().unwrap(), limit.try_acquire().unwrap()];
    for _ in 0..100 {
        assert!(limit.try_acquire().is_err());
        tokio::time::advance(10 * MS).await;
    }
    assert!(shedder.level() > 0.0);
}

#[tokio::test(start_paused = true)]
async fn an_http_request_is_sampled_at_the_head_and_in_flight_until_the_body_ends() {
    let clock = ManualClock::new();
    let limit = AdaptiveLimit::builder(always(1)).unwrap().clock(clock).build();
    let service =
        HttpAdaptiveLimitLayer::new(limit.clone()).layer(service_fn(|status| async move {
            let status: Request<u16> = status;
            let mut response = Response::new(Full::new(Bytes::from_static(b"done")));
            *response.status_mut() = StatusCode::from_u16(status.into_body()).unwrap();
            Ok::<_, std::convert::Infallible>(response)
        }));
    let call = |status: u16| service.clone().oneshot(Request::new(status));

    let response = call(200).await.unwrap();
    assert_eq!((limit.in_flight(), limit.stats().successes), (1, 1), "the body has not been read");
    let rejected = call(200).await.unwrap();
    assert_eq!(
        (rejected.status().as_u16(), &rejected.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    let rejection = *rejected.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection, Rejection::ConcurrencyLimit(BulkheadError::Full { waiting: 0 }));
    let body = rejected.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{\"code\":\"CONCURRENCY_LIMIT\""), "{body:?}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    assert_eq!(limit.in_flight(), 0);

    for (status, counts) in
        [(503, (1, 1, 0)), (504, (1, 2, 0)), (429, (1, 2, 1)), (500, (1, 2, 2)), (404, (2, 2, 2))]
    {
        drop(call(status).await.unwrap());
        let stats = limit.stats();
        assert_eq!((stats.successes, stats.overloads, stats.ignored), counts, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_took_long_is_overload_and_one_at_once_is_ignored() {
    let clock = ManualClock::new();
    let config = always(1).with_target(100 * MS);
    let limit = AdaptiveLimit::builder(config).unwrap().clock(clock.clone()).build();
    let classify = |result: &Result<(), std::io::Error>| match result {
        Ok(()) => SampleOutcome::Success,
        Err(_) => SampleOutcome::Ignored,
    };
    let failing = service_fn(move |took: std::time::Duration| {
        clock.advance(took);
        async { Err::<(), _>(std::io::Error::other("broken")) }
    });
    let service = AdaptiveLimitLayer::new(limit.clone(), classify).layer(failing);
    let error = service.clone().oneshot(MS).await.unwrap_err();
    assert!(matches!(error, ProtectError::Service(_)));
    assert!(service.oneshot(SEC).await.is_err());
    let stats = limit.stats();
    assert_eq!((stats.overloads, stats.ignored, limit.in_flight()), (1, 1, 0));
}
