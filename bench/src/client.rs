//! What the client layer costs a request that needs no waiting, beside tower's own layers and reqwest-retry.
//!
//! The client beneath has its response at hand, so that nothing but the layers is measured.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body_util::Full;
use ratekeeper::client::Outbound;
use reqwest_middleware::{ClientBuilder, Middleware, Next};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use tokio::runtime::Runtime;
use tower::layer::layer_fn;
use tower::retry::Policy;
use tower::retry::budget::{Budget, TpsBudget};
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::allocations::allocations_of;

const ROUNDS: usize = 15;
const REQUESTS: u32 = 50_000;

/// More than a round sends, so that no request waits.
const LINE: &str = "1000000/s burst 1000000 per host";

const URI: &str = "https://api.example.com/v1/items/17";

const REQUEST_HEADERS: [(&str, &str); 5] = [
    ("accept", "application/json"),
    ("accept-encoding", "gzip, br"),
    ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
    ("user-agent", "ratekeeper-bench"),
    ("x-request-id", "6f1c9b1e-3a52-4a0c-9f7e-2f1f7a3f5d10"),
];

const RESPONSE_HEADERS: [(&str, &str); 4] = [
    ("content-type", "application/json"),
    ("content-length", "2"),
    ("date", "Thu, 01 Oct 2026 12:00:00 GMT"),
    ("server", "bench"),
];

type Body = Full<Bytes>;

pub fn report() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (title, headers) in [("without headers", &[][..]), ("with five headers", &REQUEST_HEADERS)]
    {
        println!("\n## The client layer: a GET {title}\n");
        table(&tower_clients(&runtime, headers));
        println!();
        table(&reqwest_clients(&runtime, headers));
    }
}

/// A client that can be measured: sends this many requests one after the other.
struct Contender<'a> {
    name: &'static str,
    send: Box<dyn Fn(u32) + 'a>,
}

/// Measures all contenders, interleaved by round. The others are compared with the one that does nothing.
fn table(contenders: &[Contender<'_>]) {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..=ROUNDS {
        for (Contender { send, .. }, times) in contenders.iter().zip(&mut times) {
            let start = Instant::now();
            send(REQUESTS);
            if round > 0 {
                times.push(start.elapsed().as_nanos() as f64 / f64::from(REQUESTS));
            }
        }
    }
    let nothing = contenders.iter().position(|contender| contender.name.starts_with(NOTHING));
    let nothing = &times[nothing.expect("it is a contender")];
    println!("| | ns a request | more than a layer that does nothing | allocations |");
    println!("|---|---|---|---|");
    for (Contender { name, send }, times) in contenders.iter().zip(&times) {
        let more: Vec<f64> = times.iter().zip(nothing).map(|(this, that)| this - that).collect();
        let [ns, more] = [times, &more].map(|times| crate::median(times));
        let allocations = f64::from(allocations_of(|| send(1_000)) as u32) / 1_000.0;
        println!("| {name} | {ns:.0} | {more:.0} | {allocations:.0} |");
    }
}

const NOTHING: &str = "a layer that does nothing";

fn layers() -> Vec<(&'static str, Outbound)> {
    let outbound = || Outbound::new(LINE).unwrap();
    vec![
        ("**ratekeeper**", outbound()),
        ("**ratekeeper**, no retries", outbound().without_retries()),
        ("**ratekeeper**, no learning", outbound().without_learning()),
        ("**ratekeeper**, only the limit", outbound().without_learning().without_retries()),
        ("**ratekeeper**, no limit", Outbound::unlimited()),
        ("**ratekeeper**, only retries", Outbound::unlimited().without_learning()),
    ]
}

fn tower_clients<'a>(runtime: &'a Runtime, headers: &[(&str, &str)]) -> Vec<Contender<'a>> {
    let _runtime = runtime.enter();
    let mut request = Request::get(URI).body(Body::default()).unwrap();
    request.headers_mut().extend(headers_of(headers));
    let requests = Requests { runtime, request };
    let retry = RetryPolicy { budget: Arc::new(TpsBudget::default()) };
    let many = 1_000_000_000;
    let second = Duration::from_secs(1);

    let mut contenders = vec![
        requests.contender("bare", InMemory::new()),
        requests.contender(
            NOTHING,
            ServiceBuilder::new().layer(layer_fn(Boxed)).service(InMemory::new()),
        ),
    ];
    for (name, outbound) in layers() {
        let client = ServiceBuilder::new().layer(outbound).service(InMemory::new());
        contenders.push(requests.contender(name, client));
    }
    let with_retry = ServiceBuilder::new().retry(retry.clone());
    contenders.extend([
        requests.contender("tower `Retry` with `TpsBudget`", with_retry.service(InMemory::new())),
        requests.contender(
            "tower `RateLimit`",
            ServiceBuilder::new().rate_limit(many, second).service(InMemory::new()),
        ),
        requests.contender(
            "tower `Retry`, `Buffer` and `RateLimit`",
            ServiceBuilder::new()
                .retry(retry)
                .buffer(1_024)
                .rate_limit(many, second)
                .service(InMemory::new()),
        ),
    ]);
    contenders
}

