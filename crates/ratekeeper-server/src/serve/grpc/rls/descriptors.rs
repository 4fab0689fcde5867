//! The limits of a request's descriptors: resolves and applies them. Those that are enforced are charged
//! all or none, then the others. Reports of what was used already are charged in any case.

use ratekeeper::policy::envoy::{
    Descriptor, DescriptorLimit, DescriptorQuota, MatchedLimits, Unit,
};
use ratekeeper::{
    CHARGES_MAX, Charge, ChargeKind, ChargesError, Cost, Decision, DecisionInputs, Limit, Op,
    PolicyLimiter, Wait,
};
use smallvec::SmallVec;

use super::RateLimitRequestError;
use super::proto::{RateLimitDescriptor, RateLimitRequest};
use super::quota::Enforced;
use crate::trace::DecisionInfo;

/// One limit of one descriptor, and its decision.
#[derive(Clone)]
pub(super) struct DescriptorCheck<'m> {
    /// The index of the descriptor.
    pub(super) descriptor: usize,
    pub(super) limit: &'m DescriptorLimit,
    pub(super) is_shadow: bool,
    /// Whether the request is denied only if all its descriptors in quota mode are over their limits.
    pub(super) is_quota: bool,
    /// The decision, if the limit is a rate.
    pub(super) decision: Option<Decision>,
    /// Whether the decision was made without the store, because it is unavailable.
    pub(super) is_degraded: bool,
    pub(super) key: &'m str,
    /// What the decision was computed from, if it is a denial and binding.
    pub(super) inputs: Option<Box<DecisionInputs>>,
    hits: Hits,
}

pub(super) type DescriptorChecks<'m> = SmallVec<[DescriptorCheck<'m>; 2]>;

/// The indices of some checks.
pub(super) type Indices = SmallVec<[usize; 4]>;

/// Modes that apply to all limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GlobalModes {
    /// Nothing is denied.
    pub(crate) is_shadow: bool,
    /// All descriptors are in quota mode.
    pub(crate) is_quota: bool,
}

/// The most limits of a request: more than any configuration needs, and a bound on the cost of one.
pub(super) const CHECKS_MAX: usize = CHARGES_MAX;

/// What a descriptor does to its limits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hits {
    /// One hit that nothing states: a request, and never a report.
    Request,
    Charge(Cost),
    /// Needs only that something is left, and is then charged in full.
    Overdraft(Cost),
    /// Only sees whether anything is left.
    Look,
    /// Was used already, and is charged whatever is left.
    Report(Cost),
    Refund(Cost),
}

impl Hits {
    /// Returns what the hits are for this limit. A request that also looks at limits, or is one hit to others,
    /// comes before what it charges is used, so it reports nothing.
    fn under(self, limit: &DescriptorLimit, is_before: bool) -> Self {
        match self {
            Self::Charge(cost) if is_before && limit.is_overdraft() => Self::Overdraft(cost),
            Self::Charge(cost) if limit.takes_reports() && !is_before => Self::Report(cost),
            Self::Look => {
                limit.note_look();
                self
            }
            _ => self,
        }
    }
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

/// Checks what every decision needs.
pub(super) fn check_request(request: &RateLimitRequest) -> Result<(), RateLimitRequestError> {
    if request.domain.is_empty() {
        return Err(RateLimitRequestError::EmptyDomain);
    }
    // Before any of them is resolved: a client can put tens of thousands into one message.
    match request.descriptors.len() {
        0 => return Err(RateLimitRequestError::NoDescriptors),
        count if count > CHECKS_MAX => {
            return Err(RateLimitRequestError::TooManyDescriptors(count));
        }
        _ => {}
    }
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        if let Some(limit) = &descriptor.limit
            && Unit::from_number(limit.unit).is_none()
        {
            let (descriptor, unit) = (index + 1, limit.unit);
            return Err(RateLimitRequestError::InvalidUnit { descriptor, unit });
        }
    }
    Ok(())
}

