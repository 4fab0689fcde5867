//! A request in, the limits to charge out.

use std::sync::Arc;

use ratekeeper_core::Cost;
use smallvec::SmallVec;

use crate::condition::Mismatch;
use crate::facts::{Facts, NoIdentity};
use crate::identity::Key;
use crate::policy::Policy;
use crate::request::Request;
use crate::rule::{Amount, LimitRule, Mode};

/// What a policy says about a request.
#[derive(Debug)]
pub enum Resolution<'p> {
    /// No limit applies, for it is exempt by this entry of the list, counted from 0.
    Exempt(usize),
    /// It must not pass: this limit needs an identity that is missing.
    Refused {
        /// The limit.
        rule: &'p Arc<LimitRule>,
        /// What is missing, and why.
        missing: NoIdentity<'p>,
    },
    /// It is to be charged to these, all or none.
    Charged(Vec<Applied>),
}

/// A limit that applies to a request.
#[derive(Clone, Debug)]
pub struct Applied {
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

impl Applied {
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
    pub fn resolve(&self, request: &Request<'_>) -> Resolution<'_> {
        let facts = Facts::new(self, request);
        if let Some(exempt) = self.exemption(&facts) {
            return Resolution::Exempt(exempt);
        }
        let mut applied = Vec::new();
        let mut groups_done: SmallVec<[usize; 4]> = SmallVec::new();
        for id in self.index.candidates(&facts) {
            let rule = &self.limits[id as usize];
            let is_done = rule.group.is_some_and(|group| groups_done.contains(&group));
            if is_done || rule.mode == Mode::Off || rule.mismatch(&facts).is_some() {
                continue;
            }
            let before = applied.len();
            if let Err(missing) = self.apply(rule, &facts, &mut applied) {
                return Resolution::Refused { rule, missing };
            }
            if rule.speaks_for_group(&facts, &applied[before..]) {
                groups_done.extend(rule.group);
            }
        }
        Resolution::Charged(applied)
    }

    /// The names of the limits whose conditions are looked at for a request, for tests.
    #[doc(hidden)]
    pub fn candidates(&self, request: &Request<'_>) -> Vec<&str> {
        let ids = self.index.candidates(&Facts::new(self, request));
        ids.into_iter().map(|id| self.limits[id as usize].name()).collect()
    }

    pub(crate) fn exemption(&self, facts: &Facts<'_, '_>) -> Option<usize> {
        self.exempt.iter().position(|condition| condition.surely_holds(facts))
    }

    /// Adds a limit that matches, and before it the share of it that the request's class has.
    pub(crate) fn apply<'p>(
        &'p self,
        rule: &Arc<LimitRule>,
        facts: &Facts<'p, '_>,
        applied: &mut Vec<Applied>,
    ) -> Result<(), NoIdentity<'p>> {
        let tier = facts.tier();
        let Some(bound) = rule.bounds.of(tier) else { return Ok(()) };
        let key = facts.key(&rule.per);
        let is_enforced = rule.mode.is_enforced(&rule.name, key.as_bytes());
        if is_enforced {
            facts.required(&rule.per)?;
        }
        let cost = rule.cost.of(facts);
        let class = if bound.shares.is_empty() { None } else { self.class(facts) };
        let one = Applied { rule: rule.clone(), tier, share_of: None, key, cost, is_enforced };
        if class.is_some_and(|class| bound.amount(Some(class)).is_some()) {
            applied.push(Applied { share_of: class, ..one.clone() });
        }
        applied.push(one);
        Ok(())
    }

    pub(crate) fn class(&self, facts: &Facts<'_, '_>) -> Option<usize> {
        let first = self.priorities.iter().find(|(_, on)| on.mismatch(facts).is_none());
        first.map(|(class, _)| *class)
    }
}

impl LimitRule {
    /// Why it does not apply, if it does not.
    pub(crate) fn mismatch(&self, facts: &Facts<'_, '_>) -> Option<Mismatch<'_>> {
        self.conditions.iter().find_map(|condition| condition.mismatch(facts))
    }

    /// Is no other of its group needed? One that is only watched takes the place of none that is
    /// enforced, nor does one that matches by one reading of the path and not by another.
    pub(crate) fn speaks_for_group(&self, facts: &Facts<'_, '_>, applied: &[Applied]) -> bool {
        applied.iter().all(|one| one.is_enforced)
            && self.conditions.iter().all(|condition| condition.surely_holds(facts))
    }
}