/// The request that is sent again and again, and where.
struct Requests<'a> {
    runtime: &'a Runtime,
    request: Request<Body>,
}

impl<'a> Requests<'a> {
    fn contender<S, B>(&self, name: &'static str, client: S) -> Contender<'a>
    where
        S: Service<Request<Body>, Response = Response<B>> + 'a,
        S::Error: std::fmt::Debug,
    {
        let (runtime, request) = (self.runtime, self.request.clone());
        let client = std::cell::RefCell::new(client);
        let send = move |times| {
            let mut client = client.borrow_mut();
            runtime.block_on(async {
                for _ in 0..times {
                    let request = black_box(&request).clone();
                    let response = client.ready().await.unwrap().call(request).await.unwrap();
                    assert_eq!(black_box(response).status(), 200);
                }
            });
        };
        Contender { name, send: Box::new(send) }
    }
}

/// A client that has its response at hand.
#[derive(Clone)]
struct InMemory {
    response: Arc<Response<Body>>,
}

impl InMemory {
    fn new() -> Self {
        Self { response: Arc::new(response()) }
    }
}

fn response() -> Response<Body> {
    let mut response = Response::new(Body::from("{}"));
    response.headers_mut().extend(headers_of(&RESPONSE_HEADERS));
    response
}

fn headers_of(headers: &[(&str, &str)]) -> http::HeaderMap {
    headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

impl Service<Request<Body>> for InMemory {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        black_box(request);
        ready(Ok((*self.response).clone()))
    }
}

/// A layer that does nothing but what every layer has to that waits before it sends a request: it boxes a future.
struct Boxed<S>(S);

impl<S> Service<Request<Body>> for Boxed<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.call(request))
    }
}

/// Retries server errors within a budget.
#[derive(Clone)]
struct RetryPolicy {
    budget: Arc<TpsBudget>,
}

impl<E> Policy<Request<Body>, Response<Body>, E> for RetryPolicy {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<Response<Body>, E>,
    ) -> Option<Ready<()>> {
        match result {
            Ok(response) if !response.status().is_server_error() => {
                self.budget.deposit();
                None
            }
            _ => self.budget.withdraw().then(|| ready(())),
        }
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Some(request.clone())
    }
}

fn reqwest_clients<'a>(runtime: &'a Runtime, headers: &[(&str, &str)]) -> Vec<Contender<'a>> {
    let mut request = reqwest::Request::new(http::Method::GET, URI.parse().unwrap());
    request.headers_mut().extend(headers_of(headers));
    let contender = |name, middleware: Option<Arc<dyn Middleware>>| {
        let client = ClientBuilder::new(reqwest::Client::new());
        let client = match middleware {
            Some(middleware) => client.with_arc(middleware),
            None => client,
        };
        let client = client.with(InMemory::new()).build();
        let request = request.try_clone().unwrap();
        let send = move |times| {
            runtime.block_on(async {
                for _ in 0..times {
                    let request = black_box(&request).try_clone().unwrap();
                    let response = client.execute(request).await.unwrap();
                    assert_eq!(black_box(response).status(), 200);
                }
            });
        };
        Contender { name, send: Box::new(send) }
    };
    let backoff = ExponentialBackoff::builder().build_with_max_retries(3);
    let mut contenders = vec![
        contender("bare reqwest-middleware", None),
        contender("a layer that does nothing, in reqwest-middleware", Some(Arc::new(DoNothing))),
        contender(
            "reqwest-retry",
            Some(Arc::new(RetryTransientMiddleware::new_with_policy(backoff))),
        ),
    ];
    contenders.extend(
        layers().into_iter().map(|(name, outbound)| contender(name, Some(Arc::new(outbound)))),
    );
    contenders
}

/// The end of the chain.
#[async_trait]
impl Middleware for InMemory {
    async fn handle(
        &self,
        request: reqwest::Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        black_box(request);
        let response = (*self.response).clone();
        Ok(response.map(reqwest::Body::wrap).into())
    }
}

struct DoNothing;

#[async_trait]
impl Middleware for DoNothing {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        next.run(request, extensions).await
    }
}
