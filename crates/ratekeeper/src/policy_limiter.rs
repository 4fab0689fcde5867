//! A policy over a store: requests in, admissions out.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{
    Amount, AppliedLimit, AppliedLimits, Policy, RequestAttributes, Resolution, StoreSettings,
};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op};
use smallvec::SmallVec;

use crate::admission::{Admission, Admitted, Permits, Refusal, RefusalReason, charge_of, rate_of};
use crate::clock::{Clock, SystemClock};
use crate::engine::{
    Applied, Engine, EngineStore, InFlightPermit, MaybeReady, PermitRequest, Receipt,
};
use crate::policy_handle::{ActivePolicy, PolicyHandle, PolicyLoadError, read_stamped};
use crate::telemetry::{Outcome, Telemetry};

/// Decides about requests by a policy.
///
/// The policy can be replaced at any time without losing a count ([`PolicyLimiter::policy`]); limits that
/// are in no policy can share its store ([`PolicyLimiter::engine`]); what was decided is counted
/// ([`PolicyLimiter::telemetry`]). Clones share all of it.
///
/// ```
/// use ratekeeper::policy::RequestAttributes;
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("2/minute per ip")?)?;
/// let request = RequestAttributes { peer: Some([192, 0, 2, 1].into()), ..RequestAttributes::new("GET", "/") };
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// assert!(limiter.decide(&request).await.is_admitted());
/// assert!(limiter.decide(&request).await.is_admitted());
/// assert!(!limiter.decide(&request).await.is_admitted());
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PolicyLimiter {
    inner: Arc<Inner>,
}

struct Inner {
    policy: Arc<PolicyHandle>,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
}

impl std::fmt::Debug for PolicyLimiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyLimiter").field("policy", self.policy()).finish_non_exhaustive()
    }
}

impl PolicyLimiter {
    /// Returns a limiter for a policy, over the store that the policy names.
    ///
    /// # Errors
    ///
    /// If the address of the store is invalid.
    pub fn new(policy: Policy) -> Result<Self, PolicyLoadError> {
        Self::with_clock(policy, SystemClock)
    }

    /// Returns a limiter that uses another clock. A shared store uses its server's clock in any case.
    ///
    /// # Errors
    ///
    /// If the address of the store is invalid.
    pub fn with_clock(
        policy: Policy,
        clock: impl Clock + 'static,
    ) -> Result<Self, PolicyLoadError> {
        let engine = Arc::new(Engine::new(open_store(policy.store())?, Box::new(clock)));
        let telemetry = Arc::<Telemetry>::default();
        let policy = Arc::new(PolicyHandle::new(policy, engine.clone(), telemetry.clone()));
        Ok(Self { inner: Arc::new(Inner { policy, engine, telemetry }) })
    }

    /// Returns a limiter for the policy in this file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or its policy is invalid.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PolicyLoadError> {
        let path = path.as_ref();
        let (policy, stamps) = read_stamped(path);
        let limiter = Self::new(policy?)?;
        limiter.policy().set_opened(path, stamps);
        Ok(limiter)
    }

    /// Returns the active policy, to inspect, reload or replace it.
    pub fn policy(&self) -> &Arc<PolicyHandle> {
        &self.inner.policy
    }

    /// Returns the engine, for limits that are in no policy.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.inner.engine
    }

    /// Returns the counters of what was decided.
    pub fn telemetry(&self) -> &Telemetry {
        &self.inner.telemetry
    }

    /// Decides about a request by the active policy. The request is read before this returns; only a shared
    /// store is waited for.
    pub fn decide(&self, request: &RequestAttributes<'_>) -> MaybeReady<Admission> {
        self.decide_under(self.policy().active(), request, self.engine().now())
    }

    /// Decides about a request by a policy that was active when the request arrived, at a time that was read
    /// from the engine's clock. For code that reads the policy too and must see the same one.
    pub fn decide_under(
        &self,
        policy: Arc<ActivePolicy>,
        request: &RequestAttributes<'_>,
        now: Micros,
    ) -> MaybeReady<Admission> {
        let limits = match self.resolve(&policy, request) {
            Ok(Some(limits)) => limits,
            Ok(None) => return MaybeReady::ready(Admission::Exempt),
            Err(refusal) => return MaybeReady::ready(Admission::Refused(refusal)),
        };
        if self.engine().is_memory() {
            // With a store in memory nothing is waited for, so the first poll completes.
            let admission = pin!(self.inner.admit(&policy, limits, now));
            return match admission.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(admission) => MaybeReady::ready(admission.into()),
                Poll::Pending => unreachable!("a store in memory decides at once"),
            };
        }
        let inner = Arc::clone(&self.inner);
        MaybeReady::pending(async move { inner.admit(&policy, limits, now).await.into() })
    }

    /// Finds the limits of a request; `None` if it is exempt.
    pub(crate) fn resolve(
        &self,
        policy: &ActivePolicy,
        request: &RequestAttributes<'_>,
    ) -> Result<Option<AppliedLimits>, Box<Refusal>> {
        match policy.policy().resolve(request) {
            Resolution::Charged(limits) => Ok(Some(limits)),
            Resolution::Exempt(_) => {
                self.inner.telemetry.count_exempt();
                Ok(None)
            }
            Resolution::MissingIdentity { rule, missing } => {
                policy.counters(rule).count_denied();
                let identity = missing.identity.to_string();
                let reason = RefusalReason::MissingIdentity { identity, why: missing.why };
                Err(Box::new(Refusal { rule: rule.clone(), reason, is_degraded: false }))
            }
        }
    }

    /// Charges these limits, all or none.
    #[cfg(feature = "client")]
    pub(crate) async fn admit(
        &self,
        policy: &ActivePolicy,
        limits: AppliedLimits,
        now: Micros,
    ) -> Result<Admitted, Box<Refusal>> {
        self.inner.admit(policy, limits, now).await
    }

    /// Returns what a rate limit has left for a key, without charging; `None` for a concurrency limit.
    pub async fn peek(&self, limit: &AppliedLimit) -> Option<Applied> {
        let charge = charge_of(limit)?;
        self.engine().apply(Op::Peek, &[charge]).await.ok()
    }
}

