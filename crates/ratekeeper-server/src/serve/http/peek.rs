//! What the policy would say of a request, without charging it.

use http::StatusCode;
use ratekeeper::Decision;
use ratekeeper::policy::{Amount, AppliedLimit, Resolution};

use super::HttpApi;
use super::ask::Described;
use super::reply::{Reply, Told};

pub(super) async fn answer(door: &HttpApi, described: &Described) -> Reply {
    let live = door.gate.policy().active();
    let resolved = match live.policy().resolve(&described.request(door.now_us())) {
        Resolution::Charged(applied) => Ok(applied),
        Resolution::Exempt(_) => Err((true, "exempt".to_string())),
        Resolution::MissingIdentity { missing, .. } => {
            Err((false, format!("{}: {}", missing.identity, missing.why)))
        }
    };
    match resolved {
        Ok(applied) => looked_at(door, &applied).await,
        Err((is_allowed, why)) => Told::because(is_allowed, why).answer(StatusCode::OK),
    }
}

/// The tightest of the rates that are enforced speaks for all. How many are in flight is left out.
async fn looked_at(door: &HttpApi, applied: &[AppliedLimit]) -> Reply {
    let (mut each, mut speaker) = (Vec::new(), None::<(Decision, Told<'_>)>);
    for one in applied.iter().filter(|one| one.is_enforced) {
        let (Amount::Rate(limit), Some(applied)) = (one.amount(), door.gate.peek(one).await) else {
            continue;
        };
        let told = Told::of(limit, &applied, applied.is_degraded());
        if speaker.as_ref().is_none_or(|(known, _)| applied.strictness() > known.strictness()) {
            speaker = Some((**applied.verdict(), told.clone()));
        }
        each.push(told);
    }
    let told = match speaker {
        None => Told::because(true, "no rate applies".into()),
        Some((_, told)) if each.len() > 1 => told.each(each),
        Some((_, told)) => told,
    };
    told.answer(StatusCode::OK)
}
