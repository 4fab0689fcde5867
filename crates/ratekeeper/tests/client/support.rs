//! Clients in virtual time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use ratekeeper::client::{ClientExt, Outbound, OutboundError, OutboundService};
use ratekeeper::tower::ResponseBody;
use ratekeeper::{Clock, Micros, Policy, PolicyLimiter};
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};

pub(crate) type Body = Full<Bytes>;
pub(crate) type Error = OutboundError<Response<ResponseBody<Body>>>;

/// A clock that follows the paused clock of tokio.
pub(crate) struct VirtualClock(Instant);

impl VirtualClock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

pub(crate) const START_US: u64 = 1_800_000_000_000_000;

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        Micros::new(START_US + self.0.elapsed().as_micros() as u64)
    }
}

pub(crate) fn outbound(lines: &[&str]) -> Outbound {
    with_policy(Policy::lines(lines.iter().copied()).unwrap())
}

pub(crate) fn with_policy(policy: Policy) -> Outbound {
    let limiter = PolicyLimiter::with_clock(policy, VirtualClock::start()).unwrap();
    Outbound::with_limiter(limiter).unwrap()
}

pub(crate) fn policy(text: &str) -> Policy {
    Policy::parse("policy.yaml", text, &ratekeeper::policy::NoSources)
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A request as a server received it.
pub(crate) struct Received {
    pub(crate) at: Duration,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
}

type Respond = dyn Fn(usize, &Received) -> Response<Body> + Send + Sync;

/// A server that takes a while for every response.
#[derive(Clone)]
pub(crate) struct Upstream {
    began: Instant,
    takes: Duration,
    pub(crate) received: Arc<Mutex<Vec<Received>>>,
    respond: Arc<Respond>,
}

impl Upstream {
    pub(crate) fn new(
        respond: impl Fn(usize, &Received) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let (began, received) = (Instant::now(), Arc::default());
        Self { began, takes: Duration::ZERO, received, respond: Arc::new(respond) }
    }

    pub(crate) fn ok() -> Self {
        Self::new(|_, _| Response::new(Full::default()))
    }

    /// One response after the other, the last one for ever.
    pub(crate) fn sequence(responses: impl IntoIterator<Item = Response<Body>>) -> Self {
        let responses = Mutex::new(responses.into_iter().collect::<VecDeque<_>>());
        Self::new(move |_, _| {
            let mut responses = responses.lock().unwrap();
            match responses.len() {
                1 => responses[0].clone(),
                _ => responses.pop_front().unwrap(),
            }
        })
    }

    pub(crate) fn taking(self, takes: Duration) -> Self {
        Self { takes, ..self }
    }

    pub(crate) fn behind(&self, outbound: &Outbound) -> OutboundService<impl Client> {
        let upstream = self.clone();
        let client = service_fn(move |request: Request<Body>| {
            let upstream = upstream.clone();
            let response: Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>> =
                Box::pin(async move { Ok(upstream.serve(request).await) });
            response
        });
        client.layer(outbound.clone())
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (head, _) = request.into_parts();
        let path = head.uri.path().to_string();
        let received = Received { at: self.began.elapsed(), path, headers: head.headers };
        let response = {
            let mut all = self.received.lock().unwrap();
            let response = (self.respond)(all.len(), &received);
            all.push(received);
            response
        };
        tokio::time::sleep(self.takes).await;
        response
    }

    pub(crate) fn times(&self) -> Vec<Duration> {
        self.received.lock().unwrap().iter().map(|received| received.at).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }
}

/// A client of this file.
pub(crate) trait Client:
    tower::Service<
        Request<Body>,
        Response = Response<Body>,
        Error = Infallible,
        Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<C> Client for C where
    C: tower::Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

pub(crate) async fn send(
    client: &OutboundService<impl Client>,
    request: Request<Body>,
) -> Result<Response<ResponseBody<Body>>, Error> {
    client.clone().oneshot(request).await
}

pub(crate) fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}

pub(crate) fn post(uri: &str) -> Request<Body> {
    Request::post(uri).body(Body::from("{}")).unwrap()
}

pub(crate) fn response(status: u16, headers: &[(&str, &str)]) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Body::default()).unwrap()
}

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SEC: Duration = Duration::from_secs(1);