/// The verdict on the enforced rate limits of a request.
struct RateVerdict {
    /// The index of the binding limit, and its decision.
    binding: Option<(usize, Decision)>,
    delay: Duration,
    is_degraded: bool,
    /// By the index of the limit: its decision and receipt, if it was charged.
    charged: SmallVec<[Option<(Decision, Receipt)>; 2]>,
}

/// The limit that refuses, by its index.
struct Refused {
    by: usize,
    reason: RefusalReason,
    is_degraded: bool,
}

impl Inner {
    /// Admits or refuses a request: permits first, because they can be released; then all rate limits or
    /// none; then the limits in shadow mode, each by itself.
    async fn admit(
        self: &Arc<Self>,
        policy: &ActivePolicy,
        limits: AppliedLimits,
        now: Micros,
    ) -> Result<Admitted, Box<Refusal>> {
        let mut permits = Permits::new();
        let enforced = match self.enforce(&limits, now, &mut permits).await {
            Ok(verdict) => verdict,
            Err(Refused { by, reason, is_degraded }) => {
                self.telemetry.record(policy, &limits[by], Outcome::Denied, now);
                let rule = limits[by].rule.clone();
                return Err(Box::new(Refusal { rule, reason, is_degraded }));
            }
        };
        let RateVerdict { binding, delay, is_degraded, charged } = enforced;
        let mut receipts = SmallVec::with_capacity(limits.len());
        for (limit, charged) in limits.iter().zip(charged) {
            let receipt = if limit.is_enforced {
                let (decision, receipt) = charged.unzip();
                if !limit.is_share() {
                    self.telemetry.record_allowed(policy, limit, decision.as_ref(), now);
                }
                receipt.filter(|_| decision.is_none_or(|decision| !decision.is_cut()))
            } else {
                self.shadow(policy, limit, now, &mut permits).await
            };
            receipts.push(receipt);
        }
        let engine = self.engine.clone();
        Ok(Admitted {
            limits,
            receipts,
            binding,
            delay,
            is_degraded,
            permits,
            #[cfg(feature = "client")]
            ended: Default::default(),
            engine,
        })
    }

    async fn enforce(
        &self,
        limits: &[AppliedLimit],
        now: Micros,
        permits: &mut Permits,
    ) -> Result<RateVerdict, Refused> {
        let mut rates: SmallVec<[usize; 4]> = SmallVec::new();
        for (i, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.is_enforced) {
            match limit.amount() {
                Amount::Rate(_) => rates.push(i),
                Amount::Concurrency { max, .. } => {
                    let reason = RefusalReason::TooManyInFlight { max: *max };
                    let permit = self.acquire(limit).await;
                    permits.push(permit.ok_or(Refused { by: i, reason, is_degraded: false })?);
                }
            }
        }
        self.charge_rates(limits, &rates, now).await
    }

