//! Reservations and permits, which callers hold until they give them back or their time is over.
//!
//! A permit over a shared store is held there, and its id says all that another server needs to release it.

use std::time::Duration;

use http::StatusCode;
use ratekeeper::HeldPermit;
use ratekeeper::{Cost, Op};
use serde_json::{Map, Value, json};

use super::HttpApi;
use super::ask::{self, Check};
use super::check::{apply, with_limit_headers};
use super::held::{Reserved, Thing};
use super::permit_id::StoredPermit;
use super::reply::{Reply, Told, json, wrong};
use crate::serve::caller_limit::{DEFAULT_NAME, checked_name};

/// How long they are held unless the caller says otherwise, and at most.
const HELD_FOR: Duration = Duration::from_secs(60);
const HELD_FOR_MAX: Duration = Duration::from_secs(3_600);

/// How long something is to be held, from `valid_ms`.
fn valid(object: &Map<String, Value>) -> Result<Duration, String> {
    let span = ask::number(object, "valid_ms")?.map_or(HELD_FOR, Duration::from_millis);
    match span.is_zero() || span > HELD_FOR_MAX {
        true => Err(format!("\"valid_ms\" is 1 to {}", HELD_FOR_MAX.as_millis())),
        false => Ok(span),
    }
}

fn deadline_us(door: &HttpApi, valid: Duration) -> u64 {
    door.now_us() + u64::try_from(valid.as_micros()).unwrap_or(u64::MAX)
}

pub(super) async fn reserve(door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    let check = Check::read(&object, &["valid_ms"])?;
    let deadline = deadline_us(door, valid(&object)?);
    let applied = apply(door, Op::Check, std::slice::from_ref(&check)).await?;
    let told = Told::of(&check.limit, &applied, applied.is_degraded());
    if !applied.allowed() {
        let denied = told.answer(StatusCode::TOO_MANY_REQUESTS);
        return Ok(with_limit_headers(denied, &check.limit, &applied));
    }
    let receipt = applied.receipt();
    let reserved = Reserved { check: check.clone(), receipt: receipt.clone() };
    let thing = Thing::Reservation(Box::new(reserved));
    let Some(id) = door.held.put(thing, deadline, door.now_us()) else {
        // It could never be settled.
        let refund = Op::Refund { charged_at: receipt.at() };
        let _ = door.gate.engine().correct(refund, &check.charge(), &receipt).await;
        return Ok(too_many_held());
    };
    let reply = told.reserved(id).answer(StatusCode::OK);
    Ok(with_limit_headers(reply, &check.limit, &applied))
}

fn too_many_held() -> Reply {
    let message = "too many reservations and permits are held; settle or release some";
    wrong(StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_HELD", message)
}

pub(super) async fn settle(door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["reservation", "cost"])?;
    let id = ask::text(&object, "reservation")?.ok_or("the reservation's id is missing")?;
    let actual =
        ask::number(&object, "cost")?.ok_or("the real cost is missing; 0 gives all back")?;
    let is_reservation = |thing: &Thing| matches!(thing, Thing::Reservation(_));
    let taken = door.held.take(id, door.now_us(), is_reservation);
    let Some((deadline_us, Thing::Reservation(reserved))) = taken else {
        let message = "there is no such reservation: it was settled, or its time is over and its charge stays";
        return Ok(wrong(StatusCode::GONE, "GONE", message));
    };
    let Reserved { check, receipt } = &*reserved;
    let correction = Op::correction(check.cost, actual, receipt.at());
    let (op, cost) = correction.unwrap_or((Op::Peek, Cost::ONE));
    match door.gate.engine().correct(op, &check.charge().cost(cost), receipt).await {
        Ok(applied) => {
            door.note(op, check, &applied);
            let told = Told::of(&check.limit, &applied, applied.is_degraded());
            Ok(told.answer(StatusCode::OK))
        }
        Err(error) => {
            door.held.put_back(id, Thing::Reservation(reserved), deadline_us);
            let message = format!(
                "the reservation could not be settled; try again, it is still held: {error}"
            );
            Ok(wrong(StatusCode::SERVICE_UNAVAILABLE, "STORE", &message))
        }
    }
}

