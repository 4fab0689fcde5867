//! Clients over real sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ratekeeper::client::{ClientExt, Outbound, OutboundError, OutboundService};
use ratekeeper::tower::ResponseBody;
use tokio::task::JoinSet;
use tower::ServiceExt;

pub(crate) type Body = Full<Bytes>;
pub(crate) type HttpClient = Client<HttpConnector, Body>;
pub(crate) type Error = OutboundError<Response<ResponseBody<Incoming>>>;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SEC: Duration = Duration::from_secs(1);

pub(crate) fn http_client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

pub(crate) fn client(outbound: &Outbound) -> OutboundService<HttpClient> {
    http_client().layer(outbound.clone())
}

pub(crate) fn get(url: &str) -> Request<Body> {
    Request::get(url).body(Body::default()).unwrap()
}

/// The status and the whole body of a response.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Sends a request, and reads the whole response.
pub(crate) async fn send(
    client: &OutboundService<HttpClient>,
    request: Request<Body>,
) -> Result<Received, Error> {
    let response = client.clone().oneshot(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await.expect("the whole body").to_bytes();
    Ok(Received { status, body })
}

/// Sends requests by a number of workers, each of which sends its next request when it has the response. Returns the
/// results in the order of the requests.
pub(crate) async fn send_all(
    client: &OutboundService<HttpClient>,
    workers: usize,
    requests: usize,
    request: impl Fn(usize) -> Request<Body> + Send + Sync + 'static,
) -> Vec<Result<Received, Error>> {
    let (request, mut tasks) = (Arc::new(request), JoinSet::new());
    for worker in 0..workers {
        let (client, request) = (client.clone(), Arc::clone(&request));
        tasks.spawn(async move {
            let mut results = Vec::new();
            for n in (worker..requests).step_by(workers) {
                results.push((n, send(&client, request(n)).await));
            }
            results
        });
    }
    let mut results: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().unzip::<_, _, Vec<_>, _>().1
}

/// How many requests had a response with status 200.
pub(crate) fn served(results: &[Result<Received, Error>]) -> usize {
    let is_served = |result: &&Result<Received, Error>| {
        result.as_ref().is_ok_and(|received| received.status == StatusCode::OK)
    };
    results.iter().filter(is_served).count()
}

/// How many retries the default budget admits for so many requests in a run of this length: 20% of them, and three per
/// second over a window of ten.
pub(crate) fn retries_max(requests: usize, elapsed: Duration) -> u64 {
    requests as u64 / 5 + 30 + 3 * elapsed.as_secs()
}

/// Asserts that requests arrived no faster than a bucket allows that was full at `began`. It holds on a host of any
/// speed, because a request only arrives later than it was admitted.
pub(crate) fn assert_no_faster(
    arrivals: impl IntoIterator<Item = Instant>,
    began: Instant,
    per_sec: f64,
    burst: f64,
) {
    for (n, at) in arrivals.into_iter().enumerate() {
        // One more, because the wall clock of limits and the monotonic one of the server may differ a little.
        let allowed = burst + per_sec * (at - began).as_secs_f64() + 1.0;
        assert!((n + 1) as f64 <= allowed, "{} requests by {:?}", n + 1, at - began);
    }
}
