//! The layers, alone and in a stack.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use ratekeeper::tower::{
    BulkheadLayer, HttpBulkheadLayer, HttpShedLayer, ProtectError, Rejection, ShedLayer,
};
use ratekeeper::{Bulkhead, BulkheadError, Class, Overload, Shedder, ShedderConfig};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::support::{MS, SEC, VirtualClock, settle};

type Body = Full<Bytes>;
type HttpFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A service that takes a while.
fn http_service(
    takes: Duration,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = HttpFuture>
+ Clone
+ Send
+ 'static {
    service_fn(move |_| -> HttpFuture {
        Box::pin(async move {
            tokio::time::sleep(takes).await;
            Ok(Response::new(Body::from("done")))
        })
    })
}

fn get(path: &str, user: u64) -> Request<Body> {
    Request::get(path).header("x-user", user.to_string()).body(Body::default()).unwrap()
}

fn shedder() -> Shedder<VirtualClock> {
    Shedder::with_clock(ShedderConfig::DEFAULT, VirtualClock::start()).unwrap()
}

async fn overload(shedder: &Shedder<VirtualClock>, level: f64) {
    while shedder.level() < level {
        shedder.observe(Overload::QueueTime(100 * MS));
        tokio::time::sleep(100 * MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_until_the_future_ends() {
    let bulkhead = Bulkhead::new(1).unwrap().with_queue(1, 15 * MS);
    let service = service_fn(|_: u32| async {
        tokio::time::sleep(10 * MS).await;
        Ok::<_, Infallible>(42)
    });
    let service = BulkheadLayer::new(bulkhead.clone()).layer(service);
    let call = || service.clone().oneshot(1);
    let (first, second, third) = tokio::join!(call(), call(), call());
    assert_eq!((first.unwrap(), second.unwrap()), (42, 42));
    let full = Rejection::Bulkhead(BulkheadError::Full { waiting: 1 });
    assert_eq!(third.unwrap_err(), ProtectError::Rejected(full));
    assert_eq!(bulkhead.in_flight(), 0);

    let dropped = tokio::time::timeout(5 * MS, call()).await;
    assert!(dropped.is_err());
    assert_eq!(bulkhead.in_flight(), 0, "a call that is dropped releases its permit");
}

#[tokio::test(start_paused = true)]
async fn a_bulkhead_is_ready_while_requests_wait() {
    let bulkhead = Bulkhead::new(1).unwrap().with_queue(10, SEC);
    let _held = bulkhead.try_acquire().unwrap();
    let mut service = HttpBulkheadLayer::new(bulkhead.clone()).layer(http_service(MS));
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let ready = service.ready();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(std::pin::pin!(ready).poll(&mut context).is_ready());
            tokio::spawn(service.call(get("/", 1)))
        })
        .collect();
    settle().await;
    assert_eq!(bulkhead.waiting(), 3);
    drop(calls);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_passes_and_releases_the_permit() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let failing = service_fn(|_: u32| async { Err::<(), _>(std::io::Error::other("broken")) });
    let service = BulkheadLayer::new(bulkhead.clone()).layer(failing);
    let error = service.oneshot(1).await.unwrap_err();
    assert_eq!(error.to_string(), "broken");
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(bulkhead.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_http_permit_is_held_until_the_body_ends() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let service = HttpBulkheadLayer::new(bulkhead.clone()).layer(http_service(MS));
    let call = || service.clone().oneshot(get("/", 1));

    let response = call().await.unwrap();
    assert_eq!(bulkhead.in_flight(), 1, "the body has not been read");
    let rejected = call().await.unwrap();
    assert_eq!(rejected.status(), 503);
    assert_eq!(rejected.headers()["retry-after"], "1");
    let rejection = *rejected.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection, Rejection::Bulkhead(BulkheadError::Full { waiting: 0 }));
    let body = rejected.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["code"], "BULKHEAD_FULL");
    assert_eq!(body["retry_after_ms"], 1_000);
    assert_eq!(body["message"], "Too many requests are in flight. Try again in 1 second.");

    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    assert_eq!(bulkhead.in_flight(), 0);
    drop(call().await.unwrap());
    assert_eq!(bulkhead.in_flight(), 0, "a body that is dropped releases the permit");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_has_a_code_of_its_own() {
    let bulkhead = Bulkhead::new(1).unwrap().with_queue(1, 50 * MS);
    let _held = bulkhead.try_acquire().unwrap();
    let service = HttpBulkheadLayer::new(bulkhead).layer(http_service(MS));
    let response = service.oneshot(get("/", 1)).await.unwrap();
    let rejection = response.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection.code(), "BULKHEAD_TIMEOUT");
    assert_eq!(*rejection, Rejection::Bulkhead(BulkheadError::TimedOut { waited: 50 * MS }));
}

