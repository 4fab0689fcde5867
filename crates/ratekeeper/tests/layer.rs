//! The tower layer, in virtual time, over a service that echoes.
#![cfg(feature = "tower")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use ratekeeper::policy::NoSources;
use ratekeeper::tower::{ActualCost, IdentifyError, PeerAddr};
use ratekeeper::{ManualClock, Policy, PolicyLimiter, PolicyLoadError, RatekeeperLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

type Body = Full<Bytes>;

fn limiter(policy: &str) -> (PolicyLimiter, ManualClock) {
    let clock = ManualClock::new();
    let text = format!("version: 1\n{policy}");
    let policy = Policy::parse("policy.yaml", &text, &NoSources).unwrap_or_else(|e| panic!("{e}"));
    (PolicyLimiter::with_clock(policy, clock.clone()).unwrap(), clock)
}

/// Responds with the status and headers that the request names in its `want-*` headers.
async fn echo(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let wanted = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
    let mut response = Response::new(Full::from("served"));
    if let Some(status) = wanted("want-status") {
        *response.status_mut() = status.parse().unwrap();
    }
    if let Some(cost) = wanted("want-cost") {
        response.headers_mut().insert("x-cost", cost.parse().unwrap());
    }
    if let Some(cost) = wanted("want-actual") {
        response.extensions_mut().insert(ActualCost(cost.parse().unwrap()));
    }
    Ok(response)
}

fn request(line: &str) -> Request<Body> {
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut request = Request::builder().method(method).uri(path);
    for word in words {
        let (name, value) = word.split_once('=').unwrap();
        request = request.header(name, value);
    }
    let mut request = request.body(Full::default()).unwrap();
    request.extensions_mut().insert(PeerAddr(([192, 0, 2, 1], 4000).into()));
    request
}

struct Reply {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn send(limiter: &PolicyLimiter, line: &str) -> Reply {
    let service = RatekeeperLayer::new(limiter.clone()).layer(service_fn(echo));
    let response = service.oneshot(request(line)).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Reply { status: parts.status, headers: parts.headers, body }
}

async fn statuses(limiter: &PolicyLimiter, line: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(send(limiter, line).await.status.as_u16());
    }
    statuses
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn a_calendar_window_is_as_long_as_it_is() {
    // 2026-03-29 at noon in Berlin, where the day has 23 hours.
    let clock = ManualClock::at(ratekeeper::Micros::new(1_774_778_400_000_000));
    let policy = Policy::one_line("2/calendar day in Europe/Berlin per ip").unwrap();
    let limiter = PolicyLimiter::with_clock(policy, clock.clone()).unwrap();
    let first = send(&limiter, "GET /").await;
    assert_eq!(first.header("ratelimit-policy"), "\"default\";q=2;w=82800");
    assert_eq!(first.header("ratelimit"), "\"default\";r=1;t=43200");
    assert_eq!(statuses(&limiter, "GET /", 2).await, [200, 429]);
    clock.advance(Duration::from_secs(12 * 3_600));
    let next = send(&limiter, "GET /").await;
    assert_eq!(next.header("ratelimit-policy"), "\"default\";q=2;w=86400");
    assert_eq!(next.header("ratelimit"), "\"default\";r=1;t=86400");
}

const CHECKOUT: &str = "
limits:
  - { name: checkout, match: { path: /checkout }, per: ip, rate: 5/s burst 10 }
responses: { headers: [ratelimit, x-ratelimit] }
";

#[tokio::test]
async fn retry_after_of_a_refusal_is_exact() {
    let (limiter, clock) = limiter(CHECKOUT);
    assert_eq!(statuses(&limiter, "POST /checkout", 10).await, [200; 10]);
    let refused = send(&limiter, "POST /checkout").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("ratelimit-policy"), "\"checkout\";q=10;w=2");
    assert_eq!(refused.header("ratelimit"), "\"checkout\";r=0;t=1", "the moment of retry-after");
    assert_eq!(refused.header("x-ratelimit-limit"), "10");
    assert_eq!(refused.header("x-ratelimit-remaining"), "0");
    assert_eq!(refused.header("content-type"), "application/json");
    let body: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(body["code"], "RATE_LIMITED");
    assert_eq!(body["limit"], "checkout");
    assert_eq!(body["retry_after_ms"], 200);
    clock.advance(Duration::from_micros(199_999));
    assert_eq!(send(&limiter, "POST /checkout").await.status, 429);
    clock.advance(Duration::from_micros(1));
    assert_eq!(send(&limiter, "POST /checkout").await.status, 200);
}

#[tokio::test]
async fn a_limit_with_overdraft_charges_more_than_is_left_and_denies_until_it_is_paid() {
    let (limiter, clock) = limiter(
        "
limits:
  - { name: tokens, per: ip, rate: 1000/hour, cost: { request_header: x-tokens }, overdraft: true }
  - { name: requests, per: ip, rate: 100/hour }
",
    );
    assert_eq!(statuses(&limiter, "GET / x-tokens=600", 3).await, [200, 200, 429]);
    let denied = send(&limiter, "GET / x-tokens=1").await;
    assert_eq!(denied.header("retry-after"), "724", "a debt of 200, and 1: 201 times 3.6 s");
    clock.advance(Duration::from_millis(201 * 3_600));
    assert_eq!(statuses(&limiter, "GET / x-tokens=5000", 1).await, [200], "more than it can hold");
}

#[tokio::test]
async fn a_maximum_debt_is_a_multiple_of_the_limit_of_each_tier() {
    let (limiter, clock) = limiter(
        "
identify: { key: { header: x-api-key } }
tiers: { of: key, default: free, members: { ann: pro } }
limits:
  - name: tokens
    per: key
    rate: { free: 1000/hour, pro: 10000/hour }
    cost: { request_header: x-tokens }
    overdraft: { max: 0.5x }
",
    );
    for (key, debt) in [("joe", 500), ("ann", 5_000)] {
        let period = if key == "joe" { 3_600 } else { 360 };
        assert_eq!(
            send(&limiter, &format!("GET / x-api-key={key} x-tokens=99999")).await.status,
            200
        );
        let request = format!("GET / x-api-key={key}");
        clock.advance(Duration::from_millis((debt + 1) * period - 1));
        assert_eq!(send(&limiter, &request).await.status, 429, "{key} owes {debt}");
        clock.advance(Duration::from_millis(1));
        assert_eq!(send(&limiter, &request).await.status, 200, "{key}");
    }
}

#[tokio::test]
async fn a_bucket_that_refills_within_a_second_states_its_rate() {
    for (limit, stated) in [
        ("rate: 2/s", "q=2;w=1"),
        ("rate: 20/s burst 5", "q=20;w=1"),
        ("rate: 100/2s burst 5", "q=100;w=2"),
        ("rate: 5/500ms", "q=10;w=1"),
        ("rate: 5/300ms", "q=5"),
        ("rate: 5/500ms, algorithm: fixed_window", "q=5"),
    ] {
        let (limiter, _) = limiter(&format!("limits: [{{ name: a, {limit} }}]"));
        let policy = send(&limiter, "GET /").await.header("ratelimit-policy").to_string();
        assert_eq!(policy, format!("\"a\";{stated}"), "{limit}");
    }
}

#[tokio::test]
async fn allowed_responses_report_the_remaining_quota() {
    let (limiter, _) = limiter(CHECKOUT);
    let response = send(&limiter, "POST /checkout").await;
    assert_eq!(response.header("ratelimit"), "\"checkout\";r=9;t=1");
    assert_eq!(response.header("x-ratelimit-remaining"), "9");
    assert_eq!(response.header("retry-after"), "");
    let other = send(&limiter, "GET /elsewhere").await;
    assert_eq!(other.header("ratelimit"), "");
}

#[tokio::test]
async fn only_the_configured_headers_are_sent() {
    let none = CHECKOUT.replace("[ratelimit, x-ratelimit]", "none");
    let (quiet, _) = limiter(&none);
    let response = send(&quiet, "POST /checkout").await;
    assert!(response.headers.is_empty());
    statuses(&quiet, "POST /checkout", 9).await;
    let refused = send(&quiet, "POST /checkout").await;
    assert_eq!((refused.header("retry-after"), refused.header("ratelimit")), ("1", ""));
    let (on_refusals, _) =
        limiter(&CHECKOUT.replace("responses: {", "responses: { on_allowed: false,"));
    assert!(send(&on_refusals, "POST /checkout").await.headers.is_empty());
}

#[tokio::test]
async fn the_binding_limit_sets_the_headers_and_a_refusal_charges_no_limit() {
    let (limiter, clock) = limiter(
        "
limits:
  - { name: user, per: ip, rate: 3/s burst 3 }
  - { name: all, rate: 100/hour }
",
    );
    assert_eq!(send(&limiter, "GET /").await.header("ratelimit"), "\"user\";r=2;t=1");
    assert_eq!(statuses(&limiter, "GET /", 5).await, [200, 200, 429, 429, 429]);
    // The three refused requests were not charged to the hourly limit.
    clock.advance(Duration::from_secs(10));
    let (_, denied) = (send(&limiter, "GET /").await, limiter.telemetry().limits());
    assert_eq!(
        denied.iter().map(|s| (&*s.name, s.allowed, s.denied)).collect::<Vec<_>>(),
        [("all", 4, 0), ("user", 4, 3)]
    );
    let (limiter, _) = self::limiter("limits: [{ name: all, rate: 100/hour burst 100 }]");
    assert_eq!(send(&limiter, "GET /").await.header("ratelimit"), "\"all\";r=99;t=36");
}

#[tokio::test]
async fn the_body_has_the_configured_format_and_message() {
    let limit = "limits: [{ name: a, rate: 1/minute burst 1 }]\n";
    let refused = async |responses: &str| {
        let (limiter, _) = limiter(&format!("{limit}responses: {responses}"));
        send(&limiter, "GET /").await;
        send(&limiter, "GET /").await
    };
    let problem = refused("{ body: problem, status: 503 }").await;
    assert_eq!(problem.status, 503);
    assert_eq!(problem.header("content-type"), "application/problem+json");
    let body: serde_json::Value = serde_json::from_str(&problem.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["a"]));
    assert_eq!(body["request_id"], problem.header("x-request-id"));
    let text = refused("{ body: text, message: '{limit}: {quota}, wait {retry_after}' }").await;
    let id = text.header("x-request-id");
    assert_eq!(text.body, format!("a: 1, wait 60\nRequest id: {id}\n"));
}

