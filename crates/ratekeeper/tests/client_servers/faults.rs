//! Servers that fail, lie, or refuse everything: attempts, their rate and the time they take are bounded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use http::Request;
use ratekeeper::client::{
    Backoff, ClientExt, Outbound, OutboundError, RetryBudgetConfig, RetryRules, StopReason,
};
use ratekeeper_testkit::{Fault, FaultProxy, ScriptedResponse, ScriptedServer};
use tower::timeout::Timeout;
use tower::{ServiceBuilder, ServiceExt};

use crate::support::*;

fn arrivals(server: &ScriptedServer) -> Vec<Instant> {
    server.requests().iter().map(|request| request.at).collect()
}

/// A layer that outlasts an outage of a second: ten attempts, and as many retries as requests.
fn patient(line: &str) -> Outbound {
    let rules =
        RetryRules::default().with_attempts_max(12).with_backoff(Backoff::new(100 * MS, 400 * MS));
    let budget = RetryBudgetConfig::default().with_percent(500).with_floor_per_sec(100);
    Outbound::new(line).unwrap().retry(rules).retry_budget(budget).unwrap()
}

#[tokio::test]
async fn all_idempotent_requests_are_served_across_a_restart() {
    let server = Arc::new(ScriptedServer::always(ScriptedResponse::status(200).delay(5 * MS)));
    let outbound = patient("200/s burst 20 per host");
    let (client, url, began) = (client(&outbound), server.url(), Instant::now());
    let requests = {
        let url = url.clone();
        send_all(&client, 10, 300, move |n| get(&format!("{url}/{n}")))
    };
    let restarted = Arc::clone(&server);
    let restart = tokio::task::spawn_blocking(move || {
        ratekeeper_testkit::wait_until("requests arrive", || restarted.received() >= 100);
        restarted.restart(300 * MS);
    });
    let (results, restart) = tokio::join!(requests, restart);
    restart.unwrap();
    assert_eq!(served(&results), 300, "{results:?}");
    let stats = outbound.stats();
    println!("restart: {} attempts for {} requests", stats.attempts, stats.requests);
    assert!(stats.failed > 0 && stats.attempts == 300 + stats.failed, "{stats:?}");
    assert_no_faster(arrivals(&server), began, 200.0, 20.0);
}

#[tokio::test]
async fn a_post_is_repeated_only_if_it_was_never_sent() {
    let server = Arc::new(ScriptedServer::always(ScriptedResponse::status(200).delay(20 * MS)));
    let outbound = patient("200/s burst 20 per host");
    let (client, url) = (client(&outbound), server.url());
    let requests = send_all(&client, 10, 300, move |n| {
        Request::post(format!("{url}/{n}")).body(Body::from("{}")).unwrap()
    });
    let restarted = Arc::clone(&server);
    let restart = tokio::task::spawn_blocking(move || {
        ratekeeper_testkit::wait_until("requests arrive", || restarted.received() >= 100);
        restarted.restart(300 * MS);
    });
    let (results, restart) = tokio::join!(requests, restart);
    restart.unwrap();
    let mut received: HashMap<String, u32> = HashMap::new();
    for request in server.requests() {
        *received.entry(request.target().to_string()).or_default() += 1;
    }
    assert!(received.values().all(|times| *times == 1), "none is received twice");
    let mut lost = 0;
    for (n, result) in results.iter().enumerate() {
        match result {
            Ok(received) => assert_eq!(received.status, 200),
            Err(OutboundError::Failed { stop: Some(StopReason::NotSafe), .. }) => lost += 1,
            Err(error) => panic!("request {n}: {error}"),
        }
    }
    let stats = outbound.stats();
    println!("restart: {lost} of 300 POST requests lost, {} attempts", stats.attempts);
    assert!(lost <= 10, "at most those in flight are lost: {lost}");
    assert!(stats.attempts > 300, "those that could not connect were sent again: {stats:?}");
}

#[tokio::test]
async fn a_post_to_a_name_that_is_not_resolved_was_never_sent() {
    let client = client(&Outbound::new("200/s per host").unwrap());
    let request = Request::post("http://no-such-host.invalid/").body(Body::from("{}")).unwrap();
    let error = client.oneshot(request).await.unwrap_err();
    let OutboundError::Failed { attempts: 3, stop: Some(StopReason::Attempts), .. } = error else {
        panic!("{error}")
    };
}

#[tokio::test]
async fn a_black_hole_takes_no_longer_than_its_timeouts() {
    let server = ScriptedServer::always(ScriptedResponse::black_hole());
    let outbound = Outbound::new("100/s burst 10 per host").unwrap();
    let client = ServiceBuilder::new()
        .layer(outbound.clone())
        .layer(tower::timeout::TimeoutLayer::new(200 * MS))
        .service(http_client());
    let (url, began, mut tasks) = (server.url(), Instant::now(), tokio::task::JoinSet::new());
    for _ in 0..10 {
        let (client, request) = (client.clone(), get(&url));
        tasks.spawn(async move { client.oneshot(request).await.map(drop) });
    }
    for result in tasks.join_all().await {
        match result.unwrap_err() {
            OutboundError::Failed { source, stop: Some(StopReason::Attempts), .. } => {
                assert!(source.is::<tower::timeout::error::Elapsed>(), "{source}");
            }
            OutboundError::BudgetSpent(_) => {}
            error => panic!("{error}"),
        }
    }
    // Three timeouts, and backoff of at most 0.1 and 0.2 s.
    assert!(began.elapsed() < 3 * SEC, "{:?}", began.elapsed());
    let attempts = outbound.stats().attempts;
    assert!(attempts > 10 && attempts <= 10 + retries_max(10, began.elapsed()), "{attempts}");
    assert_no_faster(arrivals(&server), began, 100.0, 10.0);
}