#[tokio::test(start_paused = true)]
async fn a_shed_request_does_not_call_the_service() {
    let (shedder, calls) = (shedder(), Arc::new(AtomicUsize::new(0)));
    let layer = ShedLayer::new(shedder.clone())
        .class(|request: &(u8, u64)| Class::new(request.0))
        .user(|request| Some(request.1.to_le_bytes()));
    let counted = calls.clone();
    let service = layer.layer(service_fn(move |_: (u8, u64)| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(()) }
    }));
    overload(&shedder, 1.0).await;
    let error = service.clone().oneshot((3, 7)).await.unwrap_err();
    assert!(
        matches!(error, ProtectError::Rejected(Rejection::Shed(shed)) if shed.class == Class::SHEDDABLE)
    );
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    service.oneshot((0, 7)).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shed_http_request_gets_503_and_a_grpc_call_unavailable() {
    let shedder = shedder();
    let layer = HttpShedLayer::new(shedder.clone()).class(|_| Class::SHEDDABLE);
    let service = layer.layer(http_service(MS));
    overload(&shedder, 1.0).await;
    let response = service.clone().oneshot(get("/", 1)).await.unwrap();
    assert_eq!(response.status(), 503);
    let retry_after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let rejection = *response.extensions().get::<Rejection>().unwrap();
    assert_eq!(retry_after, rejection.retry_after().as_secs_f64().ceil() as u64);
    assert!(retry_after >= 1);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["code"], "OVERLOADED");

    let mut call = get("/", 1);
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let response = service.oneshot(call).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["grpc-status"], "14");
    assert!(response.headers().contains_key("retry-after"));
}

/// limit → shed → bulkhead → service: ten permits of 10 ms are 1000 requests per second; 400 per second are critical,
/// and 2600 others.
#[tokio::test(start_paused = true)]
async fn a_stack_sheds_by_class() {
    let shedder = shedder();
    let bulkhead = Bulkhead::new(10).unwrap().with_queue(200, 500 * MS).with_shedder(&shedder);
    let service = ServiceBuilder::new()
        .layer(ratekeeper::layer("1000000/s per header x-user").unwrap())
        .layer(
            HttpShedLayer::new(shedder.clone())
                .class(|request| match request.uri.path() {
                    "/checkout" => Class::CRITICAL,
                    _ => Class::SHEDDABLE,
                })
                .user(|request| Some(request.headers.get("x-user")?.as_bytes().to_vec())),
        )
        .layer(HttpBulkheadLayer::new(bulkhead.clone()))
        .service(http_service(10 * MS));
    let mut tasks = Vec::new();
    let mut user = 0;
    for tick in 0..10_000u64 {
        // Every tick is 1 ms.
        for request in 0..3 {
            let is_critical = request == 0 && tick % 5 < 2;
            let path = if is_critical { "/checkout" } else { "/prefetch" };
            user = (user + 7_919) % 5_000;
            let call = service.clone().oneshot(get(path, user));
            tasks.push((
                tick,
                is_critical,
                tokio::spawn(async move { call.await.unwrap().status() }),
            ));
        }
        tokio::time::sleep(MS).await;
    }
    let (mut critical, mut served, mut others) = (0u64, 0u64, 0u64);
    for (tick, is_critical, task) in tasks {
        let status = task.await.unwrap();
        assert!(status == 200 || status == 503);
        if tick < 2_000 {
            continue;
        }
        critical += u64::from(is_critical);
        match is_critical {
            true => served += u64::from(status == 200),
            false => others += u64::from(status == 200),
        }
    }
    assert!(served * 100 > critical * 98, "{served} of {critical} critical requests are served");
    // Timers are rounded up to the next millisecond, so that the capacity is 7300 to 8000.
    assert!(served + others > 6_600, "{served} and {others} are served");
    let stats = shedder.stats();
    assert_eq!(stats[1].shed, 0, "{stats:?}");
    assert!(stats[3].shed > 10_000, "{stats:?}");
}
