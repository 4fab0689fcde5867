//! A limit of a policy: which requests, counted for whom, how much, and what then.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, FailureMode, Limit};

use crate::condition::Condition;
use crate::facts::Facts;
use crate::request::Headers;

/// A limit of a policy.
#[derive(Debug)]
pub struct LimitRule {
    pub(crate) id: usize,
    pub(crate) name: Arc<str>,
    pub(crate) conditions: Vec<Arc<Condition>>,
    /// Only the first of a group that matches applies.
    pub(crate) group: Option<usize>,
    pub(crate) per: Vec<usize>,
    pub(crate) bounds: Bounds,
    pub(crate) cost: CostRule,
    pub(crate) mode: Mode,
    pub(crate) when_down: FailureMode,
    pub(crate) when_limited: WhenLimited,
    pub(crate) refund: Vec<Statuses>,
    pub(crate) message: Option<String>,
}

impl LimitRule {
    /// Its place in [`Policy::limits`](crate::Policy::limits).
    pub fn id(&self) -> usize {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same, to keep.
    pub fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// What it does.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What it does when its store does not answer.
    pub fn when_down(&self) -> FailureMode {
        self.when_down
    }

    /// What becomes of a request that does not fit.
    pub fn when_limited(&self) -> WhenLimited {
        self.when_limited
    }

    /// What a refused caller is told, if it is not what the policy says.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// What a request really costs, if its answer says so: nothing for some statuses, or the number
    /// in a header.
    pub fn cost_of_answer(&self, status: u16, headers: &dyn Headers) -> Option<u64> {
        if self.refund.iter().any(|statuses| statuses.contains(status)) {
            return Some(0);
        }
        let CostRule::ResponseHeader { name, max, .. } = &self.cost else { return None };
        let told = headers.all(name).into_iter().filter_map(parse_amount).max();
        told.map(|cost| cost.min(max.get()))
    }
}

/// How much, for every tier.
#[derive(Debug)]
pub(crate) enum Bounds {
    Same(Bound),
    PerTier(Vec<Option<Bound>>),
}

impl Bounds {
    /// For this tier. `None` is no limit at all.
    pub(crate) fn of(&self, tier: Option<usize>) -> Option<&Bound> {
        match self {
            Self::Same(bound) => Some(bound),
            Self::PerTier(bounds) => bounds.get(tier?)?.as_ref(),
        }
    }
}

/// How much, and of that how much for each class.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) amount: Amount,
    pub(crate) shares: Vec<(usize, Amount)>,
}

impl Bound {
    /// All of it, or what this class may take of it.
    pub(crate) fn amount(&self, class: Option<usize>) -> Option<&Amount> {
        match class {
            None => Some(&self.amount),
            Some(class) => {
                self.shares.iter().find(|(of, _)| *of == class).map(|(_, amount)| amount)
            }
        }
    }
}

/// How much may pass.
#[derive(Clone, Debug)]
pub enum Amount {
    /// So much per period.
    Rate(Limit),
    /// So many at a time.
    Concurrency {
        /// Their name.
        name: Arc<str>,
        /// How many.
        max: u64,
    },
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rate(limit) => limit.fmt(f),
            Self::Concurrency { max, .. } => write!(f, "{max} at a time"),
        }
    }
}

/// What a limit does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// What does not fit is refused.
    #[default]
    Enforce,
    /// It counts and reports, and refuses nothing.
    Shadow,
    /// Nothing.
    Off,
    /// It is enforced for this part of the keys, in hundredths of a percent.
    Ramp(u16),
}

impl Mode {
    /// Is it enforced for this key? A key is always on the same side, on every node.
    pub(crate) fn is_enforced(self, name: &str, key: &[u8]) -> bool {
        match self {
            Self::Enforce => true,
            Self::Shadow | Self::Off => false,
            Self::Ramp(part) => spread(name, key) % 10_000 < u64::from(part),
        }
    }
}

/// FNV-1a and a finish, so that keys which differ in their last byte are spread.
fn spread(name: &str, key: &[u8]) -> u64 {
    let bytes = name.bytes().chain([0]).chain(key.iter().copied());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// What becomes of a request that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenLimited {
    /// It is refused.
    #[default]
    Reject,
    /// It is held until there is room, up to the length of the leaky bucket.
    Queue,
    /// It is answered with what was answered before, if that is no older than this.
    ServeStale(Duration),
}

/// Statuses from the one up to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statuses {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl Statuses {
    pub(crate) fn contains(&self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// How much a request takes.
#[derive(Debug)]
pub(crate) enum CostRule {
    Fixed(Cost),
    RequestHeader { name: String, default: Cost, max: Cost },
    ResponseHeader { name: String, default: Cost, max: Cost },
    Routes { routes: Vec<(Condition, Cost)>, default: Cost },
}

impl CostRule {
    pub(crate) fn of(&self, facts: &Facts<'_, '_>) -> Cost {
        match self {
            Self::Fixed(cost) => *cost,
            Self::ResponseHeader { default, .. } => *default,
            Self::Routes { routes, default } => cost_of_routes(routes, *default, facts),
            Self::RequestHeader { name, default, max } => {
                let values = facts.request.headers.all(name);
                let told = values.iter().filter_map(|value| parse_amount(value));
                told.filter_map(Cost::new).max().map_or(*default, |cost| cost.min(*max))
            }
        }
    }
}

/// The first route that matches, or of those that may be meant the dearest.
fn cost_of_routes(routes: &[(Condition, Cost)], default: Cost, facts: &Facts<'_, '_>) -> Cost {
    let mut cost = None;
    for (on, of_route) in routes.iter().filter(|(on, _)| on.mismatch(facts).is_none()) {
        cost = cost.max(Some(*of_route));
        if on.surely_holds(facts) {
            return cost.unwrap_or(default);
        }
    }
    cost.map_or(default, |cost| cost.max(default))
}

/// A number in a header. Said more than once, the largest counts.
fn parse_amount(value: &[u8]) -> Option<u64> {
    value.split(|byte| *byte == b',').filter_map(parse_number).max()
}

/// A number that is too large to be told is as large as can be.
fn parse_number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number = || std::str::from_utf8(digits).ok()?.parse().ok();
    is_number.then(|| number().unwrap_or(u64::MAX))
}