#[tokio::test]
async fn resets_are_retried_within_the_budget() {
    for response in [ScriptedResponse::reset(), ScriptedResponse::close()] {
        let server = ScriptedServer::always(response);
        let outbound = Outbound::new("100/s burst 10 per host").unwrap();
        let (url, began) = (server.url(), Instant::now());
        let results = send_all(&client(&outbound), 10, 100, move |_| get(&url)).await;
        let elapsed = began.elapsed();
        assert_eq!(served(&results), 0);
        let received = server.received();
        println!("resets: {received} attempts for 100 requests in {elapsed:?}");
        assert!(received > 100 && received <= 100 + retries_max(100, elapsed), "{received}");
        assert_eq!(received, outbound.stats().attempts);
        assert!(outbound.stats().budget_spent > 0);
        assert_no_faster(arrivals(&server), began, 100.0, 10.0);
    }
}

#[tokio::test]
async fn a_network_that_is_cut_and_mended_costs_no_request() {
    let server = ScriptedServer::always(ScriptedResponse::status(200));
    let proxy = Arc::new(FaultProxy::start(server.address().port()));
    let outbound = patient("100/s burst 10 per host");
    let client = Timeout::new(http_client(), 300 * MS).layer(outbound.clone());
    let url = format!("http://127.0.0.1:{}/", proxy.port());
    let faulty = Arc::clone(&proxy);
    let faults = tokio::task::spawn_blocking(move || {
        for fault in [Fault::Cut, Fault::BlackHole, Fault::HalfOpen] {
            std::thread::sleep(200 * MS);
            faulty.set(fault);
            std::thread::sleep(200 * MS);
            faulty.set(Fault::None);
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (client, url) = (client.clone(), url.clone());
        tasks.spawn(async move {
            for _ in 0..40 {
                let response = client.clone().oneshot(get(&url)).await.unwrap();
                assert_eq!(response.status(), 200);
            }
        });
    }
    tasks.join_all().await;
    faults.await.unwrap();
    assert!(outbound.stats().failed > 0);
    assert!(server.received() >= 200);
}

#[tokio::test]
async fn a_server_that_always_refuses_gets_few_attempts() {
    let server = ScriptedServer::always(ScriptedResponse::status(429));
    let outbound = Outbound::new("50/s burst 5 per host").unwrap();
    let (url, began) = (server.url(), Instant::now());
    let results = send_all(&client(&outbound), 20, 100, move |_| get(&url)).await;
    let elapsed = began.elapsed();
    for result in &results {
        let error = result.as_ref().unwrap_err();
        let is_expected =
            matches!(error, OutboundError::UpstreamRefused(_) | OutboundError::BudgetSpent(_));
        assert!(is_expected, "{error}");
    }
    let received = server.received();
    println!("always 429: {received} attempts for 100 requests in {elapsed:?}");
    assert!(received <= 100 + retries_max(100, elapsed), "{received}");
    assert_no_faster(arrivals(&server), began, 50.0, 5.0);
}

#[tokio::test]
async fn lying_headers_cost_bounded_attempts_and_time() {
    for (name, value) in [
        ("Retry-After", "99999999"),
        ("Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("Retry-After", "-5"),
        ("Retry-After", "18446744073709551616"),
        ("retry-after-ms", "-1"),
        ("X-RateLimit-Reset", "99999999999999999999"),
        ("RateLimit", "\"default\";r=0;t=99999999"),
    ] {
        for status in [429, 503] {
            let lie = ScriptedResponse::status(status).header(name, value);
            let server = ScriptedServer::start(move |number, _| match number {
                0..20 => lie.clone(),
                _ => ScriptedResponse::status(200),
            });
            let outbound = Outbound::new("100/s burst 10 per host").unwrap().max_wait(SEC);
            let (url, began) = (server.url(), Instant::now());
            let results = send_all(&client(&outbound), 10, 60, move |_| get(&url)).await;
            let elapsed = began.elapsed();
            let received = server.received();
            println!("{status} {name}: {value}: {received} attempts in {elapsed:?}");
            assert_eq!(results.len(), 60);
            // Each worker: six requests, of which each waits for at most one second and two backoffs.
            assert!(elapsed < 10 * SEC, "{name}: {value}: {elapsed:?}");
            assert!(received <= 60 + retries_max(60, elapsed), "{name}: {value}: {received}");
            assert_no_faster(arrivals(&server), began, 100.0, 10.0);
        }
    }
}

#[tokio::test]
async fn a_pause_that_is_a_lie_ends_after_the_longest_pause() {
    let server = ScriptedServer::sequence([
        ScriptedResponse::status(429).header("Retry-After", "99999999"),
        ScriptedResponse::status(200),
    ]);
    let outbound = Outbound::new("100/s per host").unwrap().max_pause(500 * MS);
    let (client, url, began) = (client(&outbound), server.url(), Instant::now());
    // It is not waited for by a retry, and other requests wait for no longer than the longest pause.
    let error = send(&client, get(&url)).await.unwrap_err();
    let OutboundError::UpstreamRefused(refusal) = error else { panic!("{error}") };
    assert!(matches!(refusal.stop, Some(StopReason::RetryAfterTooLong { .. })));
    let results = send_all(&client, 5, 5, move |_| get(&url)).await;
    assert_eq!(served(&results), 5);
    let arrivals = arrivals(&server);
    assert!(arrivals[1..].iter().all(|at| *at - arrivals[0] >= 490 * MS), "{arrivals:?}");
    assert!(began.elapsed() < 5 * SEC, "{:?}", began.elapsed());
    assert_eq!(server.received(), 6);
}
