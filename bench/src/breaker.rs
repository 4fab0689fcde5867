//! What a circuit breaker costs a call while it is closed.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use failsafe::{CircuitBreaker as _, backoff, failure_policy};
use ratekeeper::tower::CircuitBreakerLayer;
use ratekeeper::{BreakerConfig, CircuitBreaker, Outcome, SlidingWindow};
use tower::{Layer, Service, ServiceExt, service_fn};

const ROUNDS: usize = 15;
const CALLS: usize = 1 << 20;
/// Through a service, on a runtime.
const SERVICE_CALLS: usize = 1 << 17;

const SLOW: Duration = Duration::from_secs(2);
const MINUTE: SlidingWindow = SlidingWindow::Time(Duration::from_secs(60));

/// Measures a number of calls with a number of threads: ns per call.
pub(crate) type Entry = (&'static str, Box<dyn Fn(usize) -> f64>);

pub fn report() {
    println!("\n## A closed circuit breaker: ns per call (2 threads: wall time over all calls)\n");
    let default = CircuitBreaker::default;
    let slow = || breaker(BreakerConfig::DEFAULT.with_slow_calls(SLOW, 80));
    let check = |breaker: &CircuitBreaker| std::mem::forget(black_box(breaker.try_call()));
    table(
        "check",
        vec![
            plain("**ratekeeper**", default(), check),
            plain("**ratekeeper**, slow calls count", slow(), check),
            plain("failsafe, success rate", success_rate(20), |breaker| {
                assert!(breaker.is_call_permitted());
            }),
        ],
    );
    let call = |breaker: &CircuitBreaker| breaker.try_call().expect("closed").success();
    table(
        "check and success",
        vec![
            plain("**ratekeeper**, last 100 calls", default(), call),
            plain("**ratekeeper**, last 100 calls, slow calls count", slow(), call),
            plain(
                "**ratekeeper**, calls of a minute, slow calls count",
                breaker(BreakerConfig::DEFAULT.with_window(MINUTE).with_slow_calls(SLOW, 80)),
                call,
            ),
            plain("failsafe, success rate over 30 s", success_rate(20), |breaker| {
                breaker.call(|| Ok::<_, ()>(())).expect("closed");
            }),
            plain("failsafe, consecutive failures", consecutive(), |breaker| {
                breaker.call(|| Ok::<_, ()>(())).expect("closed");
            }),
        ],
    );
    let failure = |breaker: &CircuitBreaker| breaker.try_call().expect("closed").failure();
    let all = BreakerConfig::DEFAULT
        .with_minimum_calls(u32::MAX)
        .with_window(MINUTE)
        .with_slow_calls(SLOW, 80);
    table(
        "check and failure, never enough to open",
        vec![
            plain("**ratekeeper**, calls of a minute", breaker(all), failure),
            plain("failsafe, success rate over 30 s", success_rate(u32::MAX), |breaker| {
                let _ = black_box(breaker.call(|| Err::<(), _>(())));
            }),
            plain("failsafe, consecutive failures", consecutive(), |breaker| {
                let _ = black_box(breaker.call(|| Err::<(), _>(())));
            }),
        ],
    );
    let inner = || service_fn(|_: ()| std::future::ready(Ok::<(), Infallible>(())));
    let classify = |result: &Result<(), Infallible>| match result {
        Ok(()) => Outcome::Success,
        Err(_) => Outcome::Failure,
    };
    let ours = CircuitBreakerLayer::new(slow()).classify(classify).layer(inner());
    let theirs = tower_resilience_circuitbreaker::CircuitBreakerLayer::builder()
        .failure_rate_threshold(0.5)
        .sliding_window_size(100)
        .minimum_number_of_calls(20)
        .slow_call_duration_threshold(SLOW)
        .slow_call_rate_threshold(0.8)
        .build()
        .expect("valid")
        .layer(inner());
    table(
        "a tower service",
        vec![
            service("without a breaker", inner()),
            service("**ratekeeper**, last 100 calls, slow calls count", ours),
            service("tower-resilience, last 100 calls, slow calls count", theirs),
        ],
    );
}

fn breaker(config: BreakerConfig) -> CircuitBreaker {
    CircuitBreaker::new(config).expect("valid")
}

fn waits() -> backoff::EqualJittered {
    backoff::equal_jittered(Duration::from_secs(5), Duration::from_secs(60))
}

fn success_rate(minimum_calls: u32) -> failsafe::StateMachine<impl failsafe::FailurePolicy, ()> {
    let window = Duration::from_secs(30);
    let policy = failure_policy::success_rate_over_time_window(0.5, minimum_calls, window, waits());
    failsafe::Config::new().failure_policy(policy).build()
}

fn consecutive() -> failsafe::StateMachine<impl failsafe::FailurePolicy, ()> {
    failsafe::Config::new()
        .failure_policy(failure_policy::consecutive_failures(u32::MAX, waits()))
        .build()
}

/// Measures all entries, interleaved by round.
pub(crate) fn table(title: &str, entries: Vec<Entry>) {
    let mut times = vec![[const { Vec::new() }; 2]; entries.len()];
    entries.iter().for_each(|(_, run)| _ = run(1));
    for _ in 0..ROUNDS {
        for ((_, run), [one, two]) in entries.iter().zip(&mut times) {
            one.push(run(1));
            two.push(run(2));
        }
    }
    println!("| {title} | 1 thread | 2 threads |\n|---|---|---|");
    for ((name, _), [one, two]) in entries.iter().zip(&times) {
        println!("| {name} | {:.1} | {:.1} |", crate::median(one), crate::median(two));
    }
    println!();
}

pub(crate) fn plain<B: Sync + 'static>(
    name: &'static str,
    breaker: B,
    call: impl Fn(&B) + Sync + Copy + 'static,
) -> Entry {
    let run = move |threads| {
        timed(threads, CALLS, |_| (0..CALLS).for_each(|_| call(black_box(&breaker))))
    };
    (name, Box::new(run))
}

pub(crate) fn service<S>(name: &'static str, service: S) -> Entry
where
    S: Service<(), Error: std::fmt::Debug> + Clone + Send + Sync + 'static,
{
    let run = move |threads| {
        timed(threads, SERVICE_CALLS, |_| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime");
            let mut service = service.clone();
            runtime.block_on(async {
                for _ in 0..SERVICE_CALLS {
                    let ready = service.ready().await.expect("ready");
                    black_box(ready.call(()).await.expect("closed"));
                }
            });
        })
    };
    (name, Box::new(run))
}

/// Returns the wall time per call in nanoseconds, from the start of the first thread to the end of the last.
fn timed(threads: usize, calls: usize, work: impl Fn(usize) + Sync) -> f64 {
    let waiting = AtomicUsize::new(threads);
    let work = |thread: usize| {
        waiting.fetch_sub(1, SeqCst);
        while waiting.load(SeqCst) > 0 {
            std::hint::spin_loop();
        }
        let started = Instant::now();
        work(thread);
        (started, Instant::now())
    };
    let (started, done): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().map(|worker| worker.join().expect("it calls")).unzip()
    });
    let took = *done.iter().max().expect("a thread") - *started.iter().min().expect("a thread");
    took.as_nanos() as f64 / (calls * threads) as f64
}
