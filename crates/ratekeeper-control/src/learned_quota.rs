//! What a server's own headers allow, so that a caller slows down before the first refusal.

use std::time::Duration;

use ratekeeper_core::Micros;

use crate::response_hints::QuotaHint;

/// Resets are whole seconds, so two of the same time may differ by this much.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Up to this window, a bucket and a window cannot be distinguished by whole seconds.
const AMBIGUOUS_WINDOW_MAX: Duration = Duration::from_secs(2);

/// While the model is uncertain, a reset that is this close to the end of a wait is waited for.
const UNCERTAIN_SLACK: Duration = Duration::from_secs(2);

/// What a server allows, as learned from the headers of its responses.
///
/// Servers mean one of two things by what remains and when it resets. With a fixed window, nothing
/// comes back before the reset. A bucket refills all the time, and the reset is when it is full; who
/// waited for it would waste quota. Where the limit and its window are known, they are distinguished:
/// a bucket of which `r` of `q` units remain is full after at most `(q − r)·w/q`, up to a second of
/// rounding. A later reset is that of a window, and then the server is taken to use windows from
/// there on. An earlier reset is the time until the next request is admitted, whatever the server
/// uses, so nothing is expected back before it. A window of at most 2 s is taken for a bucket, and a
/// limit without a known window for a window, unless all its resets are 1 or 2 whole seconds: rounded
/// up, these say too little.
///
/// Without a constraint, everything may be sent: before the first response, after the reset of a
/// window until the next response, and if a response does not say both what remains and when it
/// resets.
///
/// A wait is never longer than the time until the reset that the server stated. What is charged to
/// a bucket since then adds the time in which it refills.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{LearnedQuota, Micros, QuotaHint};
///
/// let now = Micros::new(1_790_000_000_000_000);
/// let mut quota = LearnedQuota::default();
/// assert_eq!(quota.wait(1, now), None); // nothing is known yet
///
/// let hint = QuotaHint {
///     remaining: Some(1),
///     reset_after: Some(Duration::from_secs(30)),
///     ..QuotaHint::default()
/// };
/// quota.observe(&hint, 0, now);
/// assert_eq!(quota.wait(1, now), None);
/// quota.charge(1, now);
/// assert_eq!(quota.wait(1, now), Some(Duration::from_secs(30)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct LearnedQuota {
    model: Model,
    /// Whether the server has stated a reset that only a window has.
    has_windows: bool,
    /// Whether it has stated a reset that means something: finer than seconds, or seconds away.
    has_exact_resets: bool,
}

#[derive(Clone, Debug, Default)]
enum Model {
    /// There is no constraint.
    #[default]
    Unknown,
    /// Nothing comes back before the reset.
    Window(Window),
    /// Units come back all the time.
    Refill(Refill),
}

impl LearnedQuota {
    /// Takes in what a response says.
    ///
    /// `in_flight` is the units that were sent and whose response has not come yet. The server may
    /// have counted them or not; it is assumed that it has not. Responses may come in any order: of
    /// one window, the least that was available counts.
    pub fn observe(&mut self, hint: &QuotaHint, in_flight: u64, now: Micros) {
        let (Some(remaining), Some(reset_after)) = (hint.remaining, hint.reset_after) else {
            return;
        };
        let stated = Window {
            available: remaining.saturating_sub(in_flight),
            observed_at: now,
            resets_at: now.after(reset_after),
        };
        self.has_exact_resets |=
            reset_after > AMBIGUOUS_WINDOW_MAX || reset_after.subsec_nanos() > 0;
        let policy = Policy::of(hint);
        if policy.is_none() && !self.has_exact_resets {
            // A bucket that refills within a second states the same, rounded up.
            return;
        }
        let fit = policy.map_or(Fit::Later, |policy| policy.fit(remaining, reset_after));
        self.has_windows |= policy.is_some() && fit == Fit::Later;
        self.model = match policy {
            Some(policy) if fit == Fit::Bucket && !self.has_windows => {
                Model::Refill(Refill::new(policy, &stated))
            }
            // Where an earlier reset may be that of a bucket, the latest response counts.
            Some(_) if !self.has_windows => Model::Window(stated),
            _ => Model::Window(self.merged(stated)),
        };
    }

    /// Returns the window by all responses so far.
    fn merged(&self, stated: Window) -> Window {
        match &self.model {
            Model::Window(known) if known.is_current(stated.observed_at) => known.merged(stated),
            _ => stated,
        }
    }

    /// Whether a response has stated what remains. Otherwise no request waits.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(self.model, Model::Unknown)
    }

    /// Returns how long to wait until a request of this cost may be sent; `None` if it may be sent
    /// now.
    ///
    /// A cost above what the server ever has available waits until the reset.
    #[must_use]
    pub fn wait(&self, cost: u64, now: Micros) -> Option<Duration> {
        let wait = match &self.model {
            Model::Unknown => None,
            Model::Window(window) => window.wait(cost, now),
            Model::Refill(refill) => refill.wait(cost, now),
        };
        wait.filter(|wait| !wait.is_zero())
    }

    /// Charges a request that is sent.
    pub fn charge(&mut self, cost: u64, now: Micros) {
        match &mut self.model {
            Model::Unknown => {}
            Model::Window(window) => window.available = window.available.saturating_sub(cost),
            Model::Refill(refill) => refill.charge(cost, now),
        }
    }
}

