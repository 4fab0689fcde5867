//! Requests stay within limits, and wait for them.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper::client::{Deadline, LocalReason, Outbound, OutboundError, WaitReason};

use crate::support::*;

const A: &str = "https://a.example.com/x";
const B: &str = "https://b.example.com:8443/x";

#[tokio::test(start_paused = true)]
async fn requests_wait_for_the_limit_of_their_host() {
    let (outbound, upstream) = (outbound(&["10/s burst 2 per host"]), Upstream::ok());
    let client = upstream.behind(&outbound);
    for _ in 0..4 {
        send(&client, get(A)).await.unwrap();
    }
    send(&client, get(B)).await.unwrap();
    send(&client, get("https://b.example.com/x")).await.unwrap();
    let expected = [0, 0, 100, 200, 200, 200].map(Duration::from_millis);
    assert_eq!(upstream.times(), expected);
    let stats = outbound.stats();
    assert_eq!((stats.requests, stats.attempts), (6, 6));
    let waits = stats.waits_for(WaitReason::RateLimit);
    assert_eq!((waits.count, waits.time), (2, 200 * MS));
}

#[tokio::test(start_paused = true)]
async fn waiting_is_first_come_first_served() {
    let (outbound, upstream) = (outbound(&["10/s burst 1 per host"]), Upstream::ok());
    let client = upstream.behind(&outbound);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let client = client.clone();
        tasks.spawn(async move { send(&client, get(&format!("http://a/{n}"))).await.map(drop) });
        tokio::task::yield_now().await;
    }
    tasks.join_all().await.into_iter().for_each(|sent| sent.unwrap());
    let paths: Vec<_> = upstream.received.lock().unwrap().iter().map(|r| r.path.clone()).collect();
    assert_eq!(paths, (0..20).map(|n| format!("/{n}")).collect::<Vec<_>>());
    let times: Vec<_> = (0..20).map(|n| n * 100 * MS).collect();
    assert_eq!(upstream.times(), times);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_fails_at_once_and_says_how_long() {
    let outbound = outbound(&["1/s burst 1 per host"]).max_wait(2 * SEC);
    let (upstream, began) = (Upstream::ok(), tokio::time::Instant::now());
    let client = upstream.behind(&outbound);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let client = client.clone();
        tasks.spawn(async move {
            send(&client, get(A)).await.map(drop).map_err(|e| (e, tokio::time::Instant::now()))
        });
        tokio::task::yield_now().await;
    }
    let results = tasks.join_all().await;
    let mut refused = Vec::new();
    for (error, at) in results.into_iter().filter_map(Result::err) {
        assert_eq!(at, began, "it did not wait");
        let OutboundError::WaitTooLong(refusal) = error else { panic!("{error}") };
        refused.push(refusal.retry_after.unwrap());
    }
    assert_eq!(refused, [3 * SEC, 3 * SEC], "three were sent: at 0, 1 and 2 s");
    assert_eq!(upstream.times(), [0, 1, 2].map(|n| n * SEC));
    assert_eq!(outbound.stats().refused_locally, 2);
}

