//! The limits of a request, each charged in its turn: those that are enforced all or none, then the
//! others.

use smallvec::SmallVec;
use tollgate::gate::Decided;
use tollgate::policy::envoy::{Amount, Descriptor, DescriptorLimit, Matched, Unit};
use tollgate::{Charge, ChargesError, Cost, Decision, Gate, Limit, Op, Wait};

use super::Invalid;
use super::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::trace::About;

/// One limit of one descriptor.
pub(super) struct Turn<'m> {
    /// Which descriptor.
    pub(super) descriptor: usize,
    pub(super) limit: &'m DescriptorLimit,
    pub(super) is_shadow: bool,
    /// What a store said, if one had to be asked.
    pub(super) decision: Option<Decision>,
    /// Was that said without the store, which does not answer?
    pub(super) is_degraded: bool,
    pub(super) key: &'m str,
    hits: Hits,
}

pub(super) type Turns<'m> = SmallVec<[Turn<'m>; 2]>;

/// What a descriptor wants of its limits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hits {
    Take(Cost),
    Look,
    GiveBack(Cost),
}

impl Descriptor for RateLimitDescriptor {
    fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()))
    }

    fn limit(&self) -> Option<(u32, Unit)> {
        let limit = self.limit.as_ref()?;
        Some((limit.requests_per_unit, Unit::from_number(limit.unit)?))
    }
}

/// What has to be there for a decision.
pub(super) fn check_request(request: &RateLimitRequest) -> Result<(), Invalid> {
    if request.domain.is_empty() {
        return Err(Invalid("the domain is empty; set it in Envoy's rate limit filter".into()));
    }
    if request.descriptors.is_empty() {
        return Err(Invalid("there are no descriptors, so there is nothing to decide".into()));
    }
    for (i, descriptor) in request.descriptors.iter().enumerate() {
        if let Some(limit) = &descriptor.limit
            && Unit::from_number(limit.unit).is_none()
        {
            let (number, unit) = (i + 1, limit.unit);
            return Err(Invalid(format!("descriptor {number}: its limit has no unit ({unit})")));
        }
    }
    Ok(())
}

/// Every limit that a request has to do with, in the order of its descriptors.
pub(super) fn of<'m>(
    request: &RateLimitRequest,
    matched: &'m [Option<Matched<'_>>],
    is_shadow: bool,
) -> Turns<'m> {
    let mut turns = Turns::new();
    for (i, (matched, descriptor)) in matched.iter().zip(&request.descriptors).enumerate() {
        let Some(matched) = matched else { continue };
        let hits = hits(request, descriptor);
        turns.extend(matched.limits().iter().map(|limit| Turn {
            descriptor: i,
            limit,
            is_shadow: is_shadow || limit.is_shadow(),
            decision: None,
            is_degraded: false,
            key: matched.key(),
            hits,
        }));
    }
    turns
}

/// A request's 0 is the protocol's way of not saying it; a descriptor says what it means.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
    match Cost::new(hits) {
        None => Hits::Look,
        Some(cost) if descriptor.is_negative_hits => Hits::GiveBack(cost),
        Some(cost) => Hits::Take(cost),
    }
}

impl<'m> Turn<'m> {
    /// Does it want more than the limit has?
    pub(super) fn is_over_limit(&self) -> bool {
        if matches!(self.hits, Hits::GiveBack(_)) {
            return false;
        }
        match self.limit.amount() {
            Amount::Nothing(_) => true,
            _ => self.decision.is_some_and(|decision| !decision.allowed()),
        }
    }

    /// How close to refusing it is, or how long it does.
    pub(super) fn strictness(&self) -> (Wait, std::cmp::Reverse<u64>) {
        match (self.limit.amount(), &self.decision) {
            (Amount::Nothing(_), _) => (Wait::Never, std::cmp::Reverse(0)),
            (_, Some(decision)) => decision.strictness(),
            (_, None) => (Wait::None, std::cmp::Reverse(u64::MAX)),
        }
    }

