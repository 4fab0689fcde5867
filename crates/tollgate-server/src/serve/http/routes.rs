//! Which question is asked where.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tollgate::gate::{Admission, Decided, Refused, Speaker};
use tollgate::policy::Answers;
use tollgate::{Charge, Cost, Decision, Micros, Op, Verdict, WhenDown};

use super::HttpDoor;
use super::ask::{self, Check, Described, Question};
use super::auth;
use super::held::{Reserved, Thing};
use super::reply::{self, Reply, Told, json, wrong};

/// The largest question.
const BODY_MAX: usize = 64 << 10;
/// A question has to be here in this time.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// How long a permit or a reservation is held unless the caller says otherwise, and at most.
const HELD_FOR: Duration = Duration::from_secs(60);
const HELD_FOR_MAX: Duration = Duration::from_secs(3_600);

const HELP: &str = include_str!("help.txt");
const OPENAPI: &str = include_str!("openapi.json");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn answer<B>(door: &HttpDoor, request: Request<B>, peer: IpAddr) -> Reply
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let path = request.uri().path();
    match (request.method(), path) {
        (&Method::GET, "/") => {
            return reply::full(StatusCode::OK, "text/plain; charset=utf-8", HELP.into());
        }
        (&Method::GET, "/openapi.json") => {
            return reply::full(StatusCode::OK, "application/json", OPENAPI.into());
        }
        (&Method::GET, "/healthz") => {
            return reply::full(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into());
        }
        _ => {}
    }
    if !door.tokens.allow(request.headers()) {
        return unauthorized();
    }
    if path == "/v1/auth" {
        return auth::answer(door, &request, peer).await;
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
        return wrong(
            StatusCode::METHOD_NOT_ALLOWED,
            "METHOD",
            "this is asked with POST and a JSON body",
        );
    }
    let path = path.to_string();
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(reply) => return reply,
    };
    let answered = match path.as_str() {
        "/v1/check" => check(door, &body, Op::Check).await,
        "/v1/peek" => check(door, &body, Op::Peek).await,
        "/v1/reset" => reset(door, &body).await,
        "/v1/reserve" => reserve(door, &body).await,
        "/v1/settle" => settle(door, &body).await,
        "/v1/acquire" => acquire(door, &body).await,
        "/json" => return descriptors(door, &body).await,
        _ => release(door, &body),
    };
    answered.unwrap_or_else(|message| wrong(StatusCode::BAD_REQUEST, "BAD_REQUEST", &message))
}

/// All of a question, if it is not too large and comes in time.
async fn whole<B>(body: B) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match timeout(BODY_WITHIN, Limited::new(body, BODY_MAX).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => {
            let message = format!("the body is too large or broke off; at most {BODY_MAX} bytes");
            Err(wrong(StatusCode::PAYLOAD_TOO_LARGE, "BODY", &message))
        }
        Err(_) => {
            Err(wrong(StatusCode::REQUEST_TIMEOUT, "TIMEOUT", "the body did not come in time"))
        }
    }
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
        Question::Request(_) if op == Op::Peek => {
            Err("a request cannot be peeked at; ask for a key and a rate".into())
        }
        Question::Request(described) => Ok(judge(door, &described).await),
    }
}

async fn check_all(door: &HttpDoor, checks: &[Check], op: Op) -> Result<Reply, String> {
    let code = |is_allowed| if op == Op::Peek { StatusCode::OK } else { status(is_allowed) };
    if let [check] = checks {
        let one = decide_one(door, op, check, check.cost).await?;
        return Ok(one.told(check, code(one.decision.allowed())));
    }
    let charges: Vec<_> = checks.iter().map(|check| (charge(check), WhenDown::Local)).collect();
    let decided = door.gate.apply(op, &charges).await.map_err(|error| error.to_string())?;
    let (verdict, is_degraded) = (&decided.verdict, decided.is_degraded);
    if op == Op::Check {
        note_all(door, checks, verdict);
    }
    let each = checks.iter().zip(verdict.decisions());
    let each = each.map(|(check, decision)| Told::of(&check.limit, decision, is_degraded));
    let by = &checks[verdict.decided_by()].limit;
    let told = Told::of(by, verdict, is_degraded).each(each.collect());
    let mut answer = told.answer(code(verdict.allowed()));
    reply::tell(by, verdict, answer.headers_mut());
    Ok(answer)
}

/// What became of one limit.
struct One {
    decision: Decision,
    at: Micros,
    is_degraded: bool,
}

async fn decide_one(door: &HttpDoor, op: Op, check: &Check, cost: Cost) -> Result<One, String> {
    let one = ask_one(door, op, check, cost).await?;
    if op == Op::Check {
        door.note(check.limit.name(), &check.key, one.decision.allowed());
    }
    Ok(one)
}

