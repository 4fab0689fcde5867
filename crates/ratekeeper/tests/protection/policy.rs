//! Protection by a policy, through the layer, in virtual time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use ratekeeper::policy::NoSources;
use ratekeeper::tower::ResponseBody;
use ratekeeper::{Policy, PolicyLimiter, RatekeeperLayer};
use serde_json::Value;
use tokio::sync::Semaphore;
use tower::util::BoxCloneService;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{MS, SEC, VirtualClock, settle};

type Body = Full<Bytes>;
type Limited =
    BoxCloneService<Request<Body>, Response<ResponseBody<Body>>, std::convert::Infallible>;

fn limiter(policy: &str) -> PolicyLimiter {
    PolicyLimiter::with_clock(parsed(policy), VirtualClock::start()).unwrap()
}

fn parsed(policy: &str) -> Policy {
    Policy::parse("policy.yaml", &format!("version: 1\n{policy}"), &NoSources).unwrap()
}

/// A service of some workers that take a while for each request.
fn service(limiter: &PolicyLimiter, workers: usize, takes: Duration) -> Limited {
    let workers = Arc::new(Semaphore::new(workers));
    let layer = RatekeeperLayer::new(limiter.clone());
    Limited::new(layer.layer(service_fn(move |_: Request<Body>| {
        let workers = workers.clone();
        async move {
            let _worker = workers.acquire().await.unwrap();
            tokio::time::sleep(takes).await;
            Ok(Response::new(Body::from("done")))
        }
    })))
}

fn get(path: &str, user: &str) -> Request<Body> {
    Request::get(path).header("x-user", user).body(Body::default()).unwrap()
}