#[tokio::test]
async fn a_request_without_a_required_identity_gets_401() {
    let (limiter, _) = limiter(
        "
identify: { user: { header: x-user, missing: deny } }
limits: [{ name: a, per: user, rate: 1/minute }]
",
    );
    assert_eq!(send(&limiter, "GET /").await.status, 401);
    assert_eq!(statuses(&limiter, "GET / x-user=ann", 2).await, [200, 429]);
    assert_eq!(send(&limiter, "GET / x-user=bob").await.status, 200);
}

/// More would be refunded than was charged.
#[tokio::test]
async fn a_charge_that_was_cut_at_the_maximum_debt_is_not_refunded() {
    let (limiter, _) = limiter(
        "limits: [{ name: a, rate: 10/minute, cost: 5, overdraft: { max: 1 }, refund: [304] }]",
    );
    assert_eq!(statuses(&limiter, "GET / want-status=304", 3).await, [304; 3], "each is refunded");
    assert_eq!(statuses(&limiter, "GET /", 2).await, [200, 200]);
    assert_eq!(statuses(&limiter, "GET / want-status=304", 1).await, [429], "nothing is left");
}

#[tokio::test]
async fn responses_with_a_refunded_status_are_not_charged() {
    let (limiter, _) = limiter("limits: [{ name: a, rate: 2/minute, refund: [304, 5xx] }]");
    assert_eq!(statuses(&limiter, "GET / want-status=304", 5).await, [304; 5]);
    assert_eq!(statuses(&limiter, "GET / want-status=503", 5).await, [503; 5]);
    assert_eq!(statuses(&limiter, "GET / want-status=404", 3).await, [404, 404, 429]);
}

