//! A policy over a store: requests in, admissions out.

use std::path::Path;
use std::sync::Arc;

use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{
    Amount, AppliedLimit, AppliedLimits, NotCharged, Policy, RequestAttributes, StoreSettings,
};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op};
use smallvec::SmallVec;

use crate::admission::{Admission, Admitted, Charged, Permits, Refusal, RefusalReason};
use crate::clock::{Clock, SystemClock};
use crate::engine::{
    Applied, Engine, EngineStore, InFlightPermit, MaybeReady, PermitRefused, PermitRequest,
    Receipt, ready_now,
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
        let mut limits = AppliedLimits::new();
        match self.resolve(&policy, request, &mut limits) {
            Ok(Subject::Limited) => {}
            Ok(Subject::Exempt) => return MaybeReady::ready(Admission::Exempt),
            Err(refusal) => return MaybeReady::ready(Admission::Refused(refusal)),
        }
        if self.engine().is_memory() {
            let admission = ready_now(self.inner.admit(&policy, limits, now));
            return MaybeReady::ready(admission.into());
        }
        let inner = Arc::clone(&self.inner);
        MaybeReady::pending(async move { inner.admit(&policy, limits, now).await.into() })
    }

    /// Finds the limits of a request, which are added to `limits`.
    pub(crate) fn resolve(
        &self,
        policy: &ActivePolicy,
        request: &RequestAttributes<'_>,
        limits: &mut AppliedLimits,
    ) -> Result<Subject, Box<Refusal>> {
        match policy.policy().resolve_into(request, limits) {
            Ok(()) => Ok(Subject::Limited),
            Err(NotCharged::Exempt(_)) => {
                self.inner.telemetry.count_exempt();
                Ok(Subject::Exempt)
            }
            Err(NotCharged::MissingIdentity { rule, missing }) => {
                policy.counters(rule).count_denied();
                let identity = missing.identity.to_string();
                let reason = RefusalReason::MissingIdentity { identity, why: missing.why };
                Err(Box::new(Refusal { rule: rule.clone(), reason, is_degraded: false }))
            }
        }
    }

    /// Charges these limits, all or none.
    #[cfg(feature = "client")]
    pub(crate) async fn charge(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), Box<Refusal>> {
        self.inner.charge(policy, limits, now, charged).await
    }

    /// Returns what a rate limit has left for a key, without charging; `None` for a concurrency limit.
    pub async fn peek(&self, limit: &AppliedLimit) -> Option<Applied> {
        let charge = limit.charge()?;
        self.engine().apply(Op::Peek, &[charge]).await.ok()
    }
}

/// Whether limits apply to a request.
pub(crate) enum Subject {
    Exempt,
    Limited,
}

impl Inner {
    async fn admit(
        &self,
        policy: &ActivePolicy,
        limits: AppliedLimits,
        now: Micros,
    ) -> Result<Admitted, Box<Refusal>> {
        let mut charged = Charged::default();
        self.charge(policy, &limits, now, &mut charged).await?;
        Ok(charged.admitted(limits, Arc::clone(&self.engine)))
    }

    /// Charges a request, or refuses it: permits first, because they can be released; then all rate limits
    /// or none; then the limits in shadow mode, each by itself.
    async fn charge(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), Box<Refusal>> {
        charged.receipts.resize_with(limits.len(), || None);
        if let Err((by, refusal)) = self.enforce(policy, limits, now, charged).await {
            self.telemetry.record(policy, &limits[by], Outcome::Denied, now);
            return Err(refusal);
        }
        for (i, limit) in limits.iter().enumerate().filter(|(_, limit)| !limit.is_enforced) {
            charged.receipts[i] = self.shadow(policy, limit, now, &mut charged.permits).await;
        }
        Ok(())
    }

    /// Charges the limits that are enforced. If one refuses, returns its index too.
    async fn enforce(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), (usize, Box<Refusal>)> {
        let mut rates: SmallVec<[usize; 4]> = SmallVec::new();
        for (i, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.is_enforced) {
            match limit.amount() {
                Amount::Rate(_) => rates.push(i),
                Amount::Concurrency { rule, .. } => {
                    let permit = self.acquire(limit).await.map_err(|refused| {
                        let reason = RefusalReason::TooManyInFlight { max: rule.max() };
                        (i, refusal(limit, reason, refused.is_degraded))
                    })?;
                    charged.is_degraded |= permit.is_degraded();
                    charged.permits.push(permit);
                }
            }
        }
        if !rates.is_empty() {
            self.charge_rates(policy, limits, &rates, now, charged).await?;
        }
        for limit in limits.iter().filter(|limit| limit.is_enforced && !limit.is_share()) {
            if matches!(limit.amount(), Amount::Concurrency { .. }) {
                self.telemetry.record_allowed(policy, limit, None, now);
            }
        }
        Ok(())
    }