async fn ask_one(door: &HttpDoor, op: Op, check: &Check, cost: Cost) -> Result<One, String> {
    let charge = Charge::new(&check.limit, &check.key).cost(cost);
    if let Some(store) = door.gate.memory() {
        let at = door.gate.now();
        return Ok(One { decision: store.apply_one(op, &charge, at), at, is_degraded: false });
    }
    let charges = [(charge, WhenDown::Local)];
    // In a box: what waits for a store is large, and would be moved about with every question.
    let decided = Box::pin(door.gate.apply(op, &charges)).await;
    let decided = decided.map_err(|error| error.to_string())?;
    let Decided { verdict, is_degraded } = decided;
    Ok(One { decision: *verdict, at: verdict.at(), is_degraded })
}

impl One {
    fn told(&self, check: &Check, status: StatusCode) -> Reply {
        let told = Told::of(&check.limit, &self.decision, self.is_degraded);
        self.headed(check, told.answer(status))
    }

    /// With headers of what the limit says.
    fn headed(&self, check: &Check, mut reply: Reply) -> Reply {
        reply::tell(&check.limit, &self.decision, reply.headers_mut());
        reply
    }
}

/// Of those that were refused, the one that refused speaks for all: the others were not charged.
fn note_all(door: &HttpDoor, checks: &[Check], verdict: &Verdict) {
    match verdict.allowed() {
        true => checks.iter().for_each(|check| door.note(check.limit.name(), &check.key, true)),
        false => {
            let check = &checks[verdict.decided_by()];
            door.note(check.limit.name(), &check.key, false);
        }
    }
}

fn charge(check: &Check) -> Charge<'_> {
    Charge::new(&check.limit, &check.key).cost(check.cost)
}

/// A request that the policy judges.
async fn judge(door: &HttpDoor, described: &Described) -> Reply {
    let deciding = {
        let request = tollgate::policy::Request {
            method: &described.method,
            host: described.host.as_deref(),
            path: &described.path,
            query: described.query.as_deref(),
            headers: &described.headers,
            peer: described.peer,
            custom: &|_| None,
            unix_secs: door.now_us() / 1_000_000,
        };
        door.gate.decide(&request)
    };
    judged(&deciding.await)
}

fn judged(admission: &Admission) -> Reply {
    match admission {
        Admission::Exempt => Told::because(true, "exempt".into()).answer(StatusCode::OK),
        Admission::Admitted(admitted) => {
            let speaker = admitted.speaker();
            let told = match speaker {
                Some(speaker) => Told::of(speaker.limit, speaker.decision, admitted.is_degraded),
                None => Told::because(true, "no limit applies".into()),
            };
            spoken(told.delayed(admitted.delay).answer(StatusCode::OK), speaker)
        }
        Admission::Refused(refusal) => {
            let told = match (&refusal.why, refusal.speaker()) {
                (_, Some(speaker)) => Told::of(speaker.limit, speaker.decision, false),
                (Refused::NoIdentity { identity, why }, _) => {
                    Told::because(false, format!("{identity}: {why}"))
                }
                _ => Told::because(false, "too many at a time".into()),
            };
            let status = match refusal.why {
                Refused::NoIdentity { .. } => StatusCode::UNAUTHORIZED,
                _ => StatusCode::TOO_MANY_REQUESTS,
            };
            spoken(told.named(refusal.rule.name()).answer(status), refusal.speaker())
        }
    }
}

/// With headers of what the tightest limit says.
fn spoken(mut reply: Reply, speaker: Option<Speaker<'_>>) -> Reply {
    if let Some(speaker) = speaker {
        tollgate::http::tell(&Answers::default(), speaker, reply.headers_mut());
    }
    reply
}

async fn reset(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let check = Check::read(&ask::object(body)?, &[])?;
    match door.gate.reset(&charge(&check)).await {
        Ok(()) => Ok(json(StatusCode::OK, &json!({ "reset": true }))),
        Err(error) => Ok(wrong(StatusCode::SERVICE_UNAVAILABLE, "STORE", &error.to_string())),
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
    let one = decide_one(door, Op::Check, &check, check.cost).await?;
    if !one.decision.allowed() {
        return Ok(one.told(&check, StatusCode::TOO_MANY_REQUESTS));
    }
    let reserved = Reserved { check: check.clone(), charged_at: one.at };
    let thing = Thing::Reservation(Box::new(reserved));
    let Some(id) = door.held.put(thing, deadline, door.now_us()) else {
        return Ok(too_many_held());
    };
    let told = Told::of(&check.limit, &one.decision, one.is_degraded).reserved(id);
    Ok(one.headed(&check, told.answer(StatusCode::OK)))
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
    let one = decide_one(door, op, &check, cost).await?;
    Ok(Told::of(&check.limit, &one.decision, one.is_degraded).answer(StatusCode::OK))
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
    door.note(&name, &key, permit.is_some());
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
