//! What a response says about the server's quota is obeyed.

use std::time::Duration;

use http::Response;
use http_body_util::Full;
use ratekeeper::client::{Outbound, OutboundError, OutboundRequest, WaitReason};

use crate::support::*;

const A: &str = "https://a.example.com/x";

/// Sends requests at once, and returns how many were served.
async fn send_all(
    client: &ratekeeper::client::OutboundService<impl Client>,
    requests: usize,
) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..requests {
        let client = client.clone();
        tasks.spawn(async move { send(&client, get(A)).await.is_ok() });
    }
    tasks.join_all().await.into_iter().filter(|is_served| *is_served).count()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_pauses_all_requests_of_the_quota() {
    for status in [429, 503] {
        let upstream =
            Upstream::sequence([response(status, &[("retry-after", "5")]), response(200, &[])]);
        let outbound = outbound(&["100/s per host"]).without_retries();
        let client = upstream.behind(&outbound);
        let _ = send(&client, get(A)).await;
        assert_eq!(send_all(&client, 20).await, 20);
        let times = upstream.times();
        assert!(times[1..].iter().all(|at| *at >= 5 * SEC), "{times:?}");
        // They come back as the limit allows, and not all at once.
        let gaps: Vec<_> = times[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= 10 * MS), "{gaps:?}");
        assert!(times.last().unwrap() < &(7 * SEC), "{times:?}");
        assert_eq!(outbound.stats().pauses, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_a_long_period_does_not_slow_down_what_comes_after_a_pause() {
    let refusal = || response(429, &[("retry-after", "5")]);
    let text = "version: 1\nlimits: [{ name: s, per: host, rate: 100/s }, { name: h, per: host, rate: 5000/hour }, \
                { name: d, per: host, rate: 10000/day, algorithm: fixed_window }]";
    let upstream = Upstream::sequence([refusal(), response(200, &[])]);
    let client = upstream.behind(&with_policy(policy(text)).without_retries());
    let _ = send(&client, get(A)).await;
    assert_eq!(send_all(&client, 20).await, 20);
    let times = upstream.times();
    assert!(times[1] >= 5 * SEC && times[20] < 6 * SEC, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn other_quotas_are_not_paused() {
    let upstream = Upstream::new(|_, request| match request.path.as_str() {
        "/refused" => response(429, &[("retry-after", "60")]),
        _ => response(200, &[]),
    });
    let outbound =
        outbound(&["100/s per host", "50/s per host for GET /search/**"]).without_retries();
    let client = upstream.behind(&outbound);
    let with_key = |uri: &str, key: &'static str| {
        let mut request = get(uri);
        request.headers_mut().insert("authorization", key.parse().unwrap());
        request
    };
    send(&client, with_key("https://a/refused", "k1")).await.unwrap_err();
    let began = tokio::time::Instant::now();
    send(&client, with_key("https://b/x", "k1")).await.unwrap();
    send(&client, with_key("https://a/x", "k2")).await.unwrap();
    send(&client, with_key("https://a/search/x", "k1")).await.unwrap();
    assert_eq!(
        began.elapsed(),
        Duration::ZERO,
        "another host, another credential, a route of its own"
    );
    let error = send(&client, with_key("https://a/x", "k1")).await.unwrap_err();
    let OutboundError::WaitTooLong(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.retry_after, Some(60 * SEC));
}

#[tokio::test(start_paused = true)]
async fn the_program_can_say_what_the_server_counts_together() {
    let upstream =
        Upstream::sequence([response(429, &[("retry-after", "60")]), response(200, &[])]);
    let by_model = |request: &OutboundRequest<'_>| request.query.unwrap_or_default().to_string();
    let outbound = outbound(&[]).without_retries().quota_by(by_model).max_wait(Duration::ZERO);
    let client = upstream.behind(&outbound);
    send(&client, get("https://a/?model=x")).await.unwrap_err();
    send(&client, get("https://a/?model=y")).await.unwrap();
    send(&client, get("https://b/?model=x")).await.unwrap_err();
    assert_eq!(upstream.count(), 2);
}

/// A server with a window of 10 requests per minute that says what remains.
fn window_server(
    headers: impl Fn(u64, u64) -> Vec<(&'static str, String)> + Send + Sync + 'static,
) -> Upstream {
    let count = std::sync::Mutex::new((0, 0));
    Upstream::new(move |_, request| {
        let window = request.at.as_secs() / 60;
        let mut count = count.lock().unwrap();
        if count.0 != window {
            *count = (window, 0);
        }
        count.1 += 1;
        let left = 60 - request.at.as_secs() % 60;
        let remaining = 10u64.saturating_sub(count.1);
        let status = if count.1 > 10 { 429 } else { 200 };
        let mut response = response(status, &[]);
        for (name, value) in headers(remaining, left) {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    })
}

#[tokio::test(start_paused = true)]
async fn a_client_slows_down_before_the_first_refusal() {
    type Headers = fn(u64, u64) -> Vec<(&'static str, String)>;
    let forms: [(&str, Headers); 4] = [
        ("draft", |r, t| {
            vec![
                ("ratelimit", format!("\"m\";r={r};t={t}")),
                ("ratelimit-policy", "\"m\";q=10;w=60".into()),
            ]
        }),
        ("x-ratelimit", |r, t| {
            vec![("x-ratelimit-remaining", r.to_string()), ("x-ratelimit-reset", t.to_string())]
        }),
        ("openai", |r, t| {
            vec![
                ("x-ratelimit-remaining-requests", r.to_string()),
                ("x-ratelimit-reset-requests", format!("0m{t}s")),
            ]
        }),
        ("anthropic", |r, t| {
            // The virtual clock starts at 08:00:00.
            let reset = match t {
                60 => "2027-01-15T08:01:00Z".into(),
                t => format!("2027-01-15T08:00:{t:02}Z"),
            };
            vec![
                ("anthropic-ratelimit-requests-remaining", r.to_string()),
                ("anthropic-ratelimit-requests-reset", reset),
            ]
        }),
    ];
    for (name, headers) in forms {
        let upstream = window_server(headers);
        let outbound = outbound(&["1000/s per host"]).max_wait(90 * SEC).without_retries();
        let client = upstream.behind(&outbound);
        // One by one, so that each sees what the one before has left.
        for _ in 0..15 {
            send(&client, get(A)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let times = upstream.times();
        assert!(times[..10].iter().all(|at| *at < SEC), "{name}: {times:?}");
        assert!(times[10] >= 60 * SEC && times[14] < 62 * SEC, "{name}: {times:?}");
        assert_eq!(outbound.stats().refused, 0, "{name}");
        let waits = outbound.stats().waits;
        assert!(
            waits.iter().any(|(why, stats)| *why == WaitReason::ServerQuota && stats.count > 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_offers_never_raises_a_limit() {
    let upstream = Upstream::new(|_, _| {
        response(
            200,
            &[("ratelimit", "\"m\";r=100000;t=1"), ("ratelimit-policy", "\"m\";q=100000;w=1")],
        )
    });
    let client = upstream.behind(&outbound(&["10/s burst 1 per host"]));
    for _ in 0..5 {
        send(&client, get(A)).await.unwrap();
    }
    assert_eq!(upstream.times(), [0, 100, 200, 300, 400].map(Duration::from_millis));
}

#[tokio::test(start_paused = true)]
async fn lies_are_bounded() {
    for (name, value) in [
        ("retry-after", "99999999"),
        ("retry-after", "-5"),
        ("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("retry-after", "soon"),
        ("retry-after", "1e400"),
        ("retry-after-ms", "99999999999999999999999999"),
        ("x-ratelimit-reset", "99999999999999"),
        ("ratelimit", "\"m\";r=0;t=18446744073709551615"),
        ("ratelimit", "\u{fffd}=;;;\"\\"),
    ] {
        let lying = move || {
            let mut response: Response<Full<bytes::Bytes>> = response(429, &[]);
            response
                .headers_mut()
                .insert(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
            response
        };
        let upstream = Upstream::new(move |n, _| if n < 10 { lying() } else { response(200, &[]) });
        let outbound = outbound(&["100/s per host"]);
        let client = upstream.behind(&outbound);
        let began = tokio::time::Instant::now();
        // Until the server serves again, however often that takes.
        while send(&client, get(A)).await.is_err() {
            tokio::time::sleep(SEC).await;
        }
        assert!(began.elapsed() <= 10 * 3_610 * SEC, "{name}: {value}: {:?}", began.elapsed());
        assert!(upstream.count() <= 11, "{name}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_learning_a_refusal_pauses_nothing() {
    let upstream =
        Upstream::sequence([response(429, &[("retry-after", "60")]), response(200, &[])]);
    let outbound: Outbound = outbound(&[]).without_retries().without_learning();
    let client = upstream.behind(&outbound);
    send(&client, get(A)).await.unwrap_err();
    send(&client, get(A)).await.unwrap();
    assert_eq!(upstream.times(), [Duration::ZERO; 2]);
}
