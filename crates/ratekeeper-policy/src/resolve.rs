//! A request in, the limits to charge out.

use std::sync::Arc;

use ratekeeper_core::Cost;
use smallvec::SmallVec;

use crate::condition::Mismatch;
use crate::context::{MissingIdentity, RequestContext};
use crate::identity::Key;
use crate::policy::Policy;
use crate::request::RequestAttributes;
use crate::rule::{Amount, LimitRule, Mode};

/// What a policy says about a request.
#[derive(Debug)]
pub enum Resolution<'p> {
    /// No limit applies, for it is exempt by this entry of the list, counted from 0.
    Exempt(usize),
    /// It must not pass: this limit needs an identity that is missing.
    MissingIdentity {
        /// The limit.
        rule: &'p Arc<LimitRule>,
        /// What is missing, and why.
        missing: MissingIdentity<'p>,
    },
    /// It is to be charged to these, all or none.
    Charged(Vec<AppliedLimit>),
}

/// A limit that applies to a request.
#[derive(Clone, Debug)]
pub struct AppliedLimit {
    /// The limit.
    pub rule: Arc<LimitRule>,
    tier: Option<usize>,
    share_of: Option<usize>,
    /// What it is counted under.
    pub key: Key,
    /// How much it takes.
    pub cost: Cost,
    /// Is it refused if it does not fit? Otherwise that is only reported.
    pub is_enforced: bool,
}

impl AppliedLimit {
    /// How much of it, for the caller's tier, or for the request's class of that.
    pub fn amount(&self) -> &Amount {
        let bound = self.rule.bounds.of(self.tier);
        bound
            .and_then(|bound| bound.amount(self.share_of))
            .expect("it was there when this was made")
    }

    /// Is this the share of a class, beside the limit itself?
    pub fn is_share(&self) -> bool {
        self.share_of.is_some()
    }
}

impl Policy {
    /// Which limits this request is to be charged to.
    pub fn resolve(&self, request: &RequestAttributes<'_>) -> Resolution<'_> {
        let context = RequestContext::new(self, request);
        if let Some(exempt) = self.exemption(&context) {
            return Resolution::Exempt(exempt);
        }
        let mut applied = Vec::new();
        let mut groups_done: SmallVec<[usize; 4]> = SmallVec::new();
        for id in self.index.candidates(&context) {
            let rule = &self.limits[id as usize];
            let is_done = rule.group.is_some_and(|group| groups_done.contains(&group));
            if is_done || rule.mode == Mode::Off || rule.mismatch(&context).is_some() {
                continue;
            }
            let before = applied.len();
            if let Err(missing) = self.apply(rule, &context, &mut applied) {
                return Resolution::MissingIdentity { rule, missing };
            }
            if rule.closes_group(&context, &applied[before..]) {
                groups_done.extend(rule.group);
            }
        }
        Resolution::Charged(applied)
    }

    /// The names of the limits whose conditions are looked at for a request, for tests.
    #[doc(hidden)]
    pub fn candidates(&self, request: &RequestAttributes<'_>) -> Vec<&str> {
        let ids = self.index.candidates(&RequestContext::new(self, request));
        ids.into_iter().map(|id| self.limits[id as usize].name()).collect()
    }

    pub(crate) fn exemption(&self, context: &RequestContext<'_, '_>) -> Option<usize> {
        self.exempt.iter().position(|condition| condition.holds_by_all_readings(context))
    }

    /// Adds a limit that matches, and before it the share of it that the request's class has.
    pub(crate) fn apply<'p>(
        &'p self,
        rule: &Arc<LimitRule>,
        context: &RequestContext<'p, '_>,
        applied: &mut Vec<AppliedLimit>,
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
        let one = AppliedLimit { rule: rule.clone(), tier, share_of: None, key, cost, is_enforced };
        if class.is_some_and(|class| bound.amount(Some(class)).is_some()) {
            applied.push(AppliedLimit { share_of: class, ..one.clone() });
        }
        applied.push(one);
        Ok(())
    }

    pub(crate) fn class(&self, context: &RequestContext<'_, '_>) -> Option<usize> {
        let first = self.priorities.iter().find(|(_, on)| on.mismatch(context).is_none());
        first.map(|(class, _)| *class)
    }
}

impl LimitRule {
    /// Why it does not apply, if it does not.
    pub(crate) fn mismatch(&self, context: &RequestContext<'_, '_>) -> Option<Mismatch<'_>> {
        self.conditions.iter().find_map(|condition| condition.mismatch(context))
    }

    /// Is no other of its group needed? One that is only watched takes the place of none that is
    /// enforced, nor does one that matches by one reading of the path and not by another.
    pub(crate) fn closes_group(
        &self,
        context: &RequestContext<'_, '_>,
        applied: &[AppliedLimit],
    ) -> bool {
        applied.iter().all(|one| one.is_enforced)
            && self.conditions.iter().all(|condition| condition.holds_by_all_readings(context))
    }
}
