//! What a permit of an adaptive concurrency limit costs.

use std::convert::Infallible;
use std::hint::black_box;

use ratekeeper::tower::{AdaptiveLimitLayer, BulkheadLayer};
use ratekeeper::{AdaptiveLimit, Bulkhead, ConcurrencyLimit, SampleOutcome};
use tokio::sync::Semaphore;
use tower::{Layer, service_fn};

use crate::breaker::{plain, service, table};

const PERMITS: usize = 20;

pub fn report() {
    println!(
        "\n## A permit, free: ns per acquire and release (2 threads: wall time over all calls)\n"
    );
    let keyed = ConcurrencyLimit::new(PERMITS).expect("permits");
    table(
        "acquire and release",
        vec![
            plain("**ratekeeper** AdaptiveLimit, success", AdaptiveLimit::default(), |limit| {
                limit.try_acquire().expect("free").success();
            }),
            plain("**ratekeeper** Bulkhead", bulkhead(), |bulkhead| {
                drop(black_box(bulkhead.try_acquire().expect("free")));
            }),
            plain("**ratekeeper** ConcurrencyLimit, one key", keyed, |limit| {
                drop(black_box(limit.try_acquire("db").expect("free")));
            }),
            plain("tokio Semaphore, try_acquire", Semaphore::new(PERMITS), |semaphore| {
                drop(black_box(semaphore.try_acquire().expect("free")));
            }),
        ],
    );
    let inner = || service_fn(|_: ()| std::future::ready(Ok::<(), Infallible>(())));
    let classify = |_: &Result<(), Infallible>| SampleOutcome::Success;
    let aimd = tower_resilience_adaptive::Aimd::builder().initial_limit(PERMITS).build();
    let theirs = tower_resilience_adaptive::AdaptiveLimiterLayer::new(aimd.expect("valid"));
    let their_bulkhead = tower_resilience_bulkhead::BulkheadLayer::builder()
        .max_concurrent_calls(PERMITS)
        .reject_when_full()
        .build();
    table(
        "a tower service",
        vec![
            service("without a limit", inner()),
            service(
                "**ratekeeper** AdaptiveLimit",
                AdaptiveLimitLayer::new(AdaptiveLimit::default(), classify).layer(inner()),
            ),
            service("tower-resilience adaptive, AIMD", theirs.layer(inner())),
            service("**ratekeeper** Bulkhead", BulkheadLayer::new(bulkhead()).layer(inner())),
            service("tower-resilience bulkhead", their_bulkhead.expect("valid").layer(inner())),
            service(
                "tower ConcurrencyLimit",
                tower::limit::ConcurrencyLimitLayer::new(PERMITS).layer(inner()),
            ),
        ],
    );
}

fn bulkhead() -> Bulkhead {
    Bulkhead::new(PERMITS).expect("permits")
}
