//! Why a request is charged to what it is charged to.

use std::sync::Arc;

use crate::context::{MissingIdentity, RequestContext};
use crate::identity::{MissingReason, Source};
use crate::policy::Policy;
use crate::request::RequestAttributes;
use crate::resolve::AppliedLimit;
use crate::rule::{LimitRule, Mode};

/// What a policy makes of a request, limit by limit.
#[derive(Debug)]
pub struct Explanation<'p> {
    /// The path as limits see it.
    pub path: String,
    /// What else servers may take it for. Limits on those count too.
    pub other_readings: Vec<String>,
    /// The client's address, if it is known.
    pub client: Option<std::net::IpAddr>,
    /// Every identity, with its value or why it has none.
    pub identities: Vec<(&'p str, Result<String, MissingReason>)>,
    /// The caller's tier, if there are any.
    pub tier: Option<&'p str>,
    /// The request's priority class, if it has one.
    pub class: Option<&'p str>,
    /// The entry of the list of exemptions, counted from 0, if it is exempt.
    pub exempt: Option<usize>,
    /// Every limit, in the order of the file.
    pub limits: Vec<LimitExplanation<'p>>,
}

/// One limit, and whether it applies.
#[derive(Debug)]
pub struct LimitExplanation<'p> {
    /// The limit.
    pub rule: &'p LimitRule,
    /// What comes of it.
    pub outcome: LimitOutcome<'p>,
}

/// Whether a limit applies, or why not.
#[derive(Debug)]
pub enum LimitOutcome<'p> {
    /// It applies: the limit, and before it a class's share of it if there is one.
    Applies(Vec<AppliedLimit>),
    /// Its mode is `off`.
    Off,
    /// The request is not one that it is about.
    Mismatch(String),
    /// Another one of its group came first.
    NotFirst,
    /// The caller's tier has no limit here.
    Unlimited,
    /// The request is refused, for an identity is missing.
    MissingIdentity(MissingIdentity<'p>),
}

impl Policy {
    /// What this policy makes of a request, and why.
    pub fn explain<'p>(&'p self, request: &RequestAttributes<'_>) -> Explanation<'p> {
        let context = RequestContext::new(self, request);
        let mut groups_done = Vec::new();
        let limits = self.limits.iter().map(|rule| {
            let outcome = self.outcome(rule, &context, &mut groups_done);
            LimitExplanation { rule, outcome }
        });
        let limits = limits.collect();
        let shown = |id: usize| match (&self.identities[id].source, context.value(id)) {
            (Source::AllOf(ids), _) => Ok(context.key(ids).to_string()),
            (_, Ok(value)) => Ok(String::from_utf8_lossy(value).into_owned()),
            (_, Err(missing)) => Err(missing.clone()),
        };
        let identities = self.identities.iter().enumerate();
        let tiers = self.tiers.as_ref();
        Explanation {
            path: context.path().to_string(),
            other_readings: context.paths()[1..].iter().map(|path| path.to_string()).collect(),
            client: context.client(),
            identities: identities.map(|(id, of)| (of.name.as_str(), shown(id))).collect(),
            tier: tiers.zip(context.tier()).map(|(tiers, tier)| tiers.names[tier].as_str()),
            class: self.class(&context).map(|class| self.classes[class].as_str()),
            exempt: self.exemption(&context),
            limits,
        }
    }

    fn outcome<'p>(
        &'p self,
        rule: &'p Arc<LimitRule>,
        context: &RequestContext<'p, '_>,
        groups_done: &mut Vec<usize>,
    ) -> LimitOutcome<'p> {
        if rule.mode == Mode::Off {
            return LimitOutcome::Off;
        }
        if let Some(mismatch) = rule.mismatch(context) {
            return LimitOutcome::Mismatch(mismatch.to_string());
        }
        if rule.group.is_some_and(|group| groups_done.contains(&group)) {
            return LimitOutcome::NotFirst;
        }
        let mut applied = Vec::new();
        let done = self.apply(rule, context, &mut applied);
        if rule.closes_group(context, &applied) {
            groups_done.extend(rule.group);
        }
        match done {
            Err(missing) => LimitOutcome::MissingIdentity(missing),
            Ok(()) if applied.is_empty() => LimitOutcome::Unlimited,
            Ok(()) => LimitOutcome::Applies(applied),
        }
    }
}
