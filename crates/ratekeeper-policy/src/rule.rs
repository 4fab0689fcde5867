//! A limit of a policy: which requests it matches, what it counts by, how much it allows, and what
//! happens above that.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, FailureMode, GuaranteedLimit, Limit, MaxDebt};

use crate::condition::Condition;
use crate::context::RequestContext;
use crate::protection::ConcurrencyRule;
use crate::request::Headers;
use crate::usage::{TokenUsage, UsageCost, UsageFormat};

/// A limit of a policy.
#[derive(Debug)]
pub struct LimitRule {
    pub(crate) id: usize,
    pub(crate) name: Arc<str>,
    pub(crate) conditions: Vec<Arc<Condition>>,
    /// The `first` group, of which only the first matching limit applies.
    pub(crate) group: Option<usize>,
    pub(crate) per: Vec<usize>,
    pub(crate) bounds: Bounds,
    pub(crate) cost: CostRule,
    pub(crate) overdraft: Option<MaxDebt>,
    pub(crate) mode: Mode,
    pub(crate) on_failure: FailureMode,
    pub(crate) when_limited: LimitAction,
    pub(crate) refund: Vec<StatusRange>,
    pub(crate) message: Option<String>,
    pub(crate) line: usize,
}

impl LimitRule {
    /// Returns the index of the limit in [`Policy::limits`](crate::Policy::limits).
    #[must_use]
    pub fn id(&self) -> usize {
        self.id
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name as a shared string.
    #[must_use]
    pub fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the line of the file in which it begins, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns whether it applies only to requests that match certain conditions.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Returns whether the limit is enforced.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns how far a request may overdraw the limit, if it may: it is allowed if anything is left, and
    /// then charged in full.
    #[must_use]
    pub fn overdraft(&self) -> Option<MaxDebt> {
        self.overdraft
    }

    /// Returns whether it limits how many requests are in flight, instead of a rate.
    #[must_use]
    pub fn is_concurrency(&self) -> bool {
        let is_concurrency = |bound: &Bound| matches!(bound.amount, Amount::Concurrency { .. });
        match &self.bounds {
            Bounds::Same(bound) => is_concurrency(bound),
            Bounds::PerTier(bounds) => bounds.iter().flatten().any(is_concurrency),
        }
    }

    /// Returns how many requests may be in flight and wait, if it protects the service
    /// ([`ConcurrencyRule::protects_service`]). Of several tiers, one of them.
    #[must_use]
    pub fn service_permits(&self) -> Option<&ConcurrencyRule> {
        match &self.bounds {
            Bounds::Same(bound) => bound.service_permits(),
            Bounds::PerTier(bounds) => bounds.iter().flatten().find_map(Bound::service_permits),
        }
    }

    /// Returns whether it counts all requests together, instead of by a key.
    #[must_use]
    pub fn is_of_all(&self) -> bool {
        self.per.is_empty()
    }

    /// Returns whether parts of it are guaranteed to priority classes or tiers.
    #[must_use]
    pub fn has_guarantees(&self) -> bool {
        let has_guarantees = |bound: &Bound| bound.guarantees.is_some();
        match &self.bounds {
            Bounds::Same(bound) => has_guarantees(bound),
            Bounds::PerTier(bounds) => bounds.iter().flatten().any(has_guarantees),
        }
    }

    /// Returns the fields of the limit that depend on responses: without them, they have no effect.
    pub fn response_fields(&self) -> impl Iterator<Item = &'static str> {
        let cost = matches!(self.cost, CostRule::ResponseHeader { .. });
        let usage = matches!(self.cost, CostRule::Usage(_));
        let stale = matches!(self.when_limited, LimitAction::ServeStale(_));
        let fields = [
            (cost, "cost: { response_header }"),
            (usage, "cost: { usage }"),
            (!self.refund.is_empty(), "refund"),
            (stale, "when_limited: { serve_stale }"),
        ];
        fields.into_iter().filter(|(is_set, _)| *is_set).map(|(_, field)| field)
    }

