//! The decision about a request: exempt, admitted or refused.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_control::Shed;
#[cfg(feature = "tower")]
use ratekeeper_control::adaptive::SampleOutcome;
use ratekeeper_core::{Decision, Limit};
use ratekeeper_policy::{AppliedLimit, AppliedLimits, Headers, LimitRule, MissingReason};
use ratekeeper_stores::Op;
use smallvec::SmallVec;

use crate::adaptive_limit::load_of;
use crate::bulkhead::BulkheadError;
use crate::engine::{Applied, Engine, InFlightPermit, Receipt};

/// The decision about a request.
///
/// ```
/// use ratekeeper::policy::RequestAttributes;
/// use ratekeeper::{Admission, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("1/minute per ip")?)?;
/// let request = RequestAttributes { peer: Some([192, 0, 2, 1].into()), ..RequestAttributes::new("GET", "/") };
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let first = limiter.decide(&request).await;
/// assert!(matches!(first, Admission::Admitted(_)));
/// if let Admission::Refused(refusal) = limiter.decide(&request).await {
///     let binding = refusal.binding().expect("a rate limit");
///     println!("{} refused, retry in {:?}", binding.rule.name(), binding.decision.retry_after());
/// }
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a refused request must not proceed"]
pub enum Admission {
    /// No limit applies to it.
    Exempt,
    /// It may proceed.
    Admitted(Box<Admitted>),
    /// It may not.
    Refused(Box<Refusal>),
    /// It may not, because the service is overloaded and other requests matter more.
    Shed(Box<ShedRefusal>),
}

impl Admission {
    /// Returns whether the request may proceed.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Shed(_))
    }
}

/// Why a request may not proceed.
pub(crate) enum NotAdmitted {
    Refused(Denial),
    Shed(Box<ShedRefusal>),
}

impl From<Denial> for NotAdmitted {
    fn from(denial: Denial) -> Self {
        Self::Refused(denial)
    }
}

/// A request that was shed: its priority class is, or its user within the class.
///
/// ```
/// use ratekeeper::Admission;
///
/// fn log(admission: &Admission) {
///     if let Admission::Shed(refusal) = admission {
///         println!("shed {}, retry in {:?}", refusal.class, refusal.shed.retry_after);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShedRefusal {
    /// The name of its priority class.
    pub class: String,
    /// Why, and when to retry.
    pub shed: Shed,
}

pub(crate) type Permits = SmallVec<[InFlightPermit; 1]>;

/// A request that may proceed. It is in flight until this is dropped.
///
/// ```
/// use ratekeeper::policy::RequestAttributes;
/// use ratekeeper::{Admission, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// let request = RequestAttributes { peer: Some([192, 0, 2, 1].into()), ..RequestAttributes::new("GET", "/") };
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// if let Admission::Admitted(mut admitted) = limiter.decide(&request).await {
///     tokio::time::sleep(admitted.delay).await;
///     // … serve the request. It took 5 units instead of 1:
///     admitted.settle_as(5);
/// }
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped, the request is no longer in flight"]
pub struct Admitted {
    pub(crate) limits: AppliedLimits,
    /// By limit: when and where it was charged, if the charge can still be corrected.
    pub(crate) receipts: SmallVec<[Option<Receipt>; 2]>,
    /// The index of the binding limit, and its decision.
    pub(crate) binding: Option<(usize, Decision)>,
    /// How long to delay the request before it proceeds.
    pub delay: Duration,
    /// Whether it was decided without the store, which is unavailable.
    pub is_degraded: bool,
    pub(crate) permits: Permits,
    /// The limits that would have refused it, but for shadow mode.
    pub(crate) shadow_denials: Vec<ShadowDenial>,
    /// Dropped after the permits.
    #[cfg(feature = "client")]
    pub(crate) ended: EndSignal,
    pub(crate) engine: Arc<Engine>,
}

/// What was charged for a request that may proceed.
#[derive(Default)]
pub(crate) struct Charged {
    /// By limit, as in [`Admitted`].
    pub(crate) receipts: SmallVec<[Option<Receipt>; 2]>,
    pub(crate) binding: Option<(usize, Decision)>,
    pub(crate) delay: Duration,
    pub(crate) is_degraded: bool,
    pub(crate) permits: Permits,
    pub(crate) shadow_denials: Vec<ShadowDenial>,
}

