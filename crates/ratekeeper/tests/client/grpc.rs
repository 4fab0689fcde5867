//! What clients of tonic get to see.

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use ratekeeper::client::{Outbound, OutboundError, Repeatable};
use ratekeeper::tower::ResponseBody;
use tonic::Code;
use tonic::body::Body;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{outbound, policy, with_policy};

const CHECK: HealthCheckRequest = HealthCheckRequest { service: String::new() };

#[tokio::test(start_paused = true)]
async fn a_refusal_here_is_resource_exhausted_and_says_when() {
    let (_, service) = tonic_health::server::health_reporter();
    let outbound = outbound(&["1/minute per host"]).max_wait(Duration::ZERO);
    let mut client = HealthClient::new(outbound.layer(service));
    client.check(CHECK).await.unwrap();
    tokio::time::advance(Duration::from_millis(500)).await;
    let status = client.check(CHECK).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "not sent: the limit \"default\" is used up; retry in 59.5s");
    assert_eq!(status.metadata().get("retry-after").unwrap(), "60");
    let error =
        status.source().unwrap().downcast_ref::<OutboundError<Response<ResponseBody<Body>>>>();
    assert_eq!(error.unwrap().retry_after(), Some(Duration::from_millis(59_500)));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_required_identity_is_unauthenticated() {
    let (_, service) = tonic_health::server::health_reporter();
    let outbound = with_policy(policy(
        "
version: 1
identify: { tenant: { header: x-tenant, missing: deny } }
limits: [{ name: tenants, per: tenant, rate: 1/minute }]
",
    ));
    let mut client = HealthClient::new(outbound.layer(service));
    let status = client.check(CHECK).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let mut request = tonic::Request::new(CHECK);
    request.metadata_mut().insert("x-tenant", "a".parse().unwrap());
    client.check(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_response_of_a_proxy_has_the_code_that_it_has_without_the_layer() {
    for status in [429, 502, 503] {
        let proxy = service_fn(move |_: Request<Body>| async move {
            let response = Response::builder().status(status).header("content-type", "text/html");
            Ok::<_, Infallible>(response.body(Body::default()).unwrap())
        });
        let code = HealthClient::new(proxy).check(CHECK).await.unwrap_err().code();
        for outbound in [Outbound::unlimited(), Outbound::unlimited().without_retries()] {
            let error = HealthClient::new(outbound.layer(proxy)).check(CHECK).await.unwrap_err();
            assert_eq!((error.code(), code), (Code::Unavailable, Code::Unavailable), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_repeated_although_the_server_did_not_read_it() {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("orders", ServingStatus::Serving).await;
    let received = Arc::new(AtomicUsize::new(0));
    let server = {
        let received = Arc::clone(&received);
        service_fn(move |request: Request<Body>| {
            let (service, number) = (service.clone(), received.fetch_add(1, Ordering::Relaxed));
            async move {
                match number {
                    0 => Ok(tonic::Status::unavailable("restarting").into_http()),
                    _ => service.oneshot(request).await,
                }
            }
        })
    };
    let outbound = outbound(&["10/s per host"]);
    let mut client = HealthClient::new(outbound.layer(server));
    let mut request = tonic::Request::new(HealthCheckRequest { service: "orders".into() });
    request.extensions_mut().insert(Repeatable);
    let response = client.check(request).await.unwrap();
    assert_eq!(response.into_inner().status, ServingStatus::Serving as i32);
    assert_eq!(received.load(Ordering::Relaxed), 2);
}