/// Returns the status, the header `Retry-After` and the body.
async fn read<B>(response: Response<B>) -> (StatusCode, Option<String>, Value)
where
    B: http_body::Body<Data = Bytes, Error = std::convert::Infallible>,
{
    let (parts, body) = response.into_parts();
    let retry_after = parts.headers.get("retry-after").map(|it| it.to_str().unwrap().to_string());
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, retry_after, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_the_queue_of_a_policy_and_get_503_after_that() {
    let limiter = limiter(
        "limits: [{ name: reports, concurrency: { max: 1, queue: { max: 2, wait: 25ms } } }]",
    );
    let service = service(&limiter, 9, 10 * MS);
    let calls = (0..5).map(|_| tokio::spawn(service.clone().oneshot(get("/", "ann"))));
    let calls: Vec<_> = calls.collect();
    settle().await;
    let stats = &limiter.engine().concurrency_stats()[0];
    assert_eq!((&*stats.name, stats.permits.in_flight, stats.permits.waiting), ("reports", 1, 2));
    let mut statuses = Vec::new();
    for call in calls {
        let (status, retry_after, body) = read(call.await.unwrap().unwrap()).await;
        statuses.push(status.as_u16());
        if status != 200 {
            assert_eq!(retry_after.as_deref(), Some("1"));
            assert_eq!(
                (&body["code"], &body["limit"]),
                (&"CONCURRENCY_LIMIT".into(), &"reports".into())
            );
            assert_eq!(body["retry_after_ms"], 1_000);
        }
    }
    assert_eq!(statuses, [200, 200, 200, 503, 503]);
    let stats = &limiter.engine().concurrency_stats()[0].permits;
    assert_eq!((stats.full, stats.timed_out, stats.waits.count), (2, 0, 2));

    // Behind two that take 30 ms together.
    let slow = self::service(&limiter, 9, 30 * MS);
    let calls: Vec<_> =
        (0..2).map(|_| tokio::spawn(slow.clone().oneshot(get("/", "ann")))).collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.unwrap().unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 503]);
    assert_eq!(limiter.engine().concurrency_stats()[0].permits.timed_out, 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_above_its_fixed_concurrency_gets_429() {
    let limiter = limiter(
        "identify: { user: { header: x-user } }\n\
         limits: [{ name: exports, per: user, concurrency: 1 }]",
    );
    let service = service(&limiter, 9, 10 * MS);
    let first = tokio::spawn(service.clone().oneshot(get("/", "ann")));
    settle().await;
    let (status, _, body) = read(service.oneshot(get("/", "ann")).await.unwrap()).await;
    assert_eq!((status.as_u16(), &body["code"]), (429, &"TOO_MANY_IN_FLIGHT".into()));
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_gets_no_permit_is_not_charged() {
    let limiter = limiter(
        "limits: [{ name: rate, rate: 2/hour }, { name: busy, concurrency: { max: 1, queue: { max: 1, wait: 5ms } } }]",
    );
    let service = service(&limiter, 9, 10 * MS);
    let first = tokio::spawn(service.clone().oneshot(get("/", "ann")));
    settle().await;
    let second = service.clone().oneshot(get("/", "ann")).await.unwrap();
    assert_eq!(second.status(), 503, "it waited in vain");
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(get("/", "ann")).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(get("/", "ann")).await.unwrap().status(), 429);
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_of_a_policy_learns_from_responses_and_survives_a_reload() {
    let policy = "limits: [{ name: search, concurrency: { adaptive: { initial: 100 } } }]";
    let limiter = limiter(policy);
    let service = service(&limiter, 10, 10 * MS);
    let served = Arc::new(AtomicUsize::new(0));
    let mut refused = 0;
    for _ in 0..20_000 {
        tokio::time::sleep(MS).await;
        for _ in 0..3 {
            let (call, served) = (service.clone().oneshot(get("/", "ann")), served.clone());
            tokio::spawn(async move {
                let response = call.await.unwrap();
                served.fetch_add(usize::from(response.status() == 200), Ordering::Relaxed);
            });
        }
        refused = limiter.engine().concurrency_stats().first().map_or(0, |it| it.permits.full);
    }
    let learned = limiter.engine().concurrency_stats()[0].permits.permits_max;
    assert!((8..=30).contains(&learned), "{learned} for 10 workers");
    let served = served.load(Ordering::Relaxed);
    assert!(served > 14_000, "{served} in 20 s, of about 900 per second");
    assert!(refused > 30_000, "{refused}");

    limiter.policy().replace(parsed(policy)).unwrap();
    assert_eq!(limiter.engine().concurrency_stats()[0].permits.permits_max, learned);
    // Other bounds begin with what was learned.
    let narrow = "limits: [{ name: search, concurrency: { adaptive: { min: 5, max: 200 } } }]";
    limiter.policy().replace(parsed(narrow)).unwrap();
    drop(service.oneshot(get("/", "ann")).await.unwrap());
    assert_eq!(limiter.engine().concurrency_stats()[0].permits.permits_max, learned);
    limiter.policy().replace(parsed("limits: []")).unwrap();
    assert!(limiter.engine().concurrency_stats().is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_key_has_permits_of_its_own_and_their_number_is_bounded() {
    let limiter = limiter(
        "identify: { user: { header: x-user } }\n\
         limits: [{ name: user, per: user, concurrency: { adaptive: { min: 1, initial: 1, max: 1000 } } }]",
    );
    let service = service(&limiter, 100_000, SEC);
    let ann = tokio::spawn(service.clone().oneshot(get("/", "ann")));
    settle().await;
    assert_eq!(service.clone().oneshot(get("/", "ann")).await.unwrap().status(), 503);
    let bob = tokio::spawn(service.clone().oneshot(get("/", "bob")));
    settle().await;
    assert_eq!(limiter.engine().concurrency_stats()[0].permits.in_flight, 2);
    assert_eq!(ann.await.unwrap().unwrap().status(), 200);
    assert_eq!(bob.await.unwrap().unwrap().status(), 200);
    let many: Vec<_> = (0..5_000)
        .map(|user| tokio::spawn(service.clone().oneshot(get("/", &user.to_string()))))
        .collect();
    let mut served = 0;
    for call in many {
        served += usize::from(call.await.unwrap().unwrap().status() == 200);
    }
    assert_eq!(served, 4_096 + 1, "the others share one");
}

#[tokio::test(start_paused = true)]
async fn a_policy_sheds_the_least_important_class_first() {
    let limiter = limiter(
        "identify: { user: { header: x-user } }\n\
         priorities:\n\
         - { class: checkout, match: { path: /checkout } }\n\
         - { class: others }\n\
         shedding: { per: user }\n\
         limits: [{ name: all, concurrency: { max: 10, queue: { max: 200, wait: 500ms } } }]",
    );
    let service = service(&limiter, 10, 10 * MS);
    let counts = Arc::new([const { AtomicUsize::new(0) }; 4]);
    let example = Arc::new(Mutex::new(None));
    for tick in 0..10_000u32 {
        for request in 0..3 {
            let is_checkout = request == 0 && tick % 5 < 2;
            let path = if is_checkout { "/checkout" } else { "/prefetch" };
            let user = (tick * 7_919 % 5_000).to_string();
            let (call, counts) = (service.clone().oneshot(get(path, &user)), counts.clone());
            let (is_counted, example) = (tick >= 2_000, example.clone());
            tokio::spawn(async move {
                let response = call.await.unwrap();
                let is_served = response.status() == 200;
                if is_counted {
                    let of = 2 * usize::from(is_checkout) + usize::from(is_served);
                    counts[of].fetch_add(1, Ordering::Relaxed);
                }
                let response = read(response).await;
                if response.2["code"] == "OVERLOADED" {
                    *example.lock().unwrap() = Some(response);
                }
            });
        }
        tokio::time::sleep(MS).await;
    }
    tokio::time::sleep(SEC).await;
    let [shed, others, refused, checkouts] = &*counts;
    let (checkouts, refused) = (checkouts.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    assert!(refused * 50 <= checkouts, "{refused} of {checkouts} checkouts are refused");
    let served = checkouts + others.load(Ordering::Relaxed);
    // Timers are rounded up to the next millisecond, so that the capacity is 7300 to 8000.
    assert!(served > 6_500, "{served} are served");
    let stats = limiter.engine().shed_stats();
    assert_eq!(stats[0].shed, 0, "{stats:?}");
    assert!(stats[1].shed > 10_000, "{stats:?}");

    assert!(shed.load(Ordering::Relaxed) > 10_000, "{shed:?}");
    let (status, retry_after, body) = example.lock().unwrap().take().unwrap();
    assert_eq!((status.as_u16(), &body["code"]), (503, &"OVERLOADED".into()));
    assert_eq!(body["class"], "others");
    assert!(retry_after.is_some_and(|secs| secs.parse::<u64>().unwrap() >= 1));
}
