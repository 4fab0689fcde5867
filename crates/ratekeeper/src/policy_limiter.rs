//! A policy over a store: requests in, admissions out.

use std::path::Path;
use std::sync::Arc;

use ratekeeper_control::{Class, Shed};
use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{
    Amount, AppliedLimit, AppliedLimits, NotCharged, Policy, RequestAttributes, StoreSettings,
};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op};
use smallvec::SmallVec;

use crate::admission::{
    Admission, Admitted, Charged, NotAdmitted, Permits, Refusal, RefusalReason, ShedRefusal,
    correct,
};
use crate::clock::{Clock, SystemClock};
use crate::dependency::{Dependency, UnknownDependency};
use crate::engine::{
    Applied, Engine, EngineStore, InFlightPermit, MaybeReady, PermitRequest, Receipt,
    ServicePermitRequest, ready_now,
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

    /// Returns a dependency of the active policy, by its name. Its settings follow the policy when that is replaced.
    ///
    /// # Errors
    ///
    /// If the policy has none of this name.
    pub fn dependency(&self, name: &str) -> Result<Dependency, UnknownDependency> {
        self.policy().active().dependency(name).cloned()
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
        let class = ShedClass::of(policy.policy(), request);
        if self.engine().is_memory() && !limits.iter().any(has_queue) {
            let admission = ready_now(self.inner.admit(&policy, limits, class, now));
            return MaybeReady::ready(admission.into());
        }
        let inner = Arc::clone(&self.inner);
        MaybeReady::pending(async move { inner.admit(&policy, limits, class, now).await.into() })
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

    /// Charges these limits, all or none. It does not wait in their queues.
    #[cfg(feature = "client")]
    pub(crate) async fn charge(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), Box<Refusal>> {
        self.inner.charge(policy, limits, now, charged).await?;
        self.inner.enter(policy, limits, false, charged).await
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
    /// Decides about a request: what its client may do, then what the service can do.
    async fn admit(
        &self,
        policy: &ActivePolicy,
        limits: AppliedLimits,
        class: Option<ShedClass>,
        now: Micros,
    ) -> Result<Admitted, NotAdmitted> {
        let mut charged = Charged::default();
        self.charge(policy, &limits, now, &mut charged).await?;
        if let Some(class) = class
            && let Err(shed) = self.shed(&class)
        {
            self.refund(&limits, &mut charged);
            let class = policy.policy().classes()[class.index].clone();
            return Err(NotAdmitted::Shed(Box::new(ShedRefusal { class, shed })));
        }
        self.enter(policy, &limits, true, &mut charged).await?;
        Ok(charged.admitted(limits, Arc::clone(&self.engine)))
    }

    /// Charges the client of a request, or refuses it: permits first, because they can be released; then all rate
    /// limits or none; then the limits in shadow mode, each by itself.
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

    fn shed(&self, class: &ShedClass) -> Result<(), Shed> {
        let shedder = self.engine.shedder();
        shedder.map_or(Ok(()), |shedder| shedder.admit_hashed(class.class, class.user_hash))
    }

    /// Takes permits of the limits that protect the service, or refuses the request. Only these are waited for, and
    /// only after all else has admitted the request.
    async fn enter(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        waits: bool,
        charged: &mut Charged,
    ) -> Result<(), Box<Refusal>> {
        for limit in limits.iter().filter(|limit| limit.is_enforced && protects_service(limit)) {
            let permit = self.acquire(limit, waits).await;
            let now = self.engine.now();
            match permit {
                Ok(permit) => {
                    charged.permits.push(permit);
                    if !limit.is_share() {
                        self.telemetry.record_allowed(policy, limit, None, now);
                    }
                }
                Err((reason, _)) => {
                    self.refund(limits, charged);
                    self.telemetry.record(policy, limit, Outcome::Denied, now);
                    return Err(refusal(limit, reason, charged.is_degraded));
                }
            }
        }
        Ok(())
    }

    /// Refunds what was charged for a request that is not served.
    fn refund(&self, limits: &[AppliedLimit], charged: &mut Charged) {
        correct(&self.engine, limits, &mut charged.receipts, |_| Some(0));
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
                Amount::Concurrency { rule, .. } if rule.protects_service() => {}
                Amount::Concurrency { .. } => {
                    let permit = self.acquire(limit, false).await;
                    let permit = permit.map_err(|(reason, is_degraded)| {
                        (i, refusal(limit, reason, is_degraded))
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
            if matches!(limit.amount(), Amount::Concurrency { .. }) && !protects_service(limit) {
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
                let permit = self.acquire(limit, false).await.ok();
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

    /// Takes a permit of a concurrency limit. If there is none, returns why, and whether that was decided without the
    /// store, which is unavailable.
    async fn acquire(
        &self,
        limit: &AppliedLimit,
        waits: bool,
    ) -> Result<InFlightPermit, (RefusalReason, bool)> {
        let Amount::Concurrency { name, rule } = limit.amount() else {
            unreachable!("only concurrency limits have permits");
        };
        let key = limit.key.as_bytes();
        if rule.protects_service() {
            let is_of_all = limit.key.is_of_all();
            let request = ServicePermitRequest { name, key, is_of_all, rule, waits };
            let permit = self.engine.acquire_of_service(request).await;
            return permit.map_err(|error| (RefusalReason::NoPermit(error), false));
        }
        let (max, on_failure) = (rule.max(), limit.rule.on_failure());
        let permit = self.engine.acquire(PermitRequest { name, key, max, on_failure }).await;
        permit.map_err(|refused| (RefusalReason::TooManyInFlight { max }, refused.is_degraded))
    }
}

/// The priority class and the user of a request, if the policy sheds load.
struct ShedClass {
    class: Class,
    index: usize,
    user_hash: Option<u64>,
}

impl ShedClass {
    fn of(policy: &Policy, request: &RequestAttributes<'_>) -> Option<Self> {
        let of = policy.shed_attributes(request)?;
        let index = usize::from(of.class.rank());
        Some(Self { class: of.class, index, user_hash: of.user_hash })
    }
}

fn protects_service(limit: &AppliedLimit) -> bool {
    matches!(limit.amount(), Amount::Concurrency { rule, .. } if rule.protects_service())
}

/// Returns whether a request can wait for a permit.
fn has_queue(limit: &AppliedLimit) -> bool {
    let has = |amount: &Amount| matches!(amount, Amount::Concurrency { rule, .. } if rule.queue.is_some());
    limit.is_enforced && has(limit.amount())
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
