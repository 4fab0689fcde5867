//! May this pass? Asked with a rate of the caller's own, with several, or with a request for the policy.

use http::StatusCode;
use ratekeeper::policy::ResponseSettings;
use ratekeeper::{Admission, Applied, BindingLimit, Charge, Decision, Limit, Op, RefusalReason};
use smallvec::SmallVec;

use super::HttpApi;
use super::ask::{Check, Described, Question};
use super::peek;
use super::reply::{self, Reply, Told};

pub(super) async fn answer(door: &HttpApi, body: &[u8], op: Op) -> Result<Reply, String> {
    match Question::read(body)? {
        Question::Checks(checks) => check_all(door, &checks, op).await,
        Question::Request(described) if op == Op::Peek => {
            Ok(Box::pin(peek::answer(door, &described)).await)
        }
        Question::Request(described) => Ok(Box::pin(judge(door, &described)).await),
    }
}

async fn check_all(door: &HttpApi, checks: &[Check], op: Op) -> Result<Reply, String> {
    let applied = apply(door, op, checks).await?;
    let binding = &checks[applied.binding()].limit;
    let mut told = Told::of(binding, &applied, applied.is_degraded());
    if checks.len() > 1 {
        let each = checks.iter().zip(applied.decisions());
        let each =
            each.map(|(check, decision)| Told::of(&check.limit, decision, applied.is_degraded()));
        told = told.each(each.collect());
    }
    Ok(with_limit_headers(told.answer(status(op, applied.allowed())), binding, &applied))
}

/// A peek is never refused.
fn status(op: Op, is_allowed: bool) -> StatusCode {
    match is_allowed || op == Op::Peek {
        true => StatusCode::OK,
        false => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Applies `op` to all checks or to none of them, and counts the decisions.
pub(super) async fn apply(door: &HttpApi, op: Op, checks: &[Check]) -> Result<Applied, String> {
    let charges: SmallVec<[Charge<'_>; 4]> = checks.iter().map(Check::charge).collect();
    let applied =
        door.gate.engine().apply(op, &charges).await.map_err(|error| error.to_string())?;
    match applied.allowed() {
        true => checks.iter().for_each(|check| door.note(op, check, &applied)),
        // The others were not charged.
        false => door.note(op, &checks[applied.binding()], &applied),
    }
    Ok(applied)
}

/// Adds the headers of a limit to a response.
pub(super) fn with_limit_headers(mut reply: Reply, limit: &Limit, decision: &Decision) -> Reply {
    reply::tell(limit, decision, reply.headers_mut());
    reply
}

/// A request that the policy judges.
async fn judge(door: &HttpApi, described: &Described) -> Reply {
    let deciding = door.gate.decide(&described.request(door.now_us()));
    judged(&deciding.await)
}

fn judged(admission: &Admission) -> Reply {
    match admission {
        Admission::Exempt => Told::because(true, "exempt".into()).answer(StatusCode::OK),
        Admission::Admitted(admitted) => {
            let speaker = admitted.binding();
            let told = match speaker {
                Some(speaker) => Told::of(speaker.limit, speaker.decision, admitted.is_degraded),
                None => Told::because(true, "no limit applies".into()),
            };
            spoken(told.delayed(admitted.delay).answer(StatusCode::OK), speaker)
        }
        Admission::Refused(refusal) => {
            let told = match (&refusal.reason, refusal.binding()) {
                (_, Some(speaker)) => {
                    Told::of(speaker.limit, speaker.decision, refusal.is_degraded)
                }
                (RefusalReason::MissingIdentity { identity, why }, _) => {
                    Told::because(false, format!("{identity}: {why}"))
                }
                _ => Told::because(false, "too many at a time".into()),
            };
            let status = match refusal.reason {
                RefusalReason::MissingIdentity { .. } => StatusCode::UNAUTHORIZED,
                _ => StatusCode::TOO_MANY_REQUESTS,
            };
            spoken(told.named(refusal.rule.name()).answer(status), refusal.binding())
        }
    }
}

/// With headers of what the tightest limit says.
fn spoken(mut reply: Reply, speaker: Option<BindingLimit<'_>>) -> Reply {
    if let Some(speaker) = speaker {
        ratekeeper::tower::set_limit_headers(
            &ResponseSettings::default(),
            speaker,
            reply.headers_mut(),
        );
    }
    reply
}