    /// Returns whether what a request is charged depends on its response.
    #[must_use]
    pub fn is_charged_by_response(&self) -> bool {
        let by_cost = matches!(self.cost, CostRule::ResponseHeader { .. } | CostRule::Usage(_));
        by_cost || !self.refund.is_empty()
    }

    /// Returns what the limit does while the store is unavailable.
    #[must_use]
    pub fn on_failure(&self) -> FailureMode {
        self.on_failure
    }

    /// Returns what happens to a request above the limit.
    #[must_use]
    pub fn when_limited(&self) -> LimitAction {
        self.when_limited
    }

    /// Returns the message of denials, if it differs from the policy's.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns where the body of a response states the usage that the limit charges.
    #[must_use]
    pub fn usage_format(&self) -> Option<&UsageFormat> {
        match &self.cost {
            CostRule::Usage(usage) => Some(&usage.format),
            _ => None,
        }
    }

    /// Returns the cost of this usage, if the limit charges usage.
    #[must_use]
    pub fn usage_cost(&self, usage: &TokenUsage) -> Option<u64> {
        match &self.cost {
            CostRule::Usage(rule) => Some(rule.of(usage)),
            _ => None,
        }
    }

    /// Returns the actual cost of a request if the head of the response determines it: 0 for a refunded status, or
    /// the number in a response header.
    #[must_use]
    pub fn response_cost(&self, status: u16, headers: &dyn Headers) -> Option<u64> {
        if self.refund.iter().any(|statuses| statuses.contains(status)) {
            return Some(0);
        }
        let CostRule::ResponseHeader { name, max, .. } = &self.cost else { return None };
        let cost = headers.all(name).into_iter().filter_map(parse_amount).max();
        cost.map(|cost| cost.min(max.get()))
    }
}

impl Bound {
    fn service_permits(&self) -> Option<&ConcurrencyRule> {
        match &self.amount {
            Amount::Concurrency { rule, .. } if rule.protects_service() => Some(rule),
            _ => None,
        }
    }
}

/// The amount for every tier.
#[derive(Debug)]
pub(crate) enum Bounds {
    Same(Bound),
    PerTier(Vec<Option<Bound>>),
}

impl Bounds {
    /// Returns the bound of a tier. `None` means unlimited.
    pub(crate) fn of(&self, tier: Option<usize>) -> Option<&Bound> {
        match self {
            Self::Same(bound) => Some(bound),
            Self::PerTier(bounds) => bounds.get(tier?)?.as_ref(),
        }
    }
}

/// An amount, the shares of priority classes, and what is guaranteed out of the amount.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) amount: Amount,
    pub(crate) shares: Vec<(usize, Amount)>,
    pub(crate) guarantees: Option<Box<BoundGuarantees>>,
}

/// The limit as it is for each priority class and tier with a guarantee, and for all others.
#[derive(Debug)]
pub(crate) struct BoundGuarantees {
    pub(crate) classes: Vec<(usize, GuaranteedLimit)>,
    pub(crate) tiers: Vec<(usize, GuaranteedLimit)>,
    pub(crate) others: GuaranteedLimit,
}

impl BoundGuarantees {
    /// Returns the limit of a request: by its class, or else by its tier.
    pub(crate) fn of(&self, class: Option<usize>, tier: Option<usize>) -> &GuaranteedLimit {
        let find = |limits: &'_ [(usize, GuaranteedLimit)], id: Option<usize>| {
            limits.iter().position(|(of, _)| Some(*of) == id)
        };
        let by_class = find(&self.classes, class).map(|i| &self.classes[i].1);
        let by_tier = || find(&self.tiers, tier).map(|i| &self.tiers[i].1);
        by_class.or_else(by_tier).unwrap_or(&self.others)
    }
}

impl Bound {
    /// Returns the whole amount, or the share of a class.
    pub(crate) fn amount(&self, class: Option<usize>) -> Option<&Amount> {
        match class {
            None => Some(&self.amount),
            Some(class) => {
                self.shares.iter().find(|(of, _)| *of == class).map(|(_, amount)| amount)
            }
        }
    }
}