/// A limit in shadow mode that would have refused a request.
#[derive(Debug)]
pub(crate) struct ShadowDenial {
    /// Its index among the limits of the request.
    pub(crate) index: usize,
    /// What was decided, if it is a rate limit.
    pub(crate) applied: Option<Box<Applied>>,
}

/// A request that a limit refused.
pub(crate) struct Denial {
    /// The index of the limit among those of the request.
    pub(crate) index: usize,
    pub(crate) refusal: Box<Refusal>,
    /// What was decided, if it is a rate limit.
    pub(crate) applied: Option<Box<Applied>>,
}

impl Charged {
    /// Keeps what is needed to correct the charge of a limit, if it can be corrected.
    #[inline]
    pub(crate) fn keep(&mut self, index: usize, receipt: &Receipt, decision: &Decision) {
        if !decision.is_cut() {
            self.receipts[index] = Some(receipt.of_charge(decision));
        }
    }

    /// Returns the admission of the request, which was charged to these limits.
    pub(crate) fn admitted(self, limits: AppliedLimits, engine: Arc<Engine>) -> Admitted {
        let Self { receipts, binding, delay, is_degraded, permits, shadow_denials } = self;
        Admitted {
            limits,
            receipts,
            binding,
            delay,
            is_degraded,
            permits,
            shadow_denials,
            #[cfg(feature = "client")]
            ended: Default::default(),
            engine,
        }
    }
}

/// Notifies those that wait for permits, when it is dropped.
#[cfg(feature = "client")]
#[derive(Debug, Default)]
pub(crate) struct EndSignal(Option<Arc<tokio::sync::Notify>>);

#[cfg(feature = "client")]
impl Drop for EndSignal {
    fn drop(&mut self) {
        if let Some(ended) = &self.0 {
            ended.notify_waiters();
        }
    }
}

/// The limit that decided about a request: when denied, the one with the longest wait; when allowed, the one
/// with the least remaining.
///
/// ```
/// use ratekeeper::BindingLimit;
///
/// fn describe(binding: BindingLimit<'_>) -> String {
///     format!("{}: {} of {} left", binding.rule.name(), binding.decision.remaining(), binding.limit.quota())
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BindingLimit<'a> {
    /// The limit of the policy.
    pub rule: &'a Arc<LimitRule>,
    /// Its numbers for this client.
    pub limit: &'a Limit,
    /// Its decision.
    pub decision: &'a Decision,
}

/// A request that may not proceed.
///
/// ```
/// use ratekeeper::policy::RequestAttributes;
/// use ratekeeper::{Admission, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("1/minute per ip")?)?;
/// let request = RequestAttributes { peer: Some([192, 0, 2, 1].into()), ..RequestAttributes::new("GET", "/") };
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// limiter.decide(&request).await.is_admitted();
/// let Admission::Refused(refusal) = limiter.decide(&request).await else { panic!("allowed") };
/// let wait = refusal.binding().and_then(|binding| binding.decision.retry_after_secs());
/// assert_eq!(wait, Some(60));
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The limit that refused.
    pub rule: Arc<LimitRule>,
    /// Why.
    pub reason: RefusalReason,
    /// Whether it was decided without the store, which is unavailable.
    pub is_degraded: bool,
    /// The id of the request, by which [`PolicyLimiter::refusals`](crate::PolicyLimiter::refusals) finds the refusal.
    /// `None` for requests that this program sends.
    pub request_id: Option<Arc<str>>,
}

/// Why a request may not proceed.
///
/// ```
/// use ratekeeper::{Refusal, RefusalReason};
///
/// fn status(refusal: &Refusal) -> u16 {
///     match &refusal.reason {
///         RefusalReason::MissingIdentity { .. } => 401,
///         _ => 429,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RefusalReason {
    /// A rate limit denied it.
    RateLimited {
        /// The numbers of the limit for this client.
        limit: Limit,
        /// The decision.
        decision: Decision,
    },
    /// Too many requests are in flight.
    TooManyInFlight {
        /// How many may be.
        max: u64,
    },
    /// It got no permit of a limit that protects the service: one that is adaptive, or has a queue.
    NoPermit(BulkheadError),
    /// It lacks an identity that a limit requires.
    MissingIdentity {
        /// The identity.
        identity: String,
        /// Why it is missing.
        why: MissingReason,
    },
    /// More rate limits apply to it than can be charged in one step.
    TooManyLimits {
        /// How many can be.
        max: usize,
    },
}

