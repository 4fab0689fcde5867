//! Dependencies of a policy, called by a program and behind the layer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use http::{Request, Response};
use http_body_util::Full;
use ratekeeper::policy::NoSources;
use ratekeeper::{
    BreakerState, BulkheadError, CallOutcome, Dependency, DependencyError, DependencyRejection,
    Policy, PolicyLimiter, RatekeeperLayer, UnknownDependency,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{MS, SEC, VirtualClock, settle};

fn policy(dependencies: &str) -> Policy {
    let text = format!("version: 1\ndependencies: {dependencies}\nlimits: []");
    Policy::parse("policy.yaml", &text, &NoSources).unwrap()
}

fn limiter(dependencies: &str) -> PolicyLimiter {
    PolicyLimiter::with_clock(policy(dependencies), VirtualClock::start()).unwrap()
}

fn inventory(settings: &str) -> (PolicyLimiter, Dependency) {
    let limiter = limiter(&format!("{{ inventory: {settings} }}"));
    let dependency = limiter.dependency("inventory").unwrap();
    (limiter, dependency)
}

async fn reason(dependency: &Dependency) -> DependencyRejection {
    dependency.acquire().await.unwrap_err().reason
}

#[tokio::test(start_paused = true)]
async fn the_rate_rejects_with_the_time_until_the_next_call() {
    let (_limiter, inventory) = inventory("{ rate: 2/s burst 2 }");
    inventory.acquire().await.unwrap().success();
    inventory.acquire().await.unwrap().success();
    let rejected = inventory.acquire().await.unwrap_err();
    assert_eq!(rejected.reason, DependencyRejection::RateLimited { retry_after: 500 * MS });
    assert_eq!(rejected.to_string(), "inventory: the rate is used up; retry after 500ms");
    tokio::time::sleep(500 * MS).await;
    inventory.acquire().await.unwrap().success();
    let stats = inventory.stats();
    assert_eq!((stats.admitted, stats.rate_limited), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_concurrency_wait_in_its_queue() {
    let (_limiter, inventory) =
        inventory("{ concurrency: { max: 1, queue: { max: 1, wait: 500ms } } }");
    let held = inventory.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let inventory = inventory.clone();
        async move { inventory.acquire().await.map(|permit| permit.success()) }
    });
    settle().await;
    let full = BulkheadError::Full { waiting: 1 };
    assert_eq!(reason(&inventory).await, DependencyRejection::Bulkhead(full));
    drop(held);
    waiting.await.unwrap().unwrap();
    let _held = inventory.acquire().await.unwrap();
    let timed_out = BulkheadError::TimedOut { waited: 500 * MS };
    assert_eq!(reason(&inventory).await, DependencyRejection::Bulkhead(timed_out));
}

/// A call that cannot be made must not wait for a permit, nor use up the rate.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_rejects_at_once_and_charges_nothing() {
    let (_limiter, other) = inventory("{ rate: 1/h, breaker: { consecutive_failures: 1 } }");
    other.acquire().await.unwrap().failure();
    let began = tokio::time::Instant::now();
    for _ in 0..10 {
        assert!(matches!(reason(&other).await, DependencyRejection::Open(_)));
    }
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
    assert_eq!((other.stats().rate_limited, other.stats().breaker.unwrap().rejected), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn a_call_reports_its_result() {
    let (_limiter, inventory) =
        inventory("{ breaker: { consecutive_failures: 2, wait: 10s, probes: 1 } }");
    assert_eq!(inventory.call(async { Ok::<_, Infallible>(3) }).await, Ok(3));
    for _ in 0..2 {
        let failed = inventory.call(async { Err::<(), _>("lost") }).await;
        assert_eq!(failed, Err(DependencyError::Failed("lost")));
    }
    let rejected = inventory.call(async { panic!("it is not called") }).await;
    let rejected: Result<(), DependencyError<Infallible>> = rejected;
    assert!(matches!(rejected, Err(DependencyError::Rejected(_))), "{rejected:?}");
    tokio::time::sleep(10 * SEC).await;
    assert_eq!(inventory.call(async { Ok::<_, Infallible>(4) }).await, Ok(4));
    assert_eq!(inventory.stats().breaker_state, Some(BreakerState::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_has_no_outcome_and_releases_its_permit() {
    let (_limiter, inventory) =
        inventory("{ concurrency: 1, breaker: { consecutive_failures: 1 } }");
    let call = inventory.call(std::future::pending::<Result<(), Infallible>>());
    assert!(tokio::time::timeout(MS, call).await.is_err());
    let stats = inventory.stats();
    assert_eq!(stats.permits.unwrap().in_flight, 0);
    assert_eq!(stats.breaker.unwrap().ignored, 1);
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_concurrency_learns_from_reports() {
    let (_limiter, inventory) = inventory(
        "{ concurrency: { adaptive: { algorithm: aimd, min: 5, initial: 40, max: 80 } } }",
    );
    assert_eq!(inventory.stats().permits.unwrap().permits_max, 40);
    for _ in 0..200 {
        let permit = inventory.acquire().await.unwrap();
        tokio::time::sleep(20 * MS).await;
        permit.overloaded();
    }
    assert!(inventory.stats().permits.unwrap().permits_max < 40);
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_what_has_not_changed() {
    let (limiter, inventory) =
        inventory("{ concurrency: 1, breaker: { consecutive_failures: 1 } }");
    inventory.acquire().await.unwrap().failure();
    let text = "{ inventory: { concurrency: 2, breaker: { consecutive_failures: 1 } } }";
    limiter.policy().replace(policy(text)).unwrap();
    let stats = inventory.stats();
    assert_eq!(stats.permits.unwrap().permits_max, 2, "a handle follows the policy");
    assert_eq!(stats.breaker_state, Some(BreakerState::Open), "the breaker is the same");

    limiter.policy().replace(policy("{ inventory: { concurrency: 2 } }")).unwrap();
    let _one = inventory.acquire().await.unwrap();
    limiter.policy().replace(policy("{ inventory: { concurrency: 2, rate: 9/s } }")).unwrap();
    assert_eq!(inventory.stats().permits.unwrap().in_flight, 1, "permits are the same");
    assert!(limiter.dependency("inventory").is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_name_says_which_there_are() {
    let limiter = limiter("{ mail: { rate: 1/s }, ups: { per: upstream, breaker: true } }");
    let unknown = limiter.dependency("male").unwrap_err();
    assert_eq!(unknown.to_string(), "the policy has no dependency \"male\"; it has mail");
    let of_gateway = limiter.dependency("ups").unwrap_err();
    assert_eq!(of_gateway, UnknownDependency::PerUpstream { name: "ups".into() });
}

#[tokio::test(start_paused = true)]
async fn each_upstream_has_its_own() {
    let limiter = limiter("{ ups: { per: upstream, breaker: { consecutive_failures: 1 } } }");
    limiter.policy().declare_upstreams(["a:80", "b:80"].map(Into::into));
    let active = limiter.policy().active();
    let [one, two] = [0, 1].map(|index| &active.upstream_dependencies(index)[0]);
    assert_eq!((one.upstream(), two.upstream()), (Some("a:80"), Some("b:80")));
    one.acquire().await.unwrap().failure();
    assert!(one.check_breaker().is_err() && two.check_breaker().is_ok());
    limiter
        .policy()
        .replace(policy(
            "{ ups: { per: upstream, breaker: { consecutive_failures: 1 }, rate: 9/s } }",
        ))
        .unwrap();
    let active = limiter.policy().active();
    assert!(active.upstream_dependencies(0)[0].check_breaker().is_err());
    active.upstream_dependencies(0)[0].probe_succeeded();
    assert!(one.check_breaker().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_layer_protects_the_requests_that_match() {
    let limiter = limiter(
        "{ inventory: { match: { path: /stock/** }, concurrency: 1, breaker: { consecutive_failures: 2 } } }",
    );
    let status = Arc::new(AtomicU16::new(429));
    let service = service_fn({
        let status = Arc::clone(&status);
        move |_: Request<Full<bytes::Bytes>>| {
            let status = status.load(Ordering::SeqCst);
            async move {
                tokio::time::sleep(10 * MS).await;
                let body = Full::new(bytes::Bytes::from_static(b"body"));
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        }
    });
    let limits = RatekeeperLayer::new(limiter.clone());
    let service = limits.dependencies().layer(service);
    let get = |path: &str| {
        let request = Request::get(path).body(Full::default()).unwrap();
        service.clone().oneshot(request)
    };
    let (first, second, other) = tokio::join!(get("/stock/1"), get("/stock/2"), get("/other"));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (429, 503));
    assert_eq!(other.unwrap().status(), 429);
    let inventory = limiter.dependency("inventory").unwrap();
    assert_eq!(inventory.stats().permits.unwrap().in_flight, 1, "until the body is read");
    drop(first);
    assert_eq!(inventory.stats().permits.unwrap().in_flight, 0);

    status.store(500, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(get("/stock/1").await.unwrap().status(), 500);
    }
    assert_eq!(get("/stock/1").await.unwrap().status(), 503, "the breaker is open");
    assert_eq!(get("/other").await.unwrap().status(), 500, "and only for what matches");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_reported_once_and_keeps_its_permit() {
    let (_limiter, inventory) =
        inventory("{ concurrency: 1, breaker: { consecutive_failures: 1 } }");
    let mut permit = inventory.acquire().await.unwrap();
    permit.report(CallOutcome::Success);
    permit.report(CallOutcome::Failure);
    assert_eq!(inventory.stats().permits.unwrap().in_flight, 1);
    drop(permit);
    let stats = inventory.stats();
    assert_eq!(stats.permits.unwrap().in_flight, 0);
    assert_eq!(stats.breaker.unwrap().successes, 1);
}
