//! Explains which limits apply to a request, and why the others do not.

use std::sync::Arc;

use crate::context::{MissingIdentity, RequestContext};
use crate::identity::{MissingReason, Source, WhenMissing};
use crate::policy::Policy;
use crate::protection::DependencyRule;
use crate::request::RequestAttributes;
use crate::resolve::{AppliedLimit, AppliedLimits};
use crate::rule::{LimitRule, Mode};

/// The evaluation of a request against a policy, limit by limit.
#[derive(Debug)]
pub struct Explanation<'p> {
    /// The normalized path.
    pub path: String,
    /// Other ways in which servers may read the path. Limits on those apply too.
    pub other_readings: Vec<String>,
    /// The client's address, if known.
    pub client: Option<std::net::IpAddr>,
    /// Every identity, with its value or why it is missing.
    pub identities: Vec<(&'p str, Result<String, MissingReason>)>,
    /// The client's tier, if the policy has tiers.
    pub tier: Option<&'p str>,
    /// The request's priority class, if any.
    pub class: Option<&'p str>,
    /// If the policy sheds requests under overload: the position of the request's class in the order of
    /// importance, counted from 1, and the number of classes. The last one is shed first.
    pub shed_order: Option<(usize, usize)>,
    /// The dependencies that the gateway protects the request by.
    pub dependencies: Vec<&'p DependencyRule>,
    /// The index of the `exempt` entry that matches, if any.
    pub exempt: Option<usize>,
    /// Every limit, in file order.
    pub limits: Vec<LimitExplanation<'p>>,
}

/// A limit, and whether it applies to the request.
#[derive(Debug)]
pub struct LimitExplanation<'p> {
    /// The limit.
    pub rule: &'p LimitRule,
    /// Whether it applies, or why not.
    pub outcome: LimitOutcome<'p>,
    /// In words, what this request is counted by.
    pub counted: String,
}

/// Whether a limit applies, or why not.
#[derive(Debug)]
pub enum LimitOutcome<'p> {
    /// It applies. If the request's class has a share of the limit, the share comes first.
    Applies(Vec<AppliedLimit>),
    /// Its mode is `off`.
    Off,
    /// The request does not match its conditions.
    Mismatch(String),
    /// Another limit of its `first` group applies.
    NotFirst,
    /// The client's tier is `unlimited`.
    Unlimited,
    /// The request is rejected because an identity is missing.
    MissingIdentity(MissingIdentity<'p>),
}

impl Policy {
    /// Evaluates a request and explains the result for every limit.
    #[must_use]
    pub fn explain<'p>(&'p self, request: &RequestAttributes<'_>) -> Explanation<'p> {
        let context = RequestContext::new(self, request);
        let mut groups_done = Vec::new();
        let limits = self.limits.iter().map(|rule| {
            let outcome = self.outcome(rule, &context, &mut groups_done);
            LimitExplanation { rule, outcome, counted: counted(rule, &context) }
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
            shed_order: self
                .shed_attributes(request)
                .map(|of| (usize::from(of.class.rank()) + 1, self.classes.len())),
            dependencies: self.dependencies_in(&context).into_iter().map(Arc::as_ref).collect(),
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
        let mut applied = AppliedLimits::new();
        let done = self.apply(rule, context, &mut applied);
        if rule.closes_group(context, &applied) {
            groups_done.extend(rule.group);
        }
        match done {
            Err(missing) => LimitOutcome::MissingIdentity(missing),
            Ok(()) if applied.is_empty() => LimitOutcome::Unlimited,
            Ok(()) => LimitOutcome::Applies(applied.into_vec()),
        }
    }
}

/// Says in words what a request is counted by.
fn counted(rule: &LimitRule, context: &RequestContext<'_, '_>) -> String {
    if rule.per.is_empty() {
        return "one count for all requests".into();
    }
    let identities = &context.policy.identities;
    let (present, missing): (Vec<usize>, Vec<usize>) =
        rule.per.iter().partition(|id| context.value(**id).is_ok());
    let names = present.iter().map(|id| match &identities[*id].source {
        Source::FirstOf(ids) => {
            let found = ids.iter().find(|id| context.value(**id).is_ok());
            let found = found.map_or("", |id| identities[*id].name.as_str());
            format!("{} (from {found})", identities[*id].name)
        }
        _ => identities[*id].name.clone(),
    });
    let names: Vec<_> = names.collect();
    let by_name = (!names.is_empty()).then(|| format!("counted by {}", names.join(" and ")));
    let missing = missing.into_iter().map(|id| counted_without(id, context));
    by_name.into_iter().chain(missing).collect::<Vec<_>>().join("; ")
}

fn counted_without(id: usize, context: &RequestContext<'_, '_>) -> String {
    let identity = &context.policy.identities[id];
    let name = &identity.name;
    match (&identity.source, identity.missing) {
        (Source::ClientIp, _) => "counted by the client's address, which is unknown here".into(),
        (_, WhenMissing::Ip) => {
            let by_address = format!("identity {name} is missing: counted by the client's address");
            match context.client() {
                Some(_) => by_address,
                None => format!("{by_address}, which is unknown here"),
            }
        }
        _ => format!("identity {name} is missing: one count for all requests without it"),
    }
}