impl Refusal {
    /// Returns the binding limit, if it is a rate limit.
    pub fn binding(&self) -> Option<BindingLimit<'_>> {
        match &self.reason {
            RefusalReason::RateLimited { limit, decision } => {
                Some(BindingLimit { rule: &self.rule, limit, decision })
            }
            _ => None,
        }
    }
}

impl Admitted {
    /// Returns the limits that apply to the request, those in shadow mode too.
    pub fn limits(&self) -> &[AppliedLimit] {
        &self.limits
    }

    /// Returns the limits that would have refused the request, but for shadow mode.
    pub fn shadow_denied(&self) -> impl Iterator<Item = &AppliedLimit> {
        self.shadow_denials.iter().map(|denial| &self.limits[denial.index])
    }

    /// Returns the binding rate limit.
    pub fn binding(&self) -> Option<BindingLimit<'_>> {
        let (index, decision) = self.binding.as_ref()?;
        let limit = &self.limits[*index];
        Some(BindingLimit { rule: &limit.rule, limit: limit.rate()?, decision })
    }

    /// Notifies this when the request has released its permits.
    #[cfg(feature = "client")]
    pub(crate) fn notifying(mut self, ended: &Arc<tokio::sync::Notify>) -> Self {
        if self.holds_permits() {
            self.ended.0 = Some(Arc::clone(ended));
        }
        self
    }

    /// Returns whether the request holds a permit of a concurrency limit.
    #[must_use]
    pub fn holds_permits(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Corrects the charge to the cost that the response states, by the rule of each limit. A limit for
    /// which the response states none keeps its charge, and so does one whose charge was cut at its maximum
    /// debt. Adaptive limits learn from the response, and from when it came.
    pub fn settle(&mut self, status: u16, headers: &dyn Headers) {
        self.sample(status, headers);
        self.correct(|limit| limit.rule.response_cost(status, headers));
    }

    /// Reports the head of the response to adaptive limits. The request stays in flight.
    fn sample(&mut self, status: u16, headers: &dyn Headers) {
        for permit in &mut self.permits {
            if let InFlightPermit::Adaptive(permit) = permit {
                let mut grpc_status = None;
                headers.each("grpc-status", &mut |value| grpc_status = Some(value));
                permit.sample(load_of(status, grpc_status));
            }
        }
    }

    /// Reports to adaptive limits that the response says nothing about load, because the service was not called.
    #[cfg(feature = "tower")]
    pub(crate) fn ignore_load(&mut self) {
        for permit in &mut self.permits {
            if let InFlightPermit::Adaptive(permit) = permit {
                permit.sample(SampleOutcome::Ignored);
            }
        }
    }

    /// Corrects the charge of every limit that has not been settled to this cost. 0 refunds it.
    pub fn settle_as(&mut self, actual: u64) {
        self.correct(|_| Some(actual));
    }

    /// Returns where the limits whose charge still depends on the body of the response expect its usage.
    #[cfg(feature = "tower")]
    pub(crate) fn usage_formats(
        &self,
    ) -> impl Iterator<Item = &ratekeeper_policy::usage::UsageFormat> {
        let unsettled = self.limits.iter().zip(&self.receipts).filter(|(_, slot)| slot.is_some());
        unsettled.filter_map(|(limit, _)| limit.rule.usage_format())
    }

    /// Returns whether the charge of a limit depends on the body of the response.
    #[cfg(feature = "tower")]
    pub(crate) fn is_metered(&self) -> bool {
        self.usage_formats().next().is_some()
    }

    /// Corrects the charges that have not been settled to these costs.
    pub(crate) fn correct(&mut self, actual: impl Fn(&AppliedLimit) -> Option<u64>) {
        correct(&self.engine, &self.limits, &mut self.receipts, actual);
    }
}

/// Corrects the charges of these limits that have a receipt to these costs.
pub(crate) fn correct(
    engine: &Arc<Engine>,
    limits: &[AppliedLimit],
    receipts: &mut [Option<Receipt>],
    actual: impl Fn(&AppliedLimit) -> Option<u64>,
) {
    for (limit, slot) in limits.iter().zip(receipts) {
        let Some(actual) = slot.as_ref().and_then(|_| actual(limit)) else { continue };
        let (Some(receipt), Some(charge)) = (slot.take(), limit.charge()) else { continue };
        if let Some((op, cost)) = Op::correction(limit.cost, actual, receipt.at()) {
            let charge = charge.cost(cost).borrowed(receipt.is_borrowed());
            engine.correct_in_background(op, &charge, &receipt);
        }
    }
}