#[tokio::test]
async fn a_cost_in_a_response_header_is_charged_after_the_response() {
    let policy = "limits: [{ name: a, rate: 10/minute burst 10, cost: { response_header: x-cost, max: 8 } }]";
    let (expensive, _) = limiter(policy);
    assert_eq!(statuses(&expensive, "GET / want-cost=8", 3).await, [200, 200, 429]);
    let (free, _) = limiter(policy);
    assert_eq!(statuses(&free, "GET / want-cost=0", 30).await, [200; 30]);
    let (without_header, _) = limiter(policy);
    assert_eq!(statuses(&without_header, "GET /", 11).await.last(), Some(&429));
    let (above_max, _) = limiter(policy);
    assert_eq!(statuses(&above_max, "GET / want-cost=1000000", 3).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_handler_can_set_the_actual_cost() {
    let (limiter, _) = limiter("limits: [{ name: a, rate: 10/minute }]");
    assert_eq!(statuses(&limiter, "GET / want-actual=0", 30).await, [200; 30]);
    assert_eq!(statuses(&limiter, "GET / want-actual=10", 2).await, [200, 429]);
}

#[tokio::test]
async fn shadow_limits_count_and_refuse_nothing() {
    let (limiter, _) = limiter(
        "
limits:
  - { name: shadowed, rate: 2/minute, mode: shadow }
  - { name: enforced, rate: 4/minute }
",
    );
    assert_eq!(statuses(&limiter, "GET /", 5).await, [200, 200, 200, 200, 429]);
    let stats = limiter.telemetry().limits();
    let shadowed = stats.iter().find(|stats| &*stats.name == "shadowed").unwrap();
    assert_eq!((shadowed.allowed, shadowed.denied, shadowed.shadow_denied), (2, 0, 2));
}

#[tokio::test]
async fn a_priority_class_uses_no_more_than_its_share() {
    let (limiter, _) = limiter(
        "
priorities: [{ class: batch, match: { header: { x-job: true } } }]
limits: [{ name: a, rate: 10/minute, shares: { batch: 30% } }]
",
    );
    assert_eq!(statuses(&limiter, "GET / x-job=1", 4).await, [200, 200, 200, 429]);
    assert_eq!(statuses(&limiter, "GET /", 8).await, [200, 200, 200, 200, 200, 200, 200, 429]);
}

#[tokio::test]
async fn a_class_has_its_guarantee_whatever_others_use() {
    let (limiter, _) = limiter(
        "
priorities: [{ class: partner, match: { header: { x-partner: true } } }]
limits:
  - { name: a, rate: 7/hour, guarantees: { partner: 4/hour }, refund: 304 }
",
    );
    assert_eq!(statuses(&limiter, "GET /", 4).await, [200, 200, 200, 429]);
    assert_eq!(statuses(&limiter, "GET / x-partner=1", 5).await, [200, 200, 200, 200, 429]);
    let stats = &limiter.telemetry().limits()[0];
    assert_eq!((stats.guaranteed, stats.borrowed, stats.allowed, stats.denied), (4, 3, 7, 2));
}

#[tokio::test]
async fn more_limits_than_fit_one_store_call_are_charged_all_or_none() {
    let limits: String = (0..40)
        .map(|i| format!("  - {{ name: l{i}, rate: {}/hour }}\n", if i == 39 { 2 } else { 5 }))
        .collect();
    let (limiter, _) = limiter(&format!("limits:\n{limits}"));
    assert_eq!(statuses(&limiter, "GET /", 6).await, [200, 200, 429, 429, 429, 429]);
    // If refused requests had been charged to the first limits, these would be exhausted by now.
    let raised = (0..40).map(|i| format!("  - {{ name: l{i}, rate: 5/hour }}\n"));
    let text = format!("version: 1\nlimits:\n{}", raised.collect::<String>());
    limiter.policy().replace(Policy::parse("p", &text, &NoSources).unwrap()).unwrap();
    assert_eq!(statuses(&limiter, "GET /", 4).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn usage_survives_a_reload_and_an_invalid_policy_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let write = |rate: &str| {
        std::fs::write(&path, format!("version: 1\nlimits: [{{ name: a, rate: {rate} }}]\n"))
            .unwrap();
    };
    write("3/hour");
    let limiter = PolicyLimiter::open(&path).unwrap();
    assert_eq!(statuses(&limiter, "GET /", 2).await, [200, 200]);
    write("three/hour");
    let error = limiter.policy().reload(&path).unwrap_err().to_string();
    assert!(error.contains("policy.yaml:2:"), "{error}");
    assert_eq!(limiter.policy().status().last_error, Some(error));
    assert_eq!((limiter.policy().status().version, limiter.policy().status().failures), (1, 1));
    assert_eq!(statuses(&limiter, "GET /", 2).await, [200, 429]);
    write("5/hour");
    limiter.policy().reload(&path).unwrap();
    assert_eq!(
        (limiter.policy().status().version, limiter.policy().status().last_error),
        (2, None)
    );
    assert_eq!(statuses(&limiter, "GET /", 3).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_policy_with_another_store_is_rejected_until_restart() {
    let (limiter, _) = limiter("limits: [{ name: a, rate: 1/hour }]");
    let moved =
        "version: 1\nstore: { url: 'redis://127.0.0.1:1' }\nlimits: [{ name: a, rate: 1/hour }]";
    let refused = limiter.policy().replace(Policy::parse("p", moved, &NoSources).unwrap());
    assert_eq!(refused, Err(ratekeeper::PolicyLoadError::StoreChanged));
}

#[tokio::test(start_paused = true)]
async fn a_queue_holds_requests_instead_of_refusing_them() {
    let (limiter, _) =
        limiter("limits: [{ name: writes, rate: 10/s, when_limited: { queue: 300ms } }]");
    let start = tokio::time::Instant::now();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let limiter = limiter.clone();
        requests.spawn(async move {
            let status = send(&limiter, "POST /").await.status.as_u16();
            (status, start.elapsed().as_millis())
        });
    }
    let mut responses = requests.join_all().await;
    responses.sort_unstable();
    // One is served at once, and as many as the rate allows in 300 ms; no request waits for longer.
    let (served, refused): (Vec<_>, Vec<_>) = responses.into_iter().partition(|(s, _)| *s == 200);
    assert_eq!(served.iter().map(|(_, at)| at / 10).collect::<Vec<_>>(), [0, 10, 20]);
    assert_eq!(refused, [(429, 0); 3]);
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_body_is_read() {
    let (limiter, _) = limiter("limits: [{ name: exports, per: ip, concurrency: 2 }]");
    let service = RatekeeperLayer::new(limiter.clone()).layer(service_fn(echo));
    let first = service.clone().oneshot(request("GET /")).await.unwrap();
    let second = service.clone().oneshot(request("GET /")).await.unwrap();
    let refused = send(&limiter, "GET /").await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, ""));
    assert!(refused.body.contains("TOO_MANY_IN_FLIGHT"));
    first.into_body().collect().await.unwrap();
    assert_eq!(send(&limiter, "GET /").await.status, 200);
    drop(second);
    assert_eq!(statuses(&limiter, "GET /", 3).await, [200; 3]);
}

#[tokio::test]
async fn a_refused_request_releases_its_permits() {
    let (limiter, _) = limiter(
        "
limits:
  - { name: flight, concurrency: 1 }
  - { name: rate, rate: 1/hour }
",
    );
    assert_eq!(statuses(&limiter, "GET /", 4).await, [200, 429, 429, 429]);
    let refused = send(&limiter, "GET /").await;
    assert!(refused.body.contains("\"limit\":\"rate\""), "{}", refused.body);
}

#[tokio::test]
async fn a_request_extension_can_be_an_identity() {
    #[derive(Clone)]
    struct Session(&'static str);
    let (limiter, _) = limiter(
        "
identify: { user: { custom: true, missing: deny } }
limits: [{ name: a, per: user, rate: 1/hour }]
",
    );
    let layer = RatekeeperLayer::new(limiter);
    let layer = layer.identify("user", |parts| Some(parts.extensions.get::<Session>()?.0)).unwrap();
    let send = async |session: Option<Session>| {
        let mut request = request("GET /");
        session.map(|session| request.extensions_mut().insert(session));
        layer.layer(service_fn(echo)).oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(send(Some(Session("ann"))).await, 200);
    assert_eq!(send(Some(Session("ann"))).await, 429);
    assert_eq!(send(Some(Session("bob"))).await, 200);
    assert_eq!(send(None).await, 401);
}

async fn reply(layer: &RatekeeperLayer, request: Request<Body>) -> (StatusCode, String) {
    let response = layer.layer(service_fn(echo)).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn only_custom_identities_of_the_policy_can_be_supplied() {
    let layer = || {
        RatekeeperLayer::new(
            limiter(
                "
identify: { user: { header: x-user }, session: { custom: true } }
limits: [{ name: a, per: session, rate: 1/hour }, { name: b, per: user, rate: 1/hour }]
",
            )
            .0,
        )
    };
    let find = |_: &http::request::Parts| None::<String>;
    assert!(layer().identify("session", find).is_ok());
    let unknown = layer().identify("sesion", find).unwrap_err();
    assert_eq!(format!("{unknown:?}"), unknown.to_string(), "what main prints");
    assert_eq!(
        unknown.to_string(),
        "the policy has no identity \"sesion\"; its custom identities: session"
    );
    assert_eq!(
        layer().identify("user", find).unwrap_err(),
        IdentifyError::NotCustom("user".into())
    );
}

#[tokio::test]
async fn a_custom_identity_that_nothing_supplies_is_an_error_of_every_request() {
    let (limiter, _) = limiter(
        "identify: { user: { custom: true } }\nlimits: [{ name: a, per: user, rate: 1/hour }]",
    );
    let layer = RatekeeperLayer::new(limiter);
    let (status, body) = reply(&layer, request("GET /")).await;
    assert_eq!(status, 500);
    assert!(body.contains("MISCONFIGURED") && body.contains("RatekeeperLayer::identify"), "{body}");
}

#[tokio::test]
async fn a_new_policy_with_a_custom_identity_that_nothing_supplies_is_rejected() {
    let (limiter, _) = limiter("limits: [{ name: a, rate: 10/hour }]");
    let layer = RatekeeperLayer::new(limiter.clone());
    let service = layer.layer(service_fn(echo));
    let next = Policy::one_line("10/hour per custom user").unwrap();
    let error = limiter.policy().replace(next).unwrap_err();
    assert_eq!(error, PolicyLoadError::CustomIdentity("user".into()));
    assert_eq!(service.oneshot(request("GET /")).await.unwrap().status(), 200);
}

/// All clients would count as one.
#[tokio::test]
async fn a_request_whose_address_is_needed_and_unknown_is_an_error() {
    let (limiter, _) = limiter(
        "
identify: { user: { header: x-user } }
exempt: [{ path: /healthz }]
limits: [{ name: a, per: user, rate: 10/hour }]
",
    );
    let layer = RatekeeperLayer::new(limiter);
    let without_address = |line: &str| {
        let mut request = request(line);
        request.extensions_mut().remove::<PeerAddr>();
        request
    };
    let (status, body) = reply(&layer, without_address("GET /")).await;
    assert_eq!(status, 500);
    assert!(body.contains("into_make_service_with_connect_info"), "{body}");
    let grpc = without_address("POST / content-type=application/grpc");
    let response = layer.layer(service_fn(echo)).oneshot(grpc).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &"13".parse().unwrap())
    );
    // The address is only the fallback for requests without a user.
    for line in ["GET / x-user=ann", "GET /healthz"] {
        assert_eq!(reply(&layer, without_address(line)).await.0, 200, "{line}");
    }
}

#[tokio::test]
async fn errors_of_the_inner_service_are_passed_through() {
    let service = service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>("broken") });
    let (limiter, _) = limiter("limits: [{ name: a, rate: 1/hour }]");
    let layer = RatekeeperLayer::new(limiter);
    assert_eq!(layer.layer(service).oneshot(request("GET /")).await.unwrap_err(), "broken");
    // What was charged stays charged: the service was called.
    assert_eq!(layer.layer(service).oneshot(request("GET /")).await.unwrap().status(), 429);
}

/// A service that counts calls of `poll_ready`, and panics if it is called before it is ready.
#[derive(Clone)]
struct ReadyCheck {
    is_ready: bool,
    polls: Arc<AtomicUsize>,
}

impl Service<Request<Body>> for ReadyCheck {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        // Pending the first time, so the caller has to poll again.
        match self.polls.fetch_add(1, Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called before it was ready");
        std::future::ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_service_that_is_ready_is_called() {
    // The second limit queues requests, so the call comes later than `poll_ready`.
    for policy in ["{ name: a, rate: 9/s }", "{ name: a, rate: 9/s, when_limited: { queue: 1s } }"]
    {
        let (limiter, _) = limiter(&format!("limits: [{policy}]"));
        let inner = ReadyCheck { is_ready: false, polls: Arc::default() };
        let mut service = RatekeeperLayer::new(limiter).layer(inner);
        let is_ready = service.poll_ready(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(is_ready.is_pending(), "backpressure passes through");
        for _ in 0..5 {
            let response = service.ready().await.unwrap().call(request("GET /")).await.unwrap();
            assert_eq!(response.status(), 200);
        }
    }
}

#[tokio::test]
async fn a_grpc_call_is_refused_with_a_grpc_status() {
    let (limiter, _) =
        limiter("limits: [{ name: a, rate: 1/hour, message: 'zu viel für {limit}' }]");
    send(&limiter, "POST / content-type=application/grpc").await;
    let refused = send(&limiter, "POST / content-type=application/grpc").await;
    assert_eq!(refused.status, 200);
    assert_eq!(refused.header("grpc-status"), "8");
    assert_eq!(refused.header("grpc-message"), "zu viel f%C3%BCr a");
}

#[tokio::test]
async fn a_watched_policy_is_reloaded_when_its_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let write = |rate: &str| {
        let new = path.with_extension("new");
        std::fs::write(&new, format!("version: 1\nlimits: [{{ name: a, rate: {rate} }}]\n"))
            .unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    write("1/hour");
    let limiter = PolicyLimiter::open(&path).unwrap();
    let (sender, mut reloads) = tokio::sync::mpsc::unbounded_channel();
    limiter.policy().watch(&path, move |reloaded| sender.send(reloaded.is_ok()).unwrap());
    assert_eq!(statuses(&limiter, "GET /", 2).await, [200, 429]);
    write("no rate at all");
    assert_eq!(reloads.recv().await, Some(false));
    assert_eq!(send(&limiter, "GET /").await.status, 429);
    write("30/hour");
    assert_eq!(reloads.recv().await, Some(true));
    assert_eq!(send(&limiter, "GET /").await.status, 200);
    drop(limiter);
    assert_eq!(reloads.recv().await, None, "the watch ends with the limiter");
}