pub(super) async fn acquire(door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["key", "max", "name", "valid_ms"])?;
    let key = ask::key(&object)?;
    let max = ask::number(&object, "max")?.filter(|max| *max > 0);
    let max = max.ok_or("\"max\" is missing: how many may be in flight, at least 1")?;
    let valid = valid(&object)?;
    let name = checked_name(ask::text(&object, "name")?.unwrap_or(DEFAULT_NAME))?;
    let permit = door.gate.engine().hold(name, key.as_bytes(), max, valid).await;
    door.tell(name, &key, permit.is_some());
    let id = match permit {
        None => {
            let refused = json!({ "allowed": false, "max": max });
            return Ok(json(StatusCode::TOO_MANY_REQUESTS, &refused));
        }
        Some(HeldPermit::InStore(id)) => Some(StoredPermit { id, name, key }.to_string()),
        Some(HeldPermit::InProcess(permit)) => {
            let deadline = deadline_us(door, valid);
            door.held.put(Thing::Permit(permit), deadline, door.now_us())
        }
    };
    Ok(match id {
        Some(id) => json(StatusCode::OK, &json!({ "allowed": true, "max": max, "permit": id })),
        None => too_many_held(),
    })
}

pub(super) async fn release(door: &HttpApi, body: &[u8]) -> Result<Reply, String> {
    let object = ask::object(body)?;
    ask::only(&object, &["permit"])?;
    let id = ask::text(&object, "permit")?.ok_or("the permit's id is missing")?;
    let was_held = match StoredPermit::read(id)? {
        Some(StoredPermit { id, name, key }) => {
            match door.gate.engine().release(name, key.as_bytes(), id).await {
                Ok(was_held) => was_held,
                Err(error) => return Ok(not_released(&error)),
            }
        }
        None => {
            let is_permit = |thing: &Thing| matches!(thing, Thing::Permit(_));
            door.held.take(id, door.now_us(), is_permit).is_some()
        }
    };
    Ok(match was_held {
        true => json(StatusCode::OK, &json!({ "released": true })),
        false => {
            let message = "there is no such permit: it was released before, its time is over, or another \
                 server gave it while the store was unavailable; nothing has changed";
            wrong(StatusCode::GONE, "GONE", message)
        }
    })
}

fn not_released(error: &ratekeeper::StoreError) -> Reply {
    let message =
        format!("the permit could not be released, and is held until its time is over: {error}");
    wrong(StatusCode::SERVICE_UNAVAILABLE, "STORE", &message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use ratekeeper::policy::NoSources;
    use ratekeeper::{Policy, PolicyLimiter};

    use super::super::held::HELD_MAX;
    use super::*;
    use crate::serve::meters::Meters;

    async fn told(reply: Result<Reply, String>) -> (u16, Value) {
        let (head, body) = reply.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), serde_json::from_slice(&body).unwrap())
    }

    /// As many names and keys as there are permits.
    async fn flood(door: &HttpApi, n: usize) -> (u16, Value) {
        let body = json!({"key": format!("k{n}"), "name": format!("n{}", n % 1_000), "max": 1});
        told(acquire(door, body.to_string().as_bytes()).await).await
    }

    #[tokio::test]
    async fn a_flood_of_permits_is_refused_at_the_cap() {
        let policy = Policy::parse("none", "version: 1\nlimits: []\n", &NoSources).unwrap();
        let meters = Meters::new(Arc::default());
        let door = HttpApi::new(PolicyLimiter::new(policy).unwrap(), Arc::default(), None, meters);
        let (_, first) = flood(&door, 0).await;
        for n in 1..HELD_MAX {
            let (status, why) = flood(&door, n).await;
            assert_eq!(status, 200, "{n}: {why}");
        }
        for _ in 0..2 {
            // Not 429: what could not be kept is not held either.
            let (status, why) = flood(&door, HELD_MAX).await;
            assert_eq!((status, &why["code"]), (503, &json!("TOO_MANY_HELD")));
        }
        let body = json!({"permit": first["permit"]}).to_string();
        assert_eq!(told(release(&door, body.as_bytes()).await).await.0, 200);
        assert_eq!(flood(&door, HELD_MAX).await.0, 200, "there is room again");
    }
}
