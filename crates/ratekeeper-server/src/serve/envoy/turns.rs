//! The limits of a request, each charged in its turn: those that are enforced all or none, then the
//! others.

use ratekeeper::policy::envoy::{
    Descriptor, DescriptorLimit, DescriptorQuota, MatchedLimits, Unit,
};
use ratekeeper::{
    CHARGES_MAX, Charge, ChargesError, Cost, Decision, Limit, Op, PolicyLimiter, Wait,
};
use smallvec::SmallVec;

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

/// The indices of some turns.
type Indices = SmallVec<[usize; 4]>;

/// The most limits of a request: more than anybody configures, and a bound on what one may cost.
const TURNS_MAX: usize = CHARGES_MAX;

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
    // Before any of them is looked up: a client can put tens of thousands into one message.
    if request.descriptors.len() > TURNS_MAX {
        let count = request.descriptors.len();
        return Err(Invalid(format!("the request has {count} descriptors; at most {TURNS_MAX}")));
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

pub(super) fn check_count(turns: &[Turn<'_>]) -> Result<(), Invalid> {
    match turns.len() {
        count if count > TURNS_MAX => {
            Err(Invalid(format!("the request has {count} limits; at most {TURNS_MAX}")))
        }
        _ => Ok(()),
    }
}

/// Every limit that a request has to do with, in the order of its descriptors.
pub(super) fn of<'m>(
    request: &RateLimitRequest,
    matched: &'m [Option<MatchedLimits<'_>>],
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
        match self.limit.quota() {
            DescriptorQuota::DenyAll(_) => true,
            _ => self.decision.is_some_and(|decision| !decision.allowed()),
        }
    }

    /// How close to refusing it is, or how long it does.
    pub(super) fn strictness(&self) -> (Wait, std::cmp::Reverse<u64>) {
        match (self.limit.quota(), &self.decision) {
            (DescriptorQuota::DenyAll(_), _) => (Wait::Never, std::cmp::Reverse(0)),
            (_, Some(decision)) => decision.strictness(),
            (_, None) => (Wait::None, std::cmp::Reverse(u64::MAX)),
        }
    }

    fn rate(&self) -> Option<&'m Limit> {
        match self.limit.quota() {
            DescriptorQuota::Rate(limit) => Some(limit),
            _ => None,
        }
    }

    /// What it asks of a store, if it has to ask one.
    pub(super) fn charge(&self) -> Option<Charge<'m>> {
        let cost = match self.hits {
            Hits::Take(cost) | Hits::GiveBack(cost) => cost,
            Hits::Look => Cost::ONE,
        };
        self.rate().map(|limit| Charge::new(limit, self.key).cost(cost))
    }

    pub(super) fn is_take(&self) -> bool {
        matches!(self.hits, Hits::Take(_))
    }

    /// Must it fit for the request to pass?
    fn is_enforced(&self) -> bool {
        self.is_take() && !self.is_shadow
    }

    /// Does it refuse whatever was used?
    fn denies_all(&self) -> bool {
        matches!(self.limit.quota(), DescriptorQuota::DenyAll(_))
    }
}

/// Decides by all limits. Nothing is charged unless all that are enforced allow it.
pub(super) async fn decide(gate: &PolicyLimiter, turns: &mut [Turn<'_>]) -> Result<(), Invalid> {
    check_count(turns)?;
    let (enforced, others): (Indices, Indices) =
        (0..turns.len()).partition(|index| turns[*index].is_enforced());
    let denies_all = enforced.iter().any(|index| turns[*index].denies_all());
    let op = if denies_all { Op::Peek } else { Op::Check };
    let passes = apply(gate, op, turns, &enforced).await? && !denies_all;
    for index in others {
        let op = match turns[index].hits {
            Hits::GiveBack(_) if passes => Op::refund_latest(),
            Hits::Take(_) if passes => Op::Check,
            _ => Op::Peek,
        };
        apply(gate, op, turns, &[index]).await?;
    }
    Ok(())
}

/// Applies `op` to the rates among these limits, all of them or none. Returns whether all allow it.
async fn apply(
    gate: &PolicyLimiter,
    op: Op,
    turns: &mut [Turn<'_>],
    indices: &[usize],
) -> Result<bool, ChargesError> {
    let rate = |index: &usize| Some((*index, turns[*index].charge()?));
    let (indices, charges): (Indices, SmallVec<[_; 4]>) = indices.iter().filter_map(rate).unzip();
    if charges.is_empty() {
        return Ok(true);
    }
    let applied = gate.engine().apply(op, &charges).await?;
    for (index, decision) in indices.into_iter().zip(applied.decisions()) {
        turns[index].decision = Some(*decision);
        turns[index].is_degraded = applied.is_degraded();
    }
    Ok(applied.allowed())
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
