//! What is safe to repeat is retried, within a budget.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use ratekeeper::client::{
    Attempt, ClientExt, Deadline, OnceBody, Outbound, OutboundError, Repeatable, RetryBudgetConfig,
    RetryRules, StopReason, Throttle,
};
use tower::{ServiceExt, service_fn};

use crate::support::*;

const A: &str = "https://a.example.com/x";

fn unlimited() -> Outbound {
    outbound(&[])
}

#[tokio::test(start_paused = true)]
async fn temporary_failures_are_retried() {
    for status in [429, 502, 503, 504] {
        let upstream = Upstream::sequence([response(status, &[]), response(200, &[])]);
        let outbound = unlimited();
        let served = send(&upstream.behind(&outbound), get(A)).await.unwrap();
        assert_eq!((served.status().as_u16(), upstream.count()), (200, 2));
        assert_eq!(outbound.stats().retries, 1);
        assert_eq!(served.extensions().get::<Attempt>(), Some(&Attempt(2)));
        let received = upstream.received.lock().unwrap();
        assert!(!received[0].headers.contains_key("x-retry-count"));
        assert_eq!(received[1].headers["x-retry-count"], "1");
    }
    for status in [200, 301, 400, 401, 404, 500, 501] {
        let upstream = Upstream::sequence([response(status, &[])]);
        let served = send(&upstream.behind(&unlimited()), get(A)).await.unwrap();
        assert_eq!((served.status().as_u16(), upstream.count()), (status, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_never_comes_before_retry_after() {
    let date = "Fri, 15 Jan 2027 08:00:07 GMT"; // 7 s after the start of the virtual clock
    for (header, value, wait) in [
        ("retry-after", "7", 7),
        ("retry-after-ms", "7000", 7),
        ("retry-after", date, 7),
        ("retry-after", "0", 0),
    ] {
        let upstream = Upstream::sequence([response(429, &[(header, value)]), response(200, &[])]);
        send(&upstream.behind(&unlimited()), get(A)).await.unwrap();
        let retried = upstream.times()[1];
        assert!(
            retried >= wait * SEC && retried < (wait + 2) * SEC,
            "{header}: {value}: {retried:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_is_safe_is_repeated() {
    let keyed = || Request::post(A).header("idempotency-key", "k").body(Body::default()).unwrap();
    let repeatable = || {
        let mut request = post(A);
        request.extensions_mut().insert(Repeatable);
        request
    };
    let put = || Request::put(A).body(Body::default()).unwrap();
    let patch = || Request::patch(A).body(Body::default()).unwrap();
    for (request, attempts) in
        [(keyed(), 2), (repeatable(), 2), (put(), 2), (post(A), 1), (patch(), 1)]
    {
        let upstream = Upstream::sequence([response(503, &[]), response(200, &[])]);
        let _ = send(&upstream.behind(&unlimited()), request).await;
        assert_eq!(upstream.count(), attempts);
    }
    let upstream = Upstream::sequence([response(503, &[]), response(200, &[])]);
    let all = unlimited().repeat_all_methods();
    assert_eq!(send(&upstream.behind(&all), post(A)).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_never_sent_is_repeated_whatever_its_method() {
    let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    for (error, attempts) in [(refused(), 3), (reset(), 1)] {
        let (kind, calls) =
            (error.kind(), std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0)));
        let counted = calls.clone();
        let client = service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { Err::<Response<Body>, _>(std::io::Error::from(kind)) }
        });
        let error = client.layer(unlimited()).oneshot(post(A)).await.unwrap_err();
        assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), attempts, "{error}");
        let OutboundError::Failed { attempts: made, stop, source } = error else {
            panic!("{error}")
        };
        assert_eq!(
            (made, source.downcast_ref::<std::io::Error>().unwrap().kind()),
            (attempts, kind)
        );
        let stop = stop.unwrap();
        match attempts {
            1 => assert!(matches!(stop, StopReason::NotSafe), "{stop}"),
            _ => assert!(matches!(stop, StopReason::Attempts), "{stop}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_by_is_not_repeated_and_the_error_says_so() {
    let client = service_fn(|_: Request<OnceBody<Full<Bytes>>>| async {
        Ok::<_, std::convert::Infallible>(response(429, &[("retry-after", "1")]))
    });
    let request = Request::put(A).body(OnceBody(Full::from("a, b"))).unwrap();
    let error = client.layer(unlimited()).oneshot(request).await.unwrap_err();
    let OutboundError::UpstreamRefused(refusal) = error else { panic!("{error}") };
    assert!(matches!(refusal.stop, Some(StopReason::NotReplayable)));
    assert_eq!((refusal.attempts, refusal.retry_after), (1, Some(SEC)));
    let text = OutboundError::UpstreamRefused(refusal).to_string();
    assert!(text.contains("429") && text.contains("cannot be sent again"), "{text}");
}

/// A body that is not at hand when it is first read.
struct Late {
    is_late: bool,
    data: Option<Bytes>,
}

impl http_body::Body for Late {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if std::mem::take(&mut self.is_late) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.data.take().map(|data| Ok(http_body::Frame::data(data))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_boxed_body_is_repeated_if_it_was_at_hand_or_read_and_is_not_too_long() {
    for (len, is_late, is_read, attempts) in [
        (100, false, true, 2),
        (100, false, false, 2),
        (100, true, true, 2),
        (100, true, false, 1),
        (100_000, false, true, 1),
        (100_000, true, true, 1),
    ] {
        let bodies = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = bodies.clone();
        let client =
            service_fn(move |request: Request<BoxBody<Bytes, std::convert::Infallible>>| {
                let seen = seen.clone();
                async move {
                    let body = match is_read {
                        true => {
                            http_body_util::BodyExt::collect(request.into_body()).await?.to_bytes()
                        }
                        false => Bytes::new(),
                    };
                    let mut seen = seen.lock().unwrap();
                    seen.push(body);
                    Ok::<_, std::convert::Infallible>(response(
                        if seen.len() == 1 { 503 } else { 200 },
                        &[],
                    ))
                }
            });
        let body = Bytes::from(vec![b'x'; len]);
        let late = Late { is_late, data: Some(body.clone()) };
        let request = Request::put(A).body(BoxBody::new(late)).unwrap();
        let served = client.layer(unlimited()).oneshot(request).await.unwrap();
        let seen = bodies.lock().unwrap();
        assert_eq!(seen.len(), attempts, "{len} {is_late} {is_read}");
        assert_eq!(served.status().as_u16(), if attempts == 2 { 200 } else { 503 });
        assert!(!is_read || seen.iter().all(|seen| *seen == body));
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_time_and_deadlines_are_bounded() {
    let always = || Upstream::sequence([response(503, &[])]);
    let upstream = always();
    let served = send(&upstream.behind(&unlimited()), get(A)).await.unwrap();
    assert_eq!((served.status().as_u16(), upstream.count()), (503, 3));

    let rules = RetryRules::default().with_attempts_max(1_000).with_total_max(10 * SEC);
    let upstream = always();
    let began = tokio::time::Instant::now();
    let _ = send(&upstream.behind(&unlimited().retry(rules)), get(A)).await;
    assert!(began.elapsed() <= 10 * SEC, "{:?}", began.elapsed());

    let mut request = get(A);
    request.extensions_mut().insert(Deadline::after(SEC));
    let upstream = Upstream::sequence([response(429, &[("retry-after", "5")])]);
    let began = tokio::time::Instant::now();
    let error = send(&upstream.behind(&unlimited()), request).await.unwrap_err();
    let OutboundError::UpstreamRefused(refusal) = error else { panic!("{error}") };
    assert!(matches!(refusal.stop, Some(StopReason::Deadline)));
    assert_eq!((upstream.count(), began.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn retries_stay_within_the_budget() {
    let budget = RetryBudgetConfig::default().with_percent(10).with_floor_per_sec(0);
    let outbound = unlimited().retry_budget(budget).unwrap();
    let upstream = Upstream::sequence([response(503, &[])]);
    let client = upstream.behind(&outbound);
    let mut spent = 0;
    for _ in 0..1_000 {
        match send(&client, get(A)).await {
            Err(OutboundError::BudgetSpent(_)) => spent += 1,
            Err(error) => panic!("{error}"),
            Ok(served) => assert_eq!(served.status(), 503),
        }
    }
    assert!(spent > 800, "{spent}");
    assert!(upstream.count() <= 1_100, "{}", upstream.count());
    assert_eq!(outbound.stats().budget_spent, spent);
}

#[tokio::test(start_paused = true)]
async fn a_server_can_say_whether_to_retry() {
    let upstream = Upstream::sequence([response(429, &[("x-should-retry", "false")])]);
    let error = send(&upstream.behind(&unlimited()), get(A)).await.unwrap_err();
    let OutboundError::UpstreamRefused(refusal) = error else { panic!("{error}") };
    assert!(matches!(refusal.stop, Some(StopReason::ServerSaysNo)));
    let upstream =
        Upstream::sequence([response(409, &[("x-should-retry", "true")]), response(200, &[])]);
    assert_eq!(send(&upstream.behind(&unlimited()), get(A)).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn grpc_statuses_and_pushback_are_obeyed() {
    let rpc = || {
        let request = Request::post(A).header("content-type", "application/grpc");
        let mut request = request.body(Body::default()).unwrap();
        request.extensions_mut().insert(Repeatable);
        request
    };
    let failed = |headers: &[(&str, &str)]| {
        let mut response = response(200, headers);
        response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        response
    };
    let ok = || failed(&[]);
    let upstream = Upstream::sequence([
        failed(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "1500")]),
        ok(),
    ]);
    send(&upstream.behind(&unlimited()), rpc()).await.unwrap();
    assert!(upstream.times()[1] >= 1_500 * MS);
    assert_eq!(upstream.received.lock().unwrap()[1].headers["grpc-previous-rpc-attempts"], "1");

    for (headers, attempts) in [
        (&[("grpc-status", "14")][..], 2),
        (&[("grpc-status", "8")], 2),
        (&[("grpc-status", "3")], 1),
        (&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "-1")], 1),
    ] {
        let upstream = Upstream::sequence([failed(headers), ok()]);
        // The status of an RPC is returned as it is: a gRPC client reads it.
        send(&upstream.behind(&unlimited()), rpc()).await.unwrap();
        assert_eq!(upstream.count(), attempts, "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_with_its_response_or_a_response() {
    let refusal = || Upstream::sequence([response(429, &[("retry-after", "3600"), ("x-id", "7")])]);
    let error = send(&refusal().behind(&unlimited()), get(A)).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(3_600 * SEC));
    assert_eq!(error.into_response().unwrap().headers()["x-id"], "7");

    let passing = unlimited().pass_refusals();
    let response = send(&refusal().behind(&passing), get(A)).await.unwrap();
    assert_eq!(response.status(), 429);
}

#[tokio::test(start_paused = true)]
async fn without_retries_every_request_is_sent_once() {
    let upstream = Upstream::sequence([response(503, &[]), response(200, &[])]);
    let served = send(&upstream.behind(&unlimited().without_retries()), get(A)).await.unwrap();
    assert_eq!((served.status().as_u16(), upstream.count()), (503, 1));
}

#[tokio::test(start_paused = true)]
async fn a_throttled_client_sends_little_to_a_server_that_refuses_all() {
    let outbound = unlimited().without_retries().without_learning().throttle(Throttle::default());
    let upstream = Upstream::sequence([response(429, &[])]);
    let client = upstream.behind(&outbound);
    for _ in 0..1_000 {
        let _ = send(&client, get(A)).await.unwrap_err();
        tokio::time::sleep(10 * MS).await;
    }
    assert!(upstream.count() < 50, "{}", upstream.count());
    assert_eq!(outbound.stats().throttled as usize, 1_000 - upstream.count());
}
