//! Which question is asked where.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value, json};
use tollgate::gate::{Admission, Refused};
use tollgate::{Charge, Cost, Op, WhenDown};

use super::HttpDoor;
use super::ask::{self, Check, Described, Question};
use super::held::{Reserved, Thing};
use super::reply::{self, Reply, decided, json, wrong};
use super::{auth, peek, reset};

/// The largest question.
const BODY_MAX: usize = 64 << 10;
/// How long a permit or a reservation is held unless the caller says otherwise, and at most.
const HELD_FOR: Duration = Duration::from_secs(60);
const HELD_FOR_MAX: Duration = Duration::from_secs(3_600);

const HELP: &str = include_str!("help.txt");
const OPENAPI: &str = include_str!("openapi.json");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn answer<B>(door: Arc<HttpDoor>, request: Request<B>, peer: IpAddr) -> Reply
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let path = request.uri().path();
    if let Some(page) = page(path) {
        return match *request.method() {
            Method::GET | Method::HEAD => page,
            _ => not_so("GET, HEAD", "this is only to be read"),
        };
    }
    if !door.tokens.allow(request.headers()) {
        return unauthorized();
    }
    if path == "/v1/auth" {
        return auth::answer(&door, &request, peer).await;
    }
    let is_known = ["check", "peek", "reset", "reserve", "settle", "acquire", "release"]
        .iter()
        .any(|name| path.strip_prefix("/v1/") == Some(name))
        || path == "/json" && door.envoy.is_some();
    if !is_known {
        return wrong(
            StatusCode::NOT_FOUND,
            "NOT_FOUND",
            "there is no such path; GET / tells which there are",
        );
    }
    if request.method() != Method::POST {
        return not_so("POST", "this is asked with POST and a JSON body");
    }
    let path = path.to_string();
    let body = match Limited::new(request.into_body(), BODY_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            let message = format!("the body is too large or broke off; at most {BODY_MAX} bytes");
            return wrong(StatusCode::PAYLOAD_TOO_LARGE, "BODY", &message);
        }
    };
    let answered = match path.as_str() {
        "/v1/check" => check(&door, &body, Op::Check).await,
        "/v1/peek" => check(&door, &body, Op::Peek).await,
        "/v1/reset" => reset::answer(&door, &body).await,
        "/v1/reserve" => reserve(&door, &body).await,
        "/v1/settle" => settle(&door, &body).await,
        "/v1/acquire" => acquire(&door, &body).await,
        "/json" => return descriptors(&door, &body).await,
        _ => release(&door, &body),
    };
    answered.unwrap_or_else(|message| wrong(StatusCode::BAD_REQUEST, "BAD_REQUEST", &message))
}

/// What everybody may read.
fn page(path: &str) -> Option<Reply> {
    let (kind, text) = match path {
        "/" => ("text/plain; charset=utf-8", HELP),
        "/openapi.json" => ("application/json", OPENAPI),
        "/healthz" => ("text/plain; charset=utf-8", "ok\n"),
        _ => return None,
    };
    Some(reply::full(StatusCode::OK, kind, text.into()))
}

fn not_so(methods: &'static str, message: &str) -> Reply {
    let mut reply = wrong(StatusCode::METHOD_NOT_ALLOWED, "METHOD", message);
    let methods = http::HeaderValue::from_static(methods);
    reply.headers_mut().insert(http::header::ALLOW, methods);
    reply
}

/// What Envoy asks over gRPC, asked in JSON, as envoyproxy/ratelimit has it.
async fn descriptors(door: &HttpDoor, body: &[u8]) -> Reply {
    let Some(envoy) = &door.envoy else {
        return wrong(StatusCode::NOT_FOUND, "NOT_FOUND", "there are no limits of descriptors");
    };
    let (status, body) = envoy.answer_json(body).await;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply::full(status, "application/json", body.into())
}

fn unauthorized() -> Reply {
    let mut reply =
        wrong(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "a valid bearer token is needed");
    let scheme = http::HeaderValue::from_static("Bearer");
    reply.headers_mut().insert(http::header::WWW_AUTHENTICATE, scheme);
    reply
}

fn status(is_allowed: bool) -> StatusCode {
    if is_allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}

async fn check(door: &HttpDoor, body: &[u8], op: Op) -> Result<Reply, String> {
    match Question::read(body)? {
        Question::Checks(checks) => check_all(door, &checks, op).await,
        Question::Request(described) if op == Op::Peek => Ok(peek::answer(door, &described).await),
        Question::Request(described) => Ok(judge(door, &described).await),
    }
}

async fn check_all(door: &HttpDoor, checks: &[Check], op: Op) -> Result<Reply, String> {
    let charges: Vec<_> = checks.iter().map(|check| (charge(check), WhenDown::Local)).collect();
    let decided_all = door.gate.apply(op, &charges).await.map_err(|error| error.to_string())?;
    let verdict = &decided_all.verdict;
    let by = &checks[verdict.decided_by()].limit;
    let mut body = reply::decision(by, verdict);
    body.insert("degraded".into(), decided_all.is_degraded.into());
    if checks.len() > 1 {
        let each = checks.iter().zip(verdict.decisions());
        let each =
            each.map(|(check, decision)| Value::Object(reply::decision(&check.limit, decision)));
        body.insert("decisions".into(), each.collect());
    }
    let status = if op == Op::Peek { StatusCode::OK } else { status(verdict.allowed()) };
    let mut answer = decided(body, None, status);
    reply::tell(by, verdict, answer.headers_mut());
    Ok(answer)
}

fn charge(check: &Check) -> Charge<'_> {
    Charge::new(&check.limit, &check.key).cost(check.cost)
}