/// The amount that a limit allows.
#[derive(Clone, Debug)]
pub enum Amount {
    /// A rate: requests or units per period.
    Rate(Limit),
    /// A maximum number of requests in flight.
    Concurrency {
        /// The name of the limit.
        name: Arc<str>,
        /// How many, and which requests wait.
        rule: ConcurrencyRule,
    },
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rate(limit) => limit.fmt(f),
            Self::Concurrency { rule, .. } => rule.fmt(f),
        }
    }
}

/// Whether a limit is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Requests above the limit are denied.
    #[default]
    Enforce,
    /// Shadow mode: requests are counted and reported, never denied.
    Shadow,
    /// Requests are not counted.
    Off,
    /// Enforced for this part of the keys, in hundredths of a percent; shadow mode for the others.
    Ramp(u16),
}

impl Mode {
    /// Whether the limit is enforced for this key. The result is the same on every node.
    pub(crate) fn is_enforced(self, name: &str, key: &[u8]) -> bool {
        match self {
            Self::Enforce => true,
            Self::Shadow | Self::Off => false,
            Self::Ramp(part) => ramp_hash(name, key) % 10_000 < u64::from(part),
        }
    }
}

/// FNV-1a with a finalizer, so that keys that differ only in the last byte are spread.
fn ramp_hash(name: &str, key: &[u8]) -> u64 {
    let bytes = name.bytes().chain([0]).chain(key.iter().copied());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// What happens to a request above the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitAction {
    /// It is denied.
    #[default]
    Reject,
    /// It waits in the queue of the leaky bucket.
    Queue,
    /// It gets a cached response up to this old, if there is one.
    ServeStale(Duration),
}

/// An inclusive range of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl StatusRange {
    pub(crate) fn contains(&self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// How the cost of a request is determined.
#[derive(Debug)]
pub(crate) enum CostRule {
    Fixed(Cost),
    RequestHeader {
        name: String,
        default: Cost,
        max: Cost,
    },
    ResponseHeader {
        name: String,
        default: Cost,
        max: Cost,
    },
    Routes {
        routes: Vec<(Condition, Cost)>,
        default: Cost,
    },
    /// What the body of the response states.
    Usage(Box<UsageCost>),
}

impl CostRule {
    pub(crate) fn of(&self, context: &RequestContext<'_, '_>) -> Cost {
        match self {
            Self::Fixed(cost) => *cost,
            Self::ResponseHeader { default, .. } => *default,
            Self::Usage(usage) => usage.estimate(context),
            Self::Routes { routes, default } => cost_of_routes(routes, *default, context),
            Self::RequestHeader { name, default, max } => {
                let values = context.request.headers.all(name);
                let costs = values.iter().filter_map(|value| parse_amount(value));
                costs.filter_map(Cost::new).max().map_or(*default, |cost| cost.min(*max))
            }
        }
    }
}

/// Returns the cost of the first route that matches. If the path is ambiguous, the most expensive of
/// the routes that may match.
fn cost_of_routes(
    routes: &[(Condition, Cost)],
    default: Cost,
    context: &RequestContext<'_, '_>,
) -> Cost {
    let mut cost = None;
    for (on, of_route) in routes.iter().filter(|(on, _)| on.mismatch(context).is_none()) {
        cost = cost.max(Some(*of_route));
        if on.holds_by_all_readings(context) {
            return cost.unwrap_or(default);
        }
    }
    cost.map_or(default, |cost| cost.max(default))
}

/// Parses the number in a header; the largest of a list.
fn parse_amount(value: &[u8]) -> Option<u64> {
    value.split(|byte| *byte == b',').filter_map(parse_number).max()
}

/// Parses a number, saturating at `u64::MAX`.
fn parse_number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number = || std::str::from_utf8(digits).ok()?.parse().ok();
    is_number.then(|| number().unwrap_or(u64::MAX))
}