pub(super) fn check_count(checks: &[DescriptorCheck<'_>]) -> Result<(), RateLimitRequestError> {
    match checks.len() {
        count if count > CHECKS_MAX => Err(RateLimitRequestError::TooManyLimits(count)),
        _ => Ok(()),
    }
}

/// Returns every limit of a request, in the order of its descriptors.
pub(super) fn checks_of<'m>(
    request: &RateLimitRequest,
    matched: &'m [Option<MatchedLimits<'_>>],
    modes: GlobalModes,
) -> DescriptorChecks<'m> {
    let mut checks = DescriptorChecks::new();
    let is_before = |one| matches!(hits(request, one), Hits::Look | Hits::Request);
    let is_before = request.descriptors.iter().any(is_before);
    for (index, (matched, descriptor)) in matched.iter().zip(&request.descriptors).enumerate() {
        let Some(matched) = matched else { continue };
        let hits = hits(request, descriptor);
        checks.extend(matched.limits().iter().map(|limit| DescriptorCheck {
            descriptor: index,
            limit,
            is_shadow: modes.is_shadow || limit.is_shadow(),
            is_quota: (modes.is_quota || limit.is_quota()) && !is_unlimited(limit),
            decision: None,
            is_degraded: false,
            key: matched.key(),
            inputs: None,
            hits: hits.under(limit, is_before),
        }));
    }
    checks
}

pub(super) fn is_unlimited(limit: &DescriptorLimit) -> bool {
    matches!(limit.quota(), DescriptorQuota::Unlimited)
}

/// Returns the hits of a descriptor. In a request, 0 means that the field is not set; in a descriptor, it
/// means 0.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let hits = match (descriptor.hits_addend, request.hits_addend) {
        (None, 0 | 1) if !descriptor.is_negative_hits => return Hits::Request,
        (None, hits) => hits.max(1).into(),
        (Some(hits), _) => hits,
    };
    match Cost::new(hits) {
        None => Hits::Look,
        Some(cost) if descriptor.is_negative_hits => Hits::Refund(cost),
        Some(cost) => Hits::Charge(cost),
    }
}

impl<'m> DescriptorCheck<'m> {
    /// Returns whether the hits exceed the limit.
    pub(super) fn is_over_limit(&self) -> bool {
        if matches!(self.hits, Hits::Refund(_)) {
            return false;
        }
        match self.limit.quota() {
            DescriptorQuota::DenyAll(_) => true,
            _ => self.decision.is_some_and(|decision| !decision.allowed()),
        }
    }

    /// Orders checks by how close they are to a denial, and denied ones by their wait.
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

    /// Returns the charge, if the limit is a rate.
    pub(super) fn charge(&self) -> Option<Charge<'m>> {
        let charge = Charge::new(self.rate()?, self.key);
        Some(match self.hits {
            Hits::Request => charge,
            Hits::Charge(cost) | Hits::Refund(cost) => charge.cost(cost),
            Hits::Look => charge.kind(ChargeKind::Look),
            Hits::Overdraft(cost) | Hits::Report(cost) => {
                charge.cost(cost).overdraft(self.limit.max_debt())
            }
        })
    }

    pub(super) fn is_charge(&self) -> bool {
        matches!(self.hits, Hits::Request | Hits::Charge(_) | Hits::Overdraft(_) | Hits::Report(_))
    }

    /// Returns whether the request is denied if this check is.
    fn is_enforced(&self) -> bool {
        matches!(self.hits, Hits::Request | Hits::Charge(_) | Hits::Overdraft(_) | Hits::Look)
            && !self.is_shadow
    }

    /// Returns whether this is a quota that leaves the request to others: it is not enforced.
    fn is_open_quota(&self) -> bool {
        self.is_quota && !self.is_enforced()
    }

    /// Returns whether the limit denies every request.
    pub(super) fn denies_all(&self) -> bool {
        matches!(self.limit.quota(), DescriptorQuota::DenyAll(_))
    }
}

