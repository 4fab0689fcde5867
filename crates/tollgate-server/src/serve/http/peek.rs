//! What the policy would say of a request, without charging it.

use http::StatusCode;
use serde_json::{Map, Value};
use tollgate::Decision;
use tollgate::policy::{Amount, Applied, Resolution};

use super::HttpDoor;
use super::ask::Described;
use super::reply::{self, Reply, decided};

pub(super) async fn answer(door: &HttpDoor, described: &Described) -> Reply {
    let live = door.gate.live();
    let resolved = match live.policy().resolve(&described.request(door.now_us())) {
        Resolution::Charged(applied) => Ok(applied),
        Resolution::Exempt(_) => Err(reply::undecided(true, "exempt")),
        Resolution::Refused { missing, .. } => {
            let why = format!("{}: {}", missing.identity, missing.why);
            Err(reply::undecided(false, &why))
        }
    };
    let body = match resolved {
        Ok(applied) => looked_at(door, &applied).await,
        Err(body) => body,
    };
    decided(body, None, StatusCode::OK)
}

/// The tightest of the rates that are enforced speaks for all. How many are in flight is left out.
async fn looked_at(door: &HttpDoor, applied: &[Applied]) -> Map<String, Value> {
    let (mut each, mut speaker, mut is_degraded) = (Vec::new(), None::<Decision>, false);
    let mut told = reply::undecided(true, "no rate applies");
    for one in applied.iter().filter(|one| one.is_enforced) {
        let (Amount::Rate(limit), Some((decision, is_store))) =
            (one.amount(), door.gate.peek(one).await)
        else {
            continue;
        };
        is_degraded |= !is_store;
        let fields = reply::decision(limit, &decision);
        if speaker.is_none_or(|speaker| decision.strictness() > speaker.strictness()) {
            (speaker, told) = (Some(decision), fields.clone());
        }
        each.push(Value::Object(fields));
    }
    if each.len() > 1 {
        told.insert("decisions".into(), each.into());
    }
    told.insert("degraded".into(), is_degraded.into());
    told
}