#[tokio::test(start_paused = true)]
async fn only_the_limit_that_requests_wait_for_counts_for_how_long_they_wait() {
    // All are within the hour and within the day, so that only the first limit holds them back.
    let lines = ["10/s burst 1 per host", "5000/hour per host"];
    let text = "version: 1\nlimits: [{ name: s, per: host, rate: 10/s burst 1 }, \
                { name: d, per: host, rate: 10000/day, algorithm: fixed_window }]";
    for outbound in [outbound(&lines), with_policy(policy(text))] {
        let (upstream, mut tasks) = (Upstream::ok(), tokio::task::JoinSet::new());
        let client = upstream.behind(&outbound.max_wait(20 * SEC));
        for _ in 0..100 {
            let client = client.clone();
            tasks.spawn(async move { send(&client, get(A)).await.map(drop) });
            tokio::task::yield_now().await;
        }
        tasks.join_all().await.into_iter().for_each(|sent| sent.unwrap());
        assert_eq!(upstream.times().last(), Some(&(9_900 * MS)));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_the_error_says_when() {
    let outbound = outbound(&["1/minute per host"]).max_wait(Duration::ZERO);
    let client = Upstream::ok().behind(&outbound);
    send(&client, get(A)).await.unwrap();
    let error = send(&client, get(A)).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(60 * SEC));
    assert_eq!(error.to_string(), "not sent: the limit \"default\" is used up; retry in 60s");
    let OutboundError::Refused(refusal) = error else { panic!("{error}") };
    let limit = Some(Arc::from("default"));
    assert_eq!(refusal.reason, LocalReason::Wait { reason: WaitReason::RateLimit, limit });
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_beyond_its_deadline() {
    let outbound = outbound(&["1/s burst 1 per host"]);
    let client = Upstream::ok().behind(&outbound);
    send(&client, get(A)).await.unwrap();
    let mut late = get(A);
    late.extensions_mut().insert(Deadline::after(500 * MS));
    let error = send(&client, late).await.unwrap_err();
    assert!(matches!(&error, OutboundError::WaitTooLong(_)), "{error}");
    let mut in_time = get(A);
    in_time.extensions_mut().insert(Deadline::after(SEC));
    send(&client, in_time).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_is_not_charged_and_does_not_block_others() {
    let (outbound, upstream) = (outbound(&["1/s burst 1 per host"]), Upstream::ok());
    let client = upstream.behind(&outbound);
    send(&client, get(A)).await.unwrap();
    for _ in 0..10 {
        let waiting = send(&client, get(A));
        assert!(tokio::time::timeout(10 * MS, waiting).await.is_err());
    }
    send(&client, get(A)).await.unwrap();
    assert_eq!(upstream.times(), [Duration::ZERO, SEC]);
}

#[tokio::test(start_paused = true)]
async fn several_limits_are_charged_all_or_none() {
    let lines = [
        "10/s burst 10 per host",
        "1/s burst 1 per host for POST /search",
        "100/s per header authorization",
    ];
    let (outbound, upstream) = (outbound(&lines), Upstream::ok());
    let client = upstream.behind(&outbound);
    send(&client, post("https://a/search")).await.unwrap();
    send(&client, post("https://a/search")).await.unwrap();
    assert_eq!(upstream.times(), [Duration::ZERO, SEC]);
    let stats = outbound.limiter().telemetry().limits();
    let allowed: Vec<_> =
        stats.iter().map(|limit| (limit.name.to_string(), limit.allowed)).collect();
    let expected = [
        ("authorization".to_string(), 2),
        ("host".to_string(), 2),
        ("host:POST:/search".to_string(), 2),
    ];
    assert_eq!(allowed, expected);
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_are_limited_until_the_body_of_the_response_is_read() {
    let upstream = Upstream::new(|_, _| http::Response::new(Body::from("x"))).taking(100 * MS);
    let outbound = outbound(&["2 in flight per host"]);
    let client = upstream.behind(&outbound);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let client = client.clone();
        tasks.spawn(async move {
            let response = send(&client, get(A)).await.unwrap();
            tokio::time::sleep(50 * MS).await;
            drop(response);
        });
        tokio::task::yield_now().await;
    }
    tasks.join_all().await;
    let expected = [0, 0, 150, 150, 300, 300].map(Duration::from_millis);
    assert_eq!(upstream.times(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_released_in_time_is_waited_for() {
    let upstream = Upstream::ok().taking(30 * MS);
    let client = upstream.behind(&outbound(&["1 in flight per host"]).max_wait(50 * MS));
    let (first, second) = tokio::join!(send(&client, get(A)), send(&client, get(A)));
    assert!(first.is_ok() && second.is_ok());
    let (first, second, third) =
        tokio::join!(send(&client, get(A)), send(&client, get(A)), send(&client, get(A)));
    let third = third.unwrap_err();
    assert!(first.is_ok() && second.is_ok());
    assert!(matches!(third, OutboundError::WaitTooLong(_)), "{third}");
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_spaces_requests_evenly() {
    let policy = policy(
        "version: 1\nlimits: [{ name: q, per: host, rate: 10/s, when_limited: { queue: 1s }, algorithm: leaky_bucket }]",
    );
    let (outbound, upstream) = (with_policy(policy), Upstream::ok());
    let client = upstream.behind(&outbound);
    // Ten fit into the bucket, and the others wait for a place in it.
    let sends = (0..30).map(|_| send(&client, get(A)));
    for sent in futures(sends).await {
        sent.unwrap();
    }
    let expected: Vec<_> = (0..30).map(|n| n * 100 * MS).collect();
    assert_eq!(upstream.times(), expected);
}

async fn futures<F: Future<Output: Send + 'static>>(
    all: impl Iterator<Item = F>,
) -> Vec<F::Output> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (one, done) in all.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(output) = one.as_mut().poll(context) {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test(start_paused = true)]
async fn programs_supply_identities() {
    #[derive(Clone)]
    struct Tenant(&'static str);
    let outbound = outbound(&["1/s burst 1 per custom tenant"]);
    let unsupplied = Upstream::ok().behind(&outbound);
    let error = send(&unsupplied, get(A)).await.unwrap_err();
    assert!(error.to_string().contains("Outbound::identify"), "{error}");
    assert!(outbound.clone().identify("tenent", |_| None::<String>).is_err());

    let outbound =
        outbound.identify("tenant", |request| Some(request.extensions.get::<Tenant>()?.0)).unwrap();
    let upstream = Upstream::ok();
    let client = upstream.behind(&outbound);
    for tenant in ["a", "a", "b"] {
        let mut request = get(A);
        request.extensions_mut().insert(Tenant(tenant));
        send(&client, request).await.unwrap();
    }
    assert_eq!(upstream.times(), [Duration::ZERO, SEC, SEC]);
}

#[test]
fn mistakes_say_what_to_do() {
    let error = Outbound::new("100/s per ip").unwrap_err().to_string();
    assert!(error.contains("count by host"), "{error}");
    let error = Outbound::new("100/fortnight per host").unwrap_err().to_string();
    assert!(error.contains("unknown period \"fortnight\""), "{error}");
    let error = Outbound::lines(["1/s", "2/s per moon"]).unwrap_err().to_string();
    assert!(error.contains("cannot count by \"moon\""), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_never_fits_is_refused() {
    let policy = policy("version: 1\nlimits: [{ name: big, rate: 5/s, cost: 6 }]");
    let client = Upstream::ok().behind(&with_policy(policy));
    let error = send(&client, get(A)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "not sent: the cost is more than the limit \"big\" can ever allow"
    );
    assert_eq!(error.retry_after(), None);
}