    fn rate(&self) -> Option<&'m Limit> {
        match self.limit.amount() {
            Amount::Rate(limit) => Some(limit),
            _ => None,
        }
    }

    pub(super) fn is_take(&self) -> bool {
        matches!(self.hits, Hits::Take(_))
    }
}

/// Asks all limits. Nothing is charged unless all that are enforced have enough.
pub(super) async fn decide(gate: &Gate, turns: &mut [Turn<'_>]) -> Result<(), ChargesError> {
    let is_enforced = |turn: &Turn<'_>| turn.is_take() && !turn.is_shadow;
    let is_closed =
        turns.iter().any(|turn| is_enforced(turn) && turn.rate().is_none() && turn.is_over_limit());
    let op = if is_closed { Op::Peek } else { Op::Check };
    together(gate, op, turns, is_enforced).await?;
    let passes = !turns.iter().any(|turn| is_enforced(turn) && turn.is_over_limit());
    for turn in turns.iter_mut().filter(|turn| !is_enforced(turn)) {
        let op = match turn.hits {
            Hits::GiveBack(_) if passes => Op::Refund { charged_at: gate.now() },
            Hits::Take(_) if passes => Op::Check,
            _ => Op::Peek,
        };
        together(gate, op, std::slice::from_mut(turn), |_| true).await?;
    }
    Ok(())
}

/// Does this with all that are chosen, in one step.
async fn together(
    gate: &Gate,
    op: Op,
    turns: &mut [Turn<'_>],
    is_chosen: impl Fn(&Turn<'_>) -> bool,
) -> Result<(), ChargesError> {
    let mut charges: SmallVec<[_; 4]> = SmallVec::new();
    let mut chosen: SmallVec<[usize; 4]> = SmallVec::new();
    for (i, turn) in turns.iter().enumerate().filter(|(_, turn)| is_chosen(turn)) {
        let Some(limit) = turn.rate() else { continue };
        let cost = match turn.hits {
            Hits::Take(cost) | Hits::GiveBack(cost) => cost,
            Hits::Look => Cost::ONE,
        };
        charges.push(Charge::new(limit, turn.key).cost(cost));
        chosen.push(i);
    }
    if charges.is_empty() {
        return Ok(());
    }
    if let (Some(store), [charge]) = (gate.memory(), &charges[..]) {
        turns[chosen[0]].decision = Some(store.apply_one(op, charge, gate.now()));
        return Ok(());
    }
    let Decided { verdict, is_degraded } = match gate.memory() {
        Some(store) => {
            let verdict = store.apply_now(op, &charges, gate.now())?;
            Decided { verdict, is_degraded: false }
        }
        // In a box: what waits for a store is large, and would be moved about with every request.
        None => Box::pin(apply_elsewhere(gate, op, &charges)).await?,
    };
    for (i, decision) in chosen.into_iter().zip(verdict.decisions()) {
        turns[i].decision = Some(*decision);
        turns[i].is_degraded = is_degraded;
    }
    Ok(())
}

async fn apply_elsewhere(
    gate: &Gate,
    op: Op,
    charges: &[Charge<'_>],
) -> Result<Decided, ChargesError> {
    let when_down = gate.live().policy().store().when_down;
    let charges: SmallVec<[_; 4]> = charges.iter().map(|charge| (*charge, when_down)).collect();
    gate.apply(op, &charges).await
}

/// Which limit speaks for all of them, and whether a store was missing.
pub(super) fn about(turns: &[Turn<'_>]) -> About {
    let enforced = turns.iter().filter(|turn| !turn.is_shadow);
    let speaker = enforced.max_by_key(|turn| turn.strictness());
    About {
        limit: speaker.map(|turn| turn.limit.label().to_string()),
        is_degraded: turns.iter().any(|turn| turn.is_degraded),
    }
}