/// A limit of a known number of units in a known time. Neither is 0.
#[derive(Clone, Copy, Debug)]
struct Policy {
    quota: u64,
    window_us: u64,
}

/// How a stated reset compares with that of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It is too early for a full bucket.
    Earlier,
    /// A bucket would be full then.
    Bucket,
    /// A bucket would have been full before.
    Later,
}

impl Policy {
    fn of(hint: &QuotaHint) -> Option<Self> {
        let quota = hint.limit.filter(|quota| *quota > 0)?;
        let window = Micros::new(0).after(hint.window?);
        (window.get() > 0).then_some(Self { quota, window_us: window.get() })
    }

    /// Compares a reset with that of a bucket, which has between `remaining` and one unit more.
    fn fit(&self, remaining: u64, reset_after: Duration) -> Fit {
        if self.is_ambiguous() {
            return Fit::Bucket;
        }
        let used = self.quota.saturating_sub(remaining);
        let latest = self.refill_time(used);
        let earliest = self.refill_time(used.saturating_sub(1));
        if reset_after > latest.saturating_add(TOLERANCE) {
            Fit::Later
        } else if reset_after.saturating_add(TOLERANCE) < earliest {
            Fit::Earlier
        } else {
            Fit::Bucket
        }
    }

    fn is_ambiguous(&self) -> bool {
        Duration::from_micros(self.window_us) <= AMBIGUOUS_WINDOW_MAX
    }

    /// Returns the time in which this many units refill, rounded up.
    fn refill_time(&self, units: u64) -> Duration {
        self.credit_time(u128::from(units) * u128::from(self.window_us))
    }

    /// Returns the time in which this much credit refills, rounded up. A unit is `window_us` of
    /// credit, and each microsecond adds `quota` of it, so that all of it is whole numbers.
    fn credit_time(&self, credit: u128) -> Duration {
        let us = credit.div_ceil(u128::from(self.quota));
        Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
    }
}

/// Returns whether an observation still counts. It does not if the clock was set back since.
fn is_current(observed_at: Micros, now: Micros) -> bool {
    now.after(TOLERANCE) >= observed_at
}

/// What may be sent until the reset.
#[derive(Clone, Debug)]
struct Window {
    available: u64,
    observed_at: Micros,
    resets_at: Micros,
}

impl Window {
    fn wait(&self, cost: u64, now: Micros) -> Option<Duration> {
        let is_spent = cost > self.available && self.is_current(now);
        is_spent.then(|| self.resets_at.since(now.max(self.observed_at)))
    }

    fn is_current(&self, now: Micros) -> bool {
        now < self.resets_at && is_current(self.observed_at, now)
    }

    /// Returns the window by this and a newer response. What is available rises only with a later
    /// window.
    fn merged(&self, stated: Self) -> Self {
        if stated.resets_at > self.resets_at.after(TOLERANCE) {
            stated
        } else if stated.resets_at.after(TOLERANCE) < self.resets_at {
            // A late response of the window before.
            self.clone()
        } else {
            Self {
                available: self.available.min(stated.available),
                observed_at: stated.observed_at,
                resets_at: self.resets_at.min(stated.resets_at),
            }
        }
    }
}

/// A bucket that refills all the time.
#[derive(Clone, Debug)]
struct Refill {
    policy: Policy,
    /// What was available at `as_of`; a unit is `window_us` of credit.
    credit: u128,
    as_of: Micros,
    /// When it is full at the latest.
    full_at: Micros,
}

impl Refill {
    fn new(policy: Policy, stated: &Window) -> Self {
        let credit = u128::from(stated.available) * u128::from(policy.window_us);
        let Window { observed_at, resets_at, .. } = *stated;
        Self { policy, credit, as_of: observed_at, full_at: resets_at }
    }

    fn wait(&self, cost: u64, now: Micros) -> Option<Duration> {
        let needed = self.capacity().min(u128::from(cost) * u128::from(self.policy.window_us));
        let missing = needed.saturating_sub(self.credit);
        let is_constrained = missing > 0 && is_current(self.as_of, now);
        is_constrained.then(|| self.refilled_at(missing).since(now.max(self.as_of)))
    }

    /// Returns when this much credit has come back.
    fn refilled_at(&self, missing: u128) -> Micros {
        let refilled_at = self.as_of.after(self.policy.credit_time(missing));
        // It might be a window after all, which a wait until the reset respects.
        let is_uncertain = !self.policy.is_ambiguous();
        if is_uncertain && self.full_at <= refilled_at.after(UNCERTAIN_SLACK) {
            return self.full_at;
        }
        refilled_at.min(self.full_at)
    }

    fn charge(&mut self, cost: u64, now: Micros) {
        let now = now.max(self.as_of);
        let charged = u128::from(cost) * u128::from(self.policy.window_us);
        self.credit = self.credit_at(now).saturating_sub(charged);
        self.full_at = self.full_at.max(now).after(self.policy.refill_time(cost));
        self.as_of = now;
    }

    fn credit_at(&self, now: Micros) -> u128 {
        if now >= self.full_at {
            return self.capacity();
        }
        let refilled = now.since(self.as_of).as_micros() * u128::from(self.policy.quota);
        (self.credit + refilled).min(self.capacity())
    }

    fn capacity(&self) -> u128 {
        u128::from(self.policy.quota) * u128::from(self.policy.window_us)
    }
}