    /// Charges all of these limits or none.
    async fn charge_rates(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        rates: &[usize],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), (usize, Box<Refusal>)> {
        if let [i] = *rates
            && let Some(charge) = limits[i].charge()
            && let Some(decision) = self.engine.apply_one_now(Op::Check, &charge, now)
        {
            if !decision.allowed() {
                return Err((i, rate_limited(&limits[i], decision, false)));
            }
            charged.binding = Some((i, decision));
            charged.delay = decision.delay();
            self.record_rate(policy, &limits[i], &decision, now);
            charged.keep(i, &Receipt::in_memory(now), &decision);
            return Ok(());
        }
        let charges = || -> SmallVec<[Charge<'_>; 2]> {
            rates.iter().filter_map(|i| limits[*i].charge()).collect()
        };
        let applied = match self.engine.apply_now(Op::Check, &charges(), now) {
            Some(applied) => applied,
            None => {
                let applying = self.engine.apply_at(Op::Check, &charges(), now);
                applying.await
            }
        };
        let Ok(applied) = applied else {
            // Limits of a policy differ in name, so there are too many of them.
            let reason = RefusalReason::TooManyLimits { max: CHARGES_MAX };
            return Err((rates[0], refusal(&limits[rates[0]], reason, false)));
        };
        let (by, decision) = (rates[applied.binding()], **applied);
        charged.is_degraded |= applied.is_degraded();
        if !decision.allowed() {
            return Err((by, rate_limited(&limits[by], decision, charged.is_degraded)));
        }
        charged.binding = Some((by, decision));
        charged.delay = applied.delay();
        let receipt = applied.receipt();
        for (i, decision) in rates.iter().zip(applied.decisions()) {
            self.record_rate(policy, &limits[*i], decision, now);
            charged.keep(*i, &receipt, decision);
        }
        Ok(())
    }

    /// Counts that a rate limit has allowed a request.
    #[inline]
    fn record_rate(
        &self,
        policy: &ActivePolicy,
        limit: &AppliedLimit,
        decision: &Decision,
        now: Micros,
    ) {
        if !limit.is_share() {
            self.telemetry.record_allowed(policy, limit, Some(decision), now);
        }
    }

    /// Charges a limit in shadow mode: it counts as if it alone were enforced, and refuses nothing.
    async fn shadow(
        &self,
        policy: &ActivePolicy,
        limit: &AppliedLimit,
        now: Micros,
        permits: &mut Permits,
    ) -> Option<Receipt> {
        let (decision, receipt, is_allowed) = match limit.charge() {
            Some(charge) => {
                let applied = self.engine.apply_at(Op::Check, &[charge], now).await.ok()?;
                let decision = **applied;
                (Some(decision), Some(applied.receipt().of_charge(&decision)), decision.allowed())
            }
            None => {
                let permit = self.acquire(limit).await.ok();
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

    async fn acquire(&self, limit: &AppliedLimit) -> Result<InFlightPermit, PermitRefused> {
        let Amount::Concurrency { name, rule } = limit.amount() else {
            return Err(PermitRefused::default());
        };
        let (key, on_failure) = (limit.key.as_bytes(), limit.rule.on_failure());
        self.engine.acquire(PermitRequest { name, key, max: rule.max(), on_failure }).await
    }
}

fn refusal(limit: &AppliedLimit, reason: RefusalReason, is_degraded: bool) -> Box<Refusal> {
    Box::new(Refusal { rule: limit.rule.clone(), reason, is_degraded })
}

fn rate_limited(limit: &AppliedLimit, decision: Decision, is_degraded: bool) -> Box<Refusal> {
    let rate = limit.rate().expect("only rates were charged").clone();
    refusal(limit, RefusalReason::RateLimited { limit: rate, decision }, is_degraded)
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
