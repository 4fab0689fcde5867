//! Finds the limits that apply to a request.

use std::sync::Arc;

use ratekeeper_core::{Cost, GuaranteedLimit, Limit};
use ratekeeper_stores::Charge;
use smallvec::SmallVec;

use crate::condition::Mismatch;
use crate::context::{MissingIdentity, RequestContext};
use crate::identity::Key;
use crate::policy::Policy;
use crate::request::RequestAttributes;
use crate::rule::{Amount, LimitRule, Mode};

/// The limits that apply to a request, or why none does.
#[derive(Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one, and is not allocated"
)]
pub enum Resolution<'p> {
    /// The request is exempt by the `exempt` entry at this index.
    Exempt(usize),
    /// The request must be rejected: this limit requires an identity that is missing.
    MissingIdentity {
        /// The limit.
        rule: &'p Arc<LimitRule>,
        /// Which identity is missing, and why.
        missing: MissingIdentity<'p>,
    },
    /// The request must be charged to all of these limits, or to none.
    Charged(AppliedLimits),
}

/// Why a request is charged to no limit.
#[derive(Debug)]
pub enum NotCharged<'p> {
    /// As [`Resolution::Exempt`].
    Exempt(usize),
    /// As [`Resolution::MissingIdentity`].
    MissingIdentity {
        /// The limit.
        rule: &'p Arc<LimitRule>,
        /// Which identity is missing, and why.
        missing: MissingIdentity<'p>,
    },
}

/// The limits that apply to a request. Two fit without an allocation.
pub type AppliedLimits = SmallVec<[AppliedLimit; 2]>;

/// Which amount of which limit applies to a request: that of a tier, a class, a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitVariant {
    rule: usize,
    tier: Option<usize>,
    share_of: Option<usize>,
    guaranteed_class: Option<usize>,
    is_enforced: bool,
}

/// A limit that applies to a request.
#[derive(Clone, Debug)]
pub struct AppliedLimit {
    /// The limit.
    pub rule: Arc<LimitRule>,
    tier: Option<usize>,
    share_of: Option<usize>,
    /// The class whose guarantee the request can use, if the limit has guarantees.
    guaranteed_class: Option<usize>,
    /// The key that the request is counted under.
    pub key: Key,
    /// The cost of the request.
    pub cost: Cost,
    /// Whether the limit is enforced for this key. Otherwise it is in shadow mode.
    pub is_enforced: bool,
}

impl AppliedLimit {
    /// Returns the amount allowed for the client's tier, or the share of the request's class.
    #[must_use]
    pub fn amount(&self) -> &Amount {
        let bound = self.rule.bounds.of(self.tier);
        bound
            .and_then(|bound| bound.amount(self.share_of))
            .expect("the amount existed when the limit was applied")
    }

    /// Returns the limit as it is for the request's class or tier, if parts of it are guaranteed to classes or tiers.
    #[must_use]
    pub fn guaranteed_limit(&self) -> Option<&GuaranteedLimit> {
        let bound = self.rule.bounds.of(self.tier).filter(|_| !self.is_share())?;
        let guarantees = bound.guarantees.as_ref()?;
        Some(guarantees.of(self.guaranteed_class, self.tier))
    }

    /// Returns the rate limit; `None` for a concurrency limit.
    #[must_use]
    pub fn rate(&self) -> Option<&Limit> {
        match self.amount() {
            Amount::Rate(rate) => Some(rate),
            Amount::Concurrency { .. } => None,
        }
    }

    /// Returns what the request is charged; `None` for a concurrency limit.
    #[must_use]
    pub fn charge(&self) -> Option<Charge<'_>> {
        self.charge_to(self.key.as_bytes(), self.cost)
    }

    /// Returns the charge of a request of the same [variant](Self::variant) with this key and cost.
    #[must_use]
    pub fn charge_to<'a>(&'a self, key: &'a [u8], cost: Cost) -> Option<Charge<'a>> {
        let charge = match self.guaranteed_limit() {
            Some(guaranteed) => Charge::guaranteed(guaranteed, key),
            None => Charge::new(self.rate()?, key),
        };
        let charge = charge.cost(cost).on_failure(self.rule.on_failure());
        Some(match self.rule.overdraft() {
            Some(max_debt) => charge.overdraft(max_debt),
            None => charge,
        })
    }

    /// Returns which amount of which limit applies. Requests of one variant differ only in key and cost.
    #[must_use]
    pub fn variant(&self) -> LimitVariant {
        LimitVariant {
            rule: self.rule.id(),
            tier: self.tier,
            share_of: self.share_of,
            guaranteed_class: self.guaranteed_class,
            is_enforced: self.is_enforced,
        }
    }

    /// Returns the index of the client's tier in [`Policy::tiers`], if the policy has tiers.
    #[must_use]
    pub fn tier(&self) -> Option<usize> {
        self.tier
    }

    /// Whether this is a class's share of the limit rather than the limit itself.
    #[must_use]
    pub fn is_share(&self) -> bool {
        self.share_of.is_some()
    }
}

