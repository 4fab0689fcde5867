//! Reservations and permits, which callers hold until they give them back or their time is over.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value, json};
use tollgate::{Cost, Op, WhenDown};

use super::HttpDoor;
use super::ask::{self, Check};
use super::check::decide_one;
use super::held::{Reserved, Thing};
use super::limits::checked;
use super::reply::{Reply, Told, json, wrong};

/// How long they are held unless the caller says otherwise, and at most.
const HELD_FOR: Duration = Duration::from_secs(60);
const HELD_FOR_MAX: Duration = Duration::from_secs(3_600);

/// How long something is to be held, from `valid_ms`.
fn deadline_us(door: &HttpDoor, object: &Map<String, Value>) -> Result<u64, String> {
    let span = ask::number(object, "valid_ms")?.map_or(HELD_FOR, Duration::from_millis);
    if span.is_zero() || span > HELD_FOR_MAX {
        return Err(format!("\"valid_ms\" is 1 to {}", HELD_FOR_MAX.as_millis()));
    }
    Ok(door.now_us() + u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

pub(super) async fn reserve(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
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
        // Nobody could settle it.
        let refund = Op::Refund { charged_at: one.at };
        decide_one(door, refund, &check, check.cost).await?;
        return Ok(too_many_held());
    };
    let told = Told::of(&check.limit, &one.decision, one.is_degraded).reserved(id);
    Ok(one.headed(&check, told.answer(StatusCode::OK)))
}

fn too_many_held() -> Reply {
    let message = "too many reservations and permits are held; settle or release some";
    wrong(StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_HELD", message)
}

pub(super) async fn settle(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["reservation", "cost"])?;
    let id = ask::text(&object, "reservation")?.ok_or("the reservation's id is missing")?;
    let actual =
        ask::number(&object, "cost")?.ok_or("the real cost is missing; 0 gives all back")?;
    let is_reservation = |thing: &Thing| matches!(thing, Thing::Reservation(_));
    let taken = door.held.take(id, door.now_us(), is_reservation);
    let Some(Thing::Reservation(reserved)) = taken else {
        let message = "there is no such reservation: it was settled, or its time is over and its charge stays";
        return Ok(wrong(StatusCode::GONE, "GONE", message));
    };
    let Reserved { check, charged_at } = *reserved;
    let correction = Op::correction(check.cost, actual, charged_at);
    let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
    let one = decide_one(door, op, &check, cost).await?;
    Ok(Told::of(&check.limit, &one.decision, one.is_degraded).answer(StatusCode::OK))
}

pub(super) async fn acquire(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["key", "max", "name", "valid_ms"])?;
    let key = ask::key(&object)?;
    let max = ask::number(&object, "max")?.filter(|max| *max > 0);
    let max = max.ok_or("\"max\" is missing: how many may be in flight, at least 1")?;
    let deadline = deadline_us(door, &object)?;
    let name = checked(ask::text(&object, "name")?.unwrap_or("api"))?;
    let permit = door.gate.acquire(name, key.as_bytes(), max, WhenDown::Local).await;
    door.tell(name, &key, permit.is_some());
    let Some(permit) = permit else {
        return Ok(json(StatusCode::TOO_MANY_REQUESTS, &json!({ "allowed": false, "max": max })));
    };
    let Some(id) = door.held.put(Thing::Permit(permit), deadline, door.now_us()) else {
        return Ok(too_many_held());
    };
    Ok(json(StatusCode::OK, &json!({ "allowed": true, "max": max, "permit": id })))
}

pub(super) fn release(door: &HttpDoor, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["permit"])?;
    let id = ask::text(&object, "permit")?.ok_or("the permit's id is missing")?;
    match door.held.take(id, door.now_us(), |thing| matches!(thing, Thing::Permit(_))) {
        Some(_) => Ok(json(StatusCode::OK, &json!({ "released": true }))),
        None => {
            let message = "there is no such permit: it was released, or its time is over";
            Ok(wrong(StatusCode::GONE, "GONE", message))
        }
    }
}