/// Applies all limits. Nothing is charged unless all limits that are enforced allow it. `has_open_quota` is
/// whether a descriptor in quota mode has no limit.
pub(super) async fn decide(
    limiter: &PolicyLimiter,
    checks: &mut [DescriptorCheck<'_>],
    has_open_quota: bool,
) -> Result<(), RateLimitRequestError> {
    check_count(checks)?;
    let (enforced, others): (Indices, Indices) =
        (0..checks.len()).partition(|index| checks[*index].is_enforced());
    let has_open_quota = has_open_quota || checks.iter().any(DescriptorCheck::is_open_quota);
    let enforced = Enforced::new(checks, enforced, has_open_quota);
    let is_allowed = charge_enforced(limiter, checks, enforced).await?;
    let (reports, others): (Indices, Indices) =
        others.into_iter().partition(|index| matches!(checks[*index].hits, Hits::Report(_)));
    report(limiter, checks, &reports).await?;
    for index in others {
        let op = match checks[index].hits {
            Hits::Refund(_) if is_allowed => Op::refund_latest(),
            Hits::Request | Hits::Charge(_) | Hits::Overdraft(_) if is_allowed => Op::Check,
            _ => Op::Peek,
        };
        apply(limiter, op, checks, &[index]).await?;
    }
    Ok(())
}

/// Charges the limits that are enforced in one step, all of them or none, without quotas that are over. Returns
/// whether the request is allowed.
async fn charge_enforced(
    limiter: &PolicyLimiter,
    checks: &mut [DescriptorCheck<'_>],
    mut enforced: Enforced,
) -> Result<bool, ChargesError> {
    loop {
        let is_denied = enforced.is_denied(checks);
        let op = if is_denied { Op::Peek } else { Op::Check };
        let is_allowed = apply(limiter, op, checks, enforced.indices()).await?;
        if is_denied || is_allowed || !enforced.retry(checks) {
            return Ok(is_allowed && !is_denied);
        }
    }
}

/// Charges what was used, whatever is left: most often in one step, or else without a check. A report is
/// over the limit if nothing was left before it.
async fn report(
    limiter: &PolicyLimiter,
    checks: &mut [DescriptorCheck<'_>],
    reports: &[usize],
) -> Result<(), ChargesError> {
    if apply(limiter, Op::Check, checks, reports).await? {
        return Ok(());
    }
    let over: Indices =
        reports.iter().copied().filter(|index| checks[*index].is_over_limit()).collect();
    apply(limiter, Op::Charge, checks, reports).await?;
    apply(limiter, Op::Peek, checks, &over).await?;
    Ok(())
}

/// Applies `op` to the rates among these limits, all of them or none. Returns whether all allow it.
async fn apply(
    limiter: &PolicyLimiter,
    op: Op,
    checks: &mut [DescriptorCheck<'_>],
    indices: &[usize],
) -> Result<bool, ChargesError> {
    let rate = |index: &usize| Some((*index, checks[*index].charge()?));
    let (indices, charges): (Indices, SmallVec<[_; 4]>) = indices.iter().filter_map(rate).unzip();
    if charges.is_empty() {
        return Ok(true);
    }
    let applied = limiter.engine().apply(op, &charges).await?;
    let is_denied = matches!(op, Op::Check | Op::Peek) && !applied.allowed();
    let inputs = is_denied.then(|| limiter.engine().denial_inputs(&charges, &applied));
    let binding = indices[applied.binding()];
    for (index, decision) in indices.into_iter().zip(applied.decisions()) {
        checks[index].decision = Some(*decision);
        checks[index].is_degraded = applied.is_degraded();
    }
    checks[binding].inputs = inputs.map(Box::new);
    Ok(applied.allowed())
}

/// Returns the binding limit, and whether a decision was degraded, for the span.
pub(super) fn decision_info(checks: &[DescriptorCheck<'_>]) -> DecisionInfo {
    let enforced = checks.iter().filter(|check| !check.is_shadow);
    let binding = enforced.max_by_key(|check| check.strictness());
    DecisionInfo {
        limit: binding.map(|check| check.limit.label().to_string()),
        is_degraded: checks.iter().any(|check| check.is_degraded),
    }
}