impl Policy {
    /// Finds the limits that apply to a request.
    pub fn resolve(&self, request: &RequestAttributes<'_>) -> Resolution<'_> {
        let mut limits = AppliedLimits::new();
        match self.resolve_into(request, &mut limits) {
            Ok(()) => Resolution::Charged(limits),
            Err(NotCharged::Exempt(index)) => Resolution::Exempt(index),
            Err(NotCharged::MissingIdentity { rule, missing }) => {
                Resolution::MissingIdentity { rule, missing }
            }
        }
    }

    /// Finds the limits that apply to a request, and adds them to `limits`, where they need not be moved.
    ///
    /// # Errors
    ///
    /// If the request is exempt, or must be rejected.
    pub fn resolve_into<'p>(
        &'p self,
        request: &RequestAttributes<'_>,
        limits: &mut AppliedLimits,
    ) -> Result<(), NotCharged<'p>> {
        self.resolve_in(&RequestContext::new(self, request), limits)
    }

    /// Returns whether the limits of a request depend on the client's address: a request without a peer
    /// address would then count together with all others that have none.
    #[must_use]
    pub fn needs_client_ip(&self, request: &RequestAttributes<'_>) -> bool {
        let context = RequestContext::new(self, request);
        let _ = self.resolve_in(&context, &mut AppliedLimits::new());
        context.has_read_client()
    }

    /// Returns whether the limits of a request, its class or its dependencies depend on its body, so that it has to be
    /// read first.
    #[must_use]
    pub fn needs_request_json(&self, request: &RequestAttributes<'_>) -> bool {
        if self.request_json.is_empty() {
            return false;
        }
        let context = RequestContext::new(self, request);
        let _ = self.resolve_in(&context, &mut AppliedLimits::new());
        if self.shedding.is_some() {
            let _ = self.class(&context);
        }
        let _ = self.dependencies_in(&context);
        context.has_read_json()
    }

    fn resolve_in<'p>(
        &'p self,
        context: &RequestContext<'p, '_>,
        applied: &mut AppliedLimits,
    ) -> Result<(), NotCharged<'p>> {
        if let Some(exempt) = self.exemption(context) {
            return Err(NotCharged::Exempt(exempt));
        }
        let mut groups_done: SmallVec<[usize; 4]> = SmallVec::new();
        for id in self.index.candidates(context) {
            let rule = &self.limits[id as usize];
            let is_done = rule.group.is_some_and(|group| groups_done.contains(&group));
            if is_done || rule.mode == Mode::Off || rule.mismatch(context).is_some() {
                continue;
            }
            let before = applied.len();
            if let Err(missing) = self.apply(rule, context, applied) {
                return Err(NotCharged::MissingIdentity { rule, missing });
            }
            if let Some(group) = rule.group
                && rule.closes_group(context, &applied[before..])
            {
                groups_done.push(group);
            }
        }
        Ok(())
    }

    /// Returns the names of the limits whose conditions are evaluated for a request, for tests.
    #[doc(hidden)]
    pub fn candidates(&self, request: &RequestAttributes<'_>) -> Vec<&str> {
        let ids = self.index.candidates(&RequestContext::new(self, request));
        ids.into_iter().map(|id| self.limits[id as usize].name()).collect()
    }

    pub(crate) fn exemption(&self, context: &RequestContext<'_, '_>) -> Option<usize> {
        self.exempt.iter().position(|condition| condition.holds_by_all_readings(context))
    }

    /// Adds a limit that matches, preceded by the share of the request's class if there is one.
    pub(crate) fn apply<'p>(
        &'p self,
        rule: &Arc<LimitRule>,
        context: &RequestContext<'p, '_>,
        applied: &mut AppliedLimits,
    ) -> Result<(), MissingIdentity<'p>> {
        let tier = context.tier();
        let Some(bound) = rule.bounds.of(tier) else { return Ok(()) };
        let key = context.key(&rule.per);
        let is_enforced = rule.mode.is_enforced(&rule.name, key.as_bytes());
        if is_enforced {
            context.required(&rule.per)?;
        }
        let cost = rule.cost.of(context);
        let class = if bound.shares.is_empty() { None } else { self.class(context) };
        let guaranteed_class =
            bound.guarantees.as_ref().and_then(|_| self.guaranteed_class(context));
        let rule = rule.clone();
        let one =
            AppliedLimit { rule, tier, share_of: None, guaranteed_class, key, cost, is_enforced };
        if class.is_some_and(|class| bound.amount(Some(class)).is_some()) {
            applied.push(AppliedLimit { share_of: class, ..one.clone() });
        }
        applied.push(one);
        Ok(())
    }

    pub(crate) fn class(&self, context: &RequestContext<'_, '_>) -> Option<usize> {
        let first = self.priorities.iter().find(|(_, on)| on.mismatch(context).is_none());
        first.map_or(self.other_class, |(class, _)| Some(*class))
    }

    /// Returns the request's class if all readings of its path agree: otherwise a client could choose it.
    fn guaranteed_class(&self, context: &RequestContext<'_, '_>) -> Option<usize> {
        let first = self.priorities.iter().find(|(_, on)| on.mismatch(context).is_none());
        match first {
            None => self.other_class,
            Some((class, on)) => on.holds_by_all_readings(context).then_some(*class),
        }
    }
}

impl LimitRule {
    /// Returns why the limit does not match, if it does not.
    pub(crate) fn mismatch(&self, context: &RequestContext<'_, '_>) -> Option<Mismatch<'_>> {
        self.conditions.iter().find_map(|condition| condition.mismatch(context))
    }

    /// Whether the remaining limits of its `first` group are skipped. A limit in shadow mode does not
    /// replace an enforced one, nor does one that matches only some readings of the path.
    pub(crate) fn closes_group(
        &self,
        context: &RequestContext<'_, '_>,
        applied: &[AppliedLimit],
    ) -> bool {
        applied.iter().all(|one| one.is_enforced)
            && self.conditions.iter().all(|condition| condition.holds_by_all_readings(context))
    }
}
