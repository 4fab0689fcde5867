//! What a policy costs: a request resolved against many limits, and the layer in an axum app.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use ratekeeper::policy::{NoSources, Resolution};
use ratekeeper::tower::PeerAddr;
use ratekeeper::{Policy, PolicyLimiter, RatekeeperLayer};
use tower::{Service, ServiceExt};

const ROUNDS: usize = 9;
const REQUESTS: usize = 200_000;

pub fn report() {
    resolve();
    layer();
}

/// Only the layer, for a profiler.
pub fn profile() {
    layer();
}

fn policy(text: &str) -> Policy {
    Policy::parse("bench", text, &NoSources).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A policy of limits that differ in path, host or header, and three that always apply.
fn many(limits: usize) -> Policy {
    let each = (0..limits).map(|i| {
        let on = match i % 3 {
            0 => format!("path: /service-{i}/items/*"),
            1 => format!("host: host-{i}.example.com"),
            _ => format!("header: {{ x-app: app-{i} }}"),
        };
        format!("  - {{ name: l{i}, match: {{ {on} }}, per: ip, rate: 1000000/s }}\n")
    });
    let each: String = each.collect();
    policy(&format!(
        "version: 1
identify: {{ user: {{ header: x-user }} }}
exempt: [ {{ path: /healthz }} ]
limits:
  - {{ name: user, per: user, rate: 1000000/s }}
  - {{ name: all, rate: 1000000/s }}
  - {{ name: posts, match: {{ method: POST }}, per: user, rate: 1000000/s }}
{each}"
    ))
}

fn resolve() {
    println!("\n## A request resolved against many limits, of which four apply\n");
    println!("| limits | ns a request |\n|---|---|");
    let sizes = [1, 10, 100, 1_000, 9_000];
    let policies: Vec<_> = sizes.iter().map(|n| many(*n)).collect();
    let headers =
        vec![("x-user".to_string(), "ann".to_string()), ("accept".to_string(), "*/*".to_string())];
    let request = ratekeeper::policy::RequestAttributes {
        headers: &headers,
        host: Some("shop.example.com"),
        peer: Some([192, 0, 2, 1].into()),
        ..ratekeeper::policy::RequestAttributes::new("POST", "/service-0/items/17")
    };
    let mut times = vec![Vec::new(); sizes.len()];
    for _ in 0..ROUNDS {
        for (policy, times) in policies.iter().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..REQUESTS {
                let Resolution::Charged(limits) = policy.resolve(black_box(&request)) else {
                    panic!("charged")
                };
                assert_eq!(limits.len(), 4);
                black_box(limits);
            }
            times.push(start.elapsed().as_nanos() as f64 / REQUESTS as f64);
        }
    }
    for (limits, times) in sizes.iter().zip(times) {
        println!("| {} | {:.0} |", limits + 3, crate::median(&times));
    }
}

const SHOP: &str = "
version: 1
identify: { user: { header: x-user } }
limits:
  - { name: user, per: user, rate: 1000000/s }
  - { name: checkout, match: { method: POST, path: /checkout }, per: user, rate: 5/s burst 10 }
  - { name: all, rate: 1000000/s }
";

fn app() -> Router {
    Router::new().route("/", get(|| async { "ok" }))
}

fn layer() {
    println!("\n## The layer in an axum app, in memory\n");
    println!("| | ns a request | more than bare |\n|---|---|---|");
    let limited = |limiter: PolicyLimiter| app().layer(RatekeeperLayer::new(limiter));
    let quiet = format!("{SHOP}responses: {{ headers: none }}\n");
    let apps = [
        ("bare", app()),
        ("a layer that does nothing", app().layer(tower::layer::layer_fn(|service| service))),
        ("one line: 1000000/s per ip", app().layer(ratekeeper::layer("1000000/s per ip").unwrap())),
        ("a policy, two of three limits apply", limited(PolicyLimiter::new(policy(SHOP)).unwrap())),
        (
            "the same without RateLimit headers",
            limited(PolicyLimiter::new(policy(&quiet)).unwrap()),
        ),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut times = vec![Vec::new(); apps.len()];
    for _ in 0..ROUNDS {
        for ((_, app), times) in apps.iter().zip(&mut times) {
            times.push(runtime.block_on(run(app.clone())));
        }
    }
    let medians: Vec<f64> = times.iter().map(|times| crate::median(times)).collect();
    for ((name, _), ns) in apps.iter().zip(&medians) {
        println!("| {name} | {ns:.0} | {:.0} |", ns - medians[0]);
    }
}

async fn run(app: Router) -> f64 {
    let mut app: axum::routing::RouterIntoService<Body, ()> = app.into_service();
    let start = Instant::now();
    for _ in 0..REQUESTS {
        let mut request = Request::get("/").header("x-user", "ann").body(Body::empty()).unwrap();
        request.extensions_mut().insert(PeerAddr(([192, 0, 2, 1], 4000).into()));
        let ready = ServiceExt::<Request<Body>>::ready(&mut app).await;
        let response: Result<_, Infallible> = ready.unwrap().call(request).await;
        assert_eq!(black_box(response.unwrap()).status(), 200);
    }
    start.elapsed().as_nanos() as f64 / REQUESTS as f64
}
