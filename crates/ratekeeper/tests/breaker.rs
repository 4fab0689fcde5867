//! A circuit breaker that threads share. The rules are tested with the state machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use ratekeeper::{
    Backoff, BreakerConfig, BreakerState, CircuitBreaker, Clock, Jitter, ManualClock, Micros,
    Outcome, Probes, SlidingWindow,
};
use ratekeeper_control::{Breaker, CallPermit};

const START: Micros = Micros::new_unchecked(1_790_000_000_000_000);
const SLOW: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

/// Opens after 3 failures in a row, or at 50% failures or 80% slow calls of the last 20, once there are 10.
const CONFIG: BreakerConfig = BreakerConfig::DEFAULT
    .with_window(SlidingWindow::Calls(20))
    .with_minimum_calls(10)
    .with_slow_calls(SLOW, 80)
    .with_consecutive_failures(3)
    .with_wait(Backoff::new(SECOND, Duration::from_secs(8)).with_jitter(Jitter::None))
    .with_probes(Probes::Fixed(2));

fn breaker(config: BreakerConfig) -> (CircuitBreaker<ManualClock>, ManualClock) {
    let clock = ManualClock::at(START);
    (CircuitBreaker::builder(config).unwrap().clock(clock.clone()).build(), clock)
}

fn open(breaker: &CircuitBreaker<ManualClock>) {
    (0..3).for_each(|_| breaker.try_call().unwrap().failure());
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn it_opens_waits_probes_and_closes() {
    let (breaker, clock) = breaker(CONFIG);
    open(&breaker);
    let rejected = breaker.try_call().unwrap_err();
    assert_eq!((rejected.state, rejected.retry_after), (BreakerState::Open, Some(SECOND)));
    assert_eq!(rejected.to_string(), "the circuit breaker is open; retry after 1s");
    clock.advance(Duration::from_millis(999));
    assert_eq!(breaker.peek().unwrap_err().retry_after, Some(Duration::from_millis(1)));
    clock.advance(Duration::from_millis(1));
    assert_eq!(breaker.peek(), Ok(()));

    let probes = [breaker.try_call().unwrap(), breaker.try_call().unwrap()];
    let rejected = breaker.try_call().unwrap_err();
    assert_eq!((rejected.state, rejected.retry_after), (BreakerState::HalfOpen, None));
    assert_eq!(rejected.retry_after_secs(), 1);
    probes.into_iter().for_each(|call| call.success());
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.try_call().unwrap().success();

    let stats = breaker.stats();
    assert_eq!((stats.successes, stats.failures, stats.rejected, stats.opened), (3, 3, 2, 1));
}

#[test]
fn a_success_between_failures_counts() {
    let (breaker, _) = breaker(CONFIG);
    for _ in 0..100 {
        (0..2).for_each(|_| breaker.try_call().unwrap().failure());
        (0..8).for_each(|_| breaker.try_call().unwrap().success());
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert_eq!((breaker.stats().successes, breaker.stats().failures), (800, 200));
}

#[test]
fn a_dropped_call_is_ignored_unless_it_was_slow() {
    let (breaker, clock) = breaker(CONFIG);
    (0..100).for_each(|_| drop(breaker.try_call().unwrap()));
    assert_eq!(breaker.state(), BreakerState::Closed);
    for n in 0..10 {
        assert_eq!(breaker.state(), BreakerState::Closed, "call {n}");
        let call = breaker.try_call_owned().unwrap();
        clock.advance(SLOW);
        drop(call);
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    let stats = breaker.stats();
    assert_eq!((stats.ignored, stats.slow, stats.successes), (110, 10, 0));
}

#[test]
fn a_dropped_probe_makes_room_for_another() {
    let (breaker, clock) = breaker(CONFIG);
    open(&breaker);
    clock.advance(SECOND);
    for _ in 0..100 {
        let probes = [breaker.try_call_owned().unwrap(), breaker.try_call_owned().unwrap()];
        assert!(breaker.try_call().is_err());
        drop(probes);
    }
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[test]
fn successes_before_a_pause_are_as_old_as_they_are() {
    let window = SlidingWindow::Time(Duration::from_secs(40));
    let config = CONFIG.with_window(window).with_consecutive_failures(100);
    let (breaker, clock) = breaker(config);
    (0..1_000).for_each(|_| breaker.try_call().unwrap().success());
    clock.advance(Duration::from_secs(60));
    (0..10).for_each(|_| breaker.try_call().unwrap().failure());
    assert_eq!(breaker.state(), BreakerState::Open, "the successes have left the window");
}

#[test]
fn changes_are_observed_in_order_and_the_observer_may_use_the_breaker() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let known: Arc<Mutex<Option<CircuitBreaker<ManualClock>>>> = Arc::default();
    let clock = ManualClock::at(START);
    let builder = CircuitBreaker::builder(CONFIG).unwrap().clock(clock.clone());
    let (log, this) = (seen.clone(), known.clone());
    let breaker = builder
        .on_change(move |change| {
            let this = this.lock().unwrap();
            assert_eq!(this.as_ref().unwrap().state(), change.to);
            assert!(this.as_ref().unwrap().stats().failures >= 3);
            log.lock().unwrap().push((change.from, change.to));
        })
        .build();
    *known.lock().unwrap() = Some(breaker.clone());
    open(&breaker);
    breaker.probe_succeeded();
    (0..2).for_each(|_| breaker.try_call().unwrap().success());
    let (closed, open, half) = (BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen);
    assert_eq!(*seen.lock().unwrap(), [(closed, open), (open, half), (half, closed)]);
    *known.lock().unwrap() = None;
}

fn any_time() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => Just(0), 3 => 0..50u64, 1 => 0..700u64].prop_map(Duration::from_millis)
}

proptest! {
    /// Successes that are kept back change no decision.
    #[test]
    fn it_decides_like_the_state_machine(
        steps in prop::collection::vec((0..8u8, any_time()), 1..300),
        window_secs in 1..20u64, by_time: bool,
    ) {
        let window = match by_time {
            true => SlidingWindow::Time(Duration::from_secs(window_secs)),
            false => SlidingWindow::Calls(20),
        };
        let config = CONFIG.with_window(window);
        let (breaker, clock) = breaker(config);
        let mut machine = Breaker::new(config).unwrap();
        for (kind, took) in steps {
            let permit: Option<CallPermit> = machine.try_call(clock.now(), 0).ok();
            let call = breaker.try_call();
            prop_assert_eq!(call.is_ok(), permit.is_some());
            let outcome = match kind {
                0..=4 => Outcome::Success,
                5..=6 => Outcome::Failure,
                _ => Outcome::Ignored,
            };
            clock.advance(took);
            if let (Ok(call), Some(permit)) = (call, permit) {
                machine.record(permit, outcome, took, clock.now(), 0);
                match outcome {
                    Outcome::Success => call.success(),
                    outcome => call.record(outcome),
                }
            }
            prop_assert_eq!(breaker.state(), machine.state());
        }
    }
}

/// Threads call a dependency that fails now and then. The counters add up, and in the end the breaker closes.
#[test]
fn threads_agree() {
    const THREADS: usize = 4;
    const CALLS: u64 = 50_000;
    let config = CONFIG.with_slow_calls(Duration::from_secs(600), 100);
    let (breaker, clock) = breaker(config);
    let is_down = AtomicBool::new(false);
    let (made, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (breaker, clock) = (&breaker, &clock);
            let (is_down, made, rejected) = (&is_down, &made, &rejected);
            scope.spawn(move || {
                for n in 0..CALLS {
                    if thread == 0 && n % 5_000 == 0 {
                        is_down.store(n % 10_000 == 5_000, Ordering::SeqCst);
                    }
                    clock.advance(Duration::from_micros(50));
                    match breaker.try_call() {
                        Ok(call) => {
                            made.fetch_add(1, Ordering::Relaxed);
                            match is_down.load(Ordering::SeqCst) {
                                true => call.failure(),
                                false => call.success(),
                            }
                        }
                        Err(_) => {
                            rejected.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let stats = breaker.stats();
    assert_eq!(stats.successes + stats.failures, made.into_inner());
    assert_eq!(stats.rejected, rejected.into_inner());
    assert!(stats.opened >= 1, "{stats:?}");
    is_down.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(600));
    while breaker.state() != BreakerState::Closed {
        breaker.try_call().unwrap().success();
    }
}

#[cfg(feature = "tower")]
mod layer {
    use std::convert::Infallible;
    use std::task::Poll;

    use http::{Request, Response, StatusCode};
    use ratekeeper::tower::{CircuitBreakerError, CircuitBreakerLayer};
    use tower::{Layer, Service, ServiceExt, service_fn};

    use super::*;

    type Layered<S> =
        ratekeeper::tower::CircuitBreakerService<S, ratekeeper::tower::ClassifyStatus, ManualClock>;

    /// A client that responds with the status in the request's path.
    fn client(
        breaker: &CircuitBreaker<ManualClock>,
    ) -> Layered<
        impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send> + Clone,
    > {
        let inner = service_fn(|request: Request<()>| async move {
            let mut response = Response::new(());
            let status: u16 = request.uri().path()[1..].parse().unwrap();
            match status {
                // A gRPC error without a body.
                2..=16 => drop(response.headers_mut().insert("grpc-status", status.into())),
                status => *response.status_mut() = StatusCode::from_u16(status).unwrap(),
            }
            Ok::<_, Infallible>(response)
        });
        CircuitBreakerLayer::new(breaker.clone()).layer(inner)
    }

    fn get(status: u16) -> Request<()> {
        Request::get(format!("http://inventory/{status}")).body(()).unwrap()
    }

    #[tokio::test]
    async fn server_errors_open_it_and_a_429_does_not() {
        for (status, opens) in [
            (200, false),
            (400, false),
            (404, false),
            (429, false),
            (500, true),
            (503, true),
            (504, true),
            (8, false),
            (14, true),
        ] {
            let (breaker, _) = breaker(CONFIG);
            for _ in 0..3 {
                client(&breaker).oneshot(get(status)).await.unwrap();
            }
            assert_eq!(breaker.state() == BreakerState::Open, opens, "{status}");
        }
    }

    #[tokio::test]
    async fn an_open_breaker_says_when_to_retry() {
        let (breaker, clock) = breaker(CONFIG);
        open(&breaker);
        let mut client = client(&breaker);
        for _ in 0..2 {
            match client.ready().await.unwrap().call(get(200)).await {
                Err(CircuitBreakerError::Open(open)) => assert_eq!(open.retry_after, Some(SECOND)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(breaker.stats().rejected, 2);
        clock.advance(SECOND);
        for _ in 0..2 {
            client.ready().await.unwrap().call(get(200)).await.unwrap();
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test]
    async fn a_service_that_is_never_ready_does_not_hold_up_requests_while_it_is_open() {
        let (breaker, clock) = breaker(CONFIG);
        open(&breaker);
        let mut client = CircuitBreakerLayer::new(breaker.clone()).layer(NeverReady);
        let rejected = client.ready().await.unwrap().call(get(200)).await;
        assert!(matches!(rejected, Err(CircuitBreakerError::Open(_))));
        client.ready().await.unwrap();
        clock.advance(SECOND);
        // It was not ready when it was asked; it must not be called.
        let rejected = client.call(get(200)).await;
        let Err(CircuitBreakerError::Open(open)) = rejected else { panic!("{rejected:?}") };
        assert_eq!(open.retry_after, Some(Duration::ZERO));
        let ready = tokio::time::timeout(Duration::from_millis(1), client.ready());
        assert!(ready.await.is_err(), "the wait is over");
    }

    #[tokio::test]
    async fn an_error_before_the_service_is_ready_is_a_failure() {
        let (breaker, _) = breaker(CONFIG);
        for _ in 0..3 {
            let client = CircuitBreakerLayer::new(breaker.clone()).layer(Broken);
            let error = client.oneshot(get(200)).await.unwrap_err();
            assert!(matches!(error, CircuitBreakerError::Inner(_)));
        }
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[tokio::test]
    async fn a_future_that_is_dropped_is_slow_or_ignored() {
        let (breaker, clock) = breaker(CONFIG.with_consecutive_failures(100));
        let hangs = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, ()>>());
        let mut client = CircuitBreakerLayer::new(breaker.clone()).layer(hangs);
        for n in 0..20 {
            let response = client.ready().await.unwrap().call(get(200));
            clock.advance(if n < 10 { SLOW / 2 } else { SLOW });
            assert_eq!(breaker.state(), BreakerState::Closed);
            drop(response);
        }
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[derive(Clone)]
    struct NeverReady;

    impl Service<Request<()>> for NeverReady {
        type Response = Response<()>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<()>, Infallible>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Pending
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            panic!("it was not ready")
        }
    }

    #[derive(Clone)]
    struct Broken;

    impl Service<Request<()>> for Broken {
        type Response = Response<()>;
        type Error = std::io::Error;
        type Future = std::future::Ready<Result<Response<()>, std::io::Error>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Err(std::io::ErrorKind::ConnectionRefused.into()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            panic!("it was not ready")
        }
    }
}
