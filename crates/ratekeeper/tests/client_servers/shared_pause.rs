//! A refusal pauses a quota in all processes that share a store.

use std::time::Instant;

use ratekeeper::client::{Outbound, OutboundError, WaitReason};
use ratekeeper_testkit::{RedisServer, ScriptedResponse, ScriptedServer};

use crate::support::*;

/// Refuses the path `/refused` with a pause of two seconds.
fn server() -> ScriptedServer {
    ScriptedServer::start(|_, request| match request.target() {
        "/refused" => ScriptedResponse::status(429).header("Retry-After", "2"),
        _ => ScriptedResponse::status(200),
    })
}

#[tokio::test]
async fn a_refusal_of_one_process_pauses_the_others() {
    let (redis, server) = (RedisServer::start(), server());
    // Two layers with connections of their own, as in two processes.
    let new = || Outbound::shared("1000/s per host", &redis.url()).unwrap().without_retries();
    let (one, other, late) = (new(), new(), new());
    let (url, refused) = (server.url(), format!("{}/refused", server.url()));
    // Both have sent requests before, so that the other one does not look for pauses on its first.
    send(&client(&one), get(&url)).await.unwrap();
    send(&client(&other), get(&url)).await.unwrap();
    let error = send(&client(&one), get(&refused)).await.unwrap_err();
    assert!(matches!(error, OutboundError::UpstreamRefused(_)), "{error}");
    let refused_at = server.requests().last().unwrap().at;
    assert_eq!((one.stats().pauses, one.stats().pauses_shared), (1, 0));

    // The other one learns of it while it sends requests, within a second.
    while other.stats().pauses_shared == 0 {
        send(&client(&other), get(&url)).await.unwrap();
        tokio::time::sleep(10 * MS).await;
        assert!(refused_at.elapsed() < 2 * SEC, "it never learns of the pause");
    }
    let learned_after = refused_at.elapsed();
    println!("shared pause: learned after {learned_after:?}");
    let before = server.received();
    // One that starts meanwhile learns of it before its first request.
    let (other_client, late_client) = (client(&other), client(&late));
    let (sent, sent_late) =
        tokio::join!(send(&other_client, get(&url)), send(&late_client, get(&url)));
    sent.unwrap();
    sent_late.unwrap();
    for request in &server.requests()[before as usize..] {
        // The store counts whole milliseconds, by its own clock.
        assert!(request.at - refused_at >= 2 * SEC - 10 * MS, "{:?}", request.at - refused_at);
    }
    assert_eq!(late.stats().pauses_shared, 1);
    for outbound in [&other, &late] {
        let waits = outbound.stats().waits;
        let paused = waits.iter().find(|(reason, _)| *reason == WaitReason::Paused).unwrap().1;
        assert!(paused.count >= 1, "{waits:?}");
    }
    assert_eq!(server.received(), before + 2);
}

#[tokio::test]
async fn a_pause_is_of_one_quota() {
    let (redis, server) = (RedisServer::start(), server());
    let new = || Outbound::shared("1000/s per host", &redis.url()).unwrap().without_retries();
    let (one, other) = (new(), new());
    let with_key = |url: &str, key: &'static str| {
        let mut request = get(url);
        request.headers_mut().insert("authorization", key.parse().unwrap());
        request
    };
    let refused = format!("{}/refused", server.url());
    send(&client(&one), with_key(&refused, "Bearer a")).await.unwrap_err();
    let began = Instant::now();
    send(&client(&other), with_key(&server.url(), "Bearer b")).await.unwrap();
    assert!(began.elapsed() < SEC, "another credential is another quota");
    let keys = redis.command(&["KEYS", "*"]);
    assert!(!keys.contains("Bearer"), "no credential is stored: {keys}");
}

#[tokio::test]
async fn a_process_is_soon_as_fast_as_before_although_the_others_are_idle() {
    const PROCESSES: usize = 10;
    let (redis, server) = (RedisServer::start(), server());
    let (url, refused) = (server.url(), format!("{}/refused", server.url()));
    let all: Vec<_> = (0..PROCESSES)
        .map(|_| Outbound::shared("100/s per host", &redis.url()).unwrap().without_retries())
        .collect();
    for outbound in &all {
        send(&client(outbound), get(&url)).await.unwrap();
    }
    let busy = &all[0];
    let nodes = || busy.limiter().engine().fallback_stats().unwrap().nodes as usize;
    while nodes() < PROCESSES {
        tokio::time::sleep(50 * MS).await;
    }
    let client = client(busy);
    send(&client, get(&refused)).await.unwrap_err();
    // As many as the limit allows in the second after the pause, apart from its burst.
    let (before, began) = (server.received(), Instant::now());
    let results = send_all(&client, 4, 100, move |_| get(&url)).await;
    assert_eq!(served(&results), 100);
    let took = began.elapsed();
    println!("100 requests after a pause of 2 s of one of {PROCESSES} processes: {took:?}");
    // Those of one tenth of the limit would take 10 s.
    assert!(took < 7 * SEC, "{took:?}");
    assert_eq!(server.received(), before + 100);
}
