//! May this pass? Asked with a rate of the caller's own, with several, or with a request for the policy.

use http::StatusCode;
use ratekeeper::gate::{Admission, Decided, Receipt, Refused, Speaker};
use ratekeeper::policy::ResponseSettings;
use ratekeeper::{Charge, Cost, Decision, Op, Verdict};

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
    if let [check] = checks {
        let one = decide_one(door, op, check, check.cost).await?;
        return Ok(one.told(check, status(op, one.decision.allowed())));
    }
    Box::pin(check_several(door, checks, op)).await
}

/// Whoever only looks is not refused.
fn status(op: Op, is_allowed: bool) -> StatusCode {
    match is_allowed || op == Op::Peek {
        true => StatusCode::OK,
        false => StatusCode::TOO_MANY_REQUESTS,
    }
}

async fn check_several(door: &HttpApi, checks: &[Check], op: Op) -> Result<Reply, String> {
    let charges: Vec<_> = checks.iter().map(charge).collect();
    let decided = door.gate.apply(op, &charges).await.map_err(|error| error.to_string())?;
    let (verdict, is_degraded) = (&decided.verdict, decided.is_degraded());
    note_all(door, op, checks, verdict);
    let each = checks.iter().zip(verdict.decisions());
    let each = each.map(|(check, decision)| Told::of(&check.limit, decision, is_degraded));
    let by = &checks[verdict.decided_by()].limit;
    let told = Told::of(by, verdict, is_degraded).each(each.collect());
    let mut answer = told.answer(status(op, verdict.allowed()));
    reply::tell(by, verdict, answer.headers_mut());
    Ok(answer)
}

/// Of those that were refused, the one that refused speaks for all: the others were not charged.
fn note_all(door: &HttpApi, op: Op, checks: &[Check], verdict: &Verdict) {
    match verdict.allowed() {
        true => checks.iter().for_each(|check| door.note(op, check, verdict)),
        false => door.note(op, &checks[verdict.decided_by()], verdict),
    }
}

/// What became of one limit.
pub(super) struct One {
    pub(super) decision: Decision,
    pub(super) receipt: Receipt,
}

pub(super) async fn decide_one(
    door: &HttpApi,
    op: Op,
    check: &Check,
    cost: Cost,
) -> Result<One, String> {
    let one = ask_one(door, op, check, cost).await?;
    door.note(op, check, &one.decision);
    Ok(one)
}

async fn ask_one(door: &HttpApi, op: Op, check: &Check, cost: Cost) -> Result<One, String> {
    let charge = Charge::new(&check.limit, &check.key).cost(cost);
    if let Some(store) = door.gate.memory() {
        let at = door.gate.now();
        let decision = door.gate.timed(|| store.apply_one(op, &charge, at));
        return Ok(One { decision, receipt: Receipt::of_store(at) });
    }
    // In a box: what waits for a store is large, and would be moved about with every question.
    let decided = Box::pin(door.gate.apply(op, &[charge])).await;
    let Decided { verdict, receipt } = decided.map_err(|error| error.to_string())?;
    Ok(One { decision: *verdict, receipt })
}

impl One {
    pub(super) fn is_degraded(&self) -> bool {
        self.receipt.is_degraded()
    }

    pub(super) fn told(&self, check: &Check, status: StatusCode) -> Reply {
        let told = Told::of(&check.limit, &self.decision, self.is_degraded());
        self.headed(check, told.answer(status))
    }

    /// With headers of what the limit says.
    pub(super) fn headed(&self, check: &Check, mut reply: Reply) -> Reply {
        reply::tell(&check.limit, &self.decision, reply.headers_mut());
        reply
    }
}

fn charge(check: &Check) -> Charge<'_> {
    Charge::new(&check.limit, &check.key).cost(check.cost)
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
            let speaker = admitted.speaker();
            let told = match speaker {
                Some(speaker) => Told::of(speaker.limit, speaker.decision, admitted.is_degraded),
                None => Told::because(true, "no limit applies".into()),
            };
            spoken(told.delayed(admitted.delay).answer(StatusCode::OK), speaker)
        }
        Admission::Refused(refusal) => {
            let told = match (&refusal.why, refusal.speaker()) {
                (_, Some(speaker)) => {
                    Told::of(speaker.limit, speaker.decision, refusal.is_degraded)
                }
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
        ratekeeper::http::tell(&ResponseSettings::default(), speaker, reply.headers_mut());
    }
    reply
}