/// A request that the policy judges.
async fn judge(door: &HttpDoor, described: &Described) -> Reply {
    let deciding = door.gate.decide(&described.request(door.now_us()));
    judged(&deciding.await)
}

fn judged(admission: &Admission) -> Reply {
    match admission {
        Admission::Exempt => decided(reply::undecided(true, "exempt"), None, StatusCode::OK),
        Admission::Admitted(admitted) => {
            let speaker = admitted.speaker();
            let mut body = match speaker {
                Some(speaker) => reply::decision(speaker.limit, speaker.decision),
                None => reply::undecided(true, "no limit applies"),
            };
            body.insert("degraded".into(), admitted.is_degraded.into());
            body.insert("delay_ms".into(), (admitted.delay.as_millis() as u64).into());
            decided(body, speaker, StatusCode::OK)
        }
        Admission::Refused(refusal) => {
            let mut body = match (&refusal.why, refusal.speaker()) {
                (_, Some(speaker)) => reply::decision(speaker.limit, speaker.decision),
                (Refused::NoIdentity { identity, why }, _) => {
                    reply::undecided(false, &format!("{identity}: {why}"))
                }
                _ => reply::undecided(false, "too many at a time"),
            };
            body.insert("limit_name".into(), refusal.rule.name().into());
            body.insert("degraded".into(), false.into());
            let status = match refusal.why {
                Refused::NoIdentity { .. } => StatusCode::UNAUTHORIZED,
                _ => StatusCode::TOO_MANY_REQUESTS,
            };
            decided(body, refusal.speaker(), status)
        }
    }
}

/// How long something is to be held, from `valid_ms`.
fn deadline_us(door: &HttpDoor, object: &Map<String, Value>) -> Result<u64, String> {
    let span = ask::number(object, "valid_ms")?.map_or(HELD_FOR, Duration::from_millis);
    if span.is_zero() || span > HELD_FOR_MAX {
        return Err(format!("\"valid_ms\" is 1 to {}", HELD_FOR_MAX.as_millis()));
    }
    Ok(door.now_us() + u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

async fn reserve(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    let check = Check::read(&object, &["valid_ms"])?;
    let deadline = deadline_us(door, &object)?;
    let charges = [(charge(&check), WhenDown::Local)];
    let made = door.gate.apply(Op::Check, &charges).await.map_err(|error| error.to_string())?;
    let mut fields = reply::decision(&check.limit, &made.verdict);
    fields.insert("degraded".into(), made.is_degraded.into());
    let (verdict, mut headers) = (made.verdict, HeaderMap::new());
    reply::tell(&check.limit, &verdict, &mut headers);
    if verdict.allowed() {
        let thing = Thing::Reservation(Box::new(Reserved { check, charged_at: verdict.at() }));
        let Some(id) = door.held.put(thing, deadline, door.now_us()) else {
            return Ok(too_many_held());
        };
        fields.insert("reservation".into(), id.into());
    }
    let mut answer = decided(fields, None, status(verdict.allowed()));
    answer.headers_mut().extend(headers);
    Ok(answer)
}

fn too_many_held() -> Reply {
    let message = "too many reservations and permits are held; settle or release some";
    wrong(StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_HELD", message)
}

async fn settle(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["reservation", "cost"])?;
    let id = ask::text(&object, "reservation")?.ok_or("the reservation's id is missing")?;
    let actual =
        ask::number(&object, "cost")?.ok_or("the real cost is missing; 0 gives all back")?;
    let Some(Thing::Reservation(reserved)) = door.held.take(id, door.now_us()) else {
        let message = "there is no such reservation: it was settled, or its time is over and its charge stays";
        return Ok(wrong(StatusCode::GONE, "GONE", message));
    };
    let Reserved { check, charged_at } = *reserved;
    let correction = Op::correction(check.cost, actual, charged_at);
    let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
    let charges = [(Charge::new(&check.limit, &check.key).cost(cost), WhenDown::Local)];
    let settled = door.gate.apply(op, &charges).await.map_err(|error| error.to_string())?;
    let mut fields = reply::decision(&check.limit, &settled.verdict);
    fields.insert("degraded".into(), settled.is_degraded.into());
    Ok(decided(fields, None, StatusCode::OK))
}

async fn acquire(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["key", "max", "name", "valid_ms"])?;
    let key = ask::key(&object)?;
    let max = ask::number(&object, "max")?.filter(|max| *max > 0);
    let max = max.ok_or("\"max\" is missing: how many may be in flight, at least 1")?;
    let deadline = deadline_us(door, &object)?;
    let name: Arc<str> = format!("api:{}", ask::text(&object, "name")?.unwrap_or("api")).into();
    let permit = door.gate.acquire(&name, key.as_bytes(), max, WhenDown::Local).await;
    let Some(permit) = permit else {
        return Ok(json(StatusCode::TOO_MANY_REQUESTS, &json!({ "allowed": false, "max": max })));
    };
    let Some(id) = door.held.put(Thing::Permit(permit), deadline, door.now_us()) else {
        return Ok(too_many_held());
    };
    Ok(json(StatusCode::OK, &json!({ "allowed": true, "max": max, "permit": id })))
}

fn release(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["permit"])?;
    let id = ask::text(&object, "permit")?.ok_or("the permit's id is missing")?;
    match door.held.take(id, door.now_us()) {
        Some(Thing::Permit(_)) => Ok(json(StatusCode::OK, &json!({ "released": true }))),
        _ => {
            let message = "there is no such permit: it was released, or its time is over";
            Ok(wrong(StatusCode::GONE, "GONE", message))
        }
    }
}