    /// Charges all of these limits or none.
    async fn charge_rates(
        &self,
        limits: &[AppliedLimit],
        rates: &[usize],
        now: Micros,
    ) -> Result<RateVerdict, Refused> {
        let charges: SmallVec<[Charge<'_>; 4]> =
            rates.iter().filter_map(|i| charge_of(&limits[*i])).collect();
        let mut verdict = RateVerdict {
            binding: None,
            delay: Duration::ZERO,
            is_degraded: false,
            charged: limits.iter().map(|_| None).collect(),
        };
        if charges.is_empty() {
            return Ok(verdict);
        }
        let Ok(applied) = self.engine.apply_at(Op::Check, &charges, now).await else {
            // Limits of a policy differ in name, so there are too many of them.
            let reason = RefusalReason::TooManyLimits { max: CHARGES_MAX };
            return Err(Refused { by: rates[0], reason, is_degraded: false });
        };
        let (by, decision) = (rates[applied.binding()], **applied);
        verdict.is_degraded = applied.is_degraded();
        if !decision.allowed() {
            let limit = rate_of(&limits[by]).expect("only rates were charged").clone();
            let reason = RefusalReason::RateLimited { limit, decision };
            return Err(Refused { by, reason, is_degraded: verdict.is_degraded });
        }
        verdict.binding = Some((by, decision));
        verdict.delay = applied.delay();
        let receipt = applied.receipt();
        for (i, decision) in rates.iter().zip(applied.decisions()) {
            verdict.charged[*i] = Some((*decision, receipt.of_charge(decision)));
        }
        Ok(verdict)
    }

    /// Charges a limit in shadow mode: it counts as if it alone were enforced, and refuses nothing.
    async fn shadow(
        &self,
        policy: &ActivePolicy,
        limit: &AppliedLimit,
        now: Micros,
        permits: &mut Permits,
    ) -> Option<Receipt> {
        let (decision, receipt, is_allowed) = match charge_of(limit) {
            Some(charge) => {
                let applied = self.engine.apply_at(Op::Check, &[charge], now).await.ok()?;
                let decision = **applied;
                (Some(decision), Some(applied.receipt().of_charge(&decision)), decision.allowed())
            }
            None => {
                let permit = self.acquire(limit).await;
                let is_allowed = permit.is_some();
                permits.extend(permit);
                (None, None, is_allowed)
            }
        };
        match is_allowed {
            true if limit.is_share() => {}
            true => self.telemetry.record_allowed(policy, limit, decision.as_ref(), now),
            false => self.telemetry.record(policy, limit, Outcome::ShadowDenied, now),
        }
        receipt.filter(|_| is_allowed && decision.is_none_or(|decision| !decision.is_cut()))
    }

    async fn acquire(&self, limit: &AppliedLimit) -> Option<InFlightPermit> {
        let Amount::Concurrency { name, max } = limit.amount() else { return None };
        let (key, on_failure) = (limit.key.as_bytes(), limit.rule.on_failure());
        self.engine.acquire(PermitRequest { name, key, max: *max, on_failure }).await
    }
}

fn memory_store(settings: &StoreSettings) -> EngineStore {
    let store = settings.keys_max.map_or_else(MemoryStore::new, MemoryStore::with_capacity);
    EngineStore::Memory(Box::new(store))
}

#[cfg(not(feature = "redis"))]
fn open_store(settings: &StoreSettings) -> Result<EngineStore, PolicyLoadError> {
    match &settings.url {
        None => Ok(memory_store(settings)),
        Some(_) => Err(PolicyLoadError::NoRedis),
    }
}

#[cfg(feature = "redis")]
fn open_store(settings: &StoreSettings) -> Result<EngineStore, PolicyLoadError> {
    use crate::engine::fallback::Fallback;
    use crate::engine::fleet_store::FleetStore;
    use ratekeeper_stores::{LeasedStore, RedisConfig};

    let Some(url) = &settings.url else { return Ok(memory_store(settings)) };
    let mut config = RedisConfig::new(url);
    if let Some(prefix) = &settings.prefix {
        config = config.with_prefix(prefix);
    }
    if let Some(deadline) = settings.deadline {
        config = config.with_deadline(deadline);
    }
    let store = config.open()?;
    let store = match settings.leased {
        true => FleetStore::Leased(LeasedStore::new(store)),
        false => FleetStore::Direct(store),
    };
    Ok(EngineStore::Shared(Fallback::new(store)))
}
