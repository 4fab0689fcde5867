//! A policy over a store: requests in, admissions out.

use std::path::Path;
use std::sync::Arc;

use ratekeeper_control::{Class, Shed};
use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{
    Amount, AppliedLimit, AppliedLimits, LimitRule, NotCharged, Policy, RequestAttributes,
    StoreSettings,
};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op, Verdict};
use smallvec::SmallVec;

use crate::admission::{
    Admission, Admitted, Charged, Denial, NotAdmitted, Refusal, RefusalReason, ShadowDenial,
    ShedRefusal, correct,
};
use crate::clock::{Clock, SystemClock};
use crate::dependency::{Dependency, UnknownDependency};
use crate::engine::{
    Applied, Engine, EngineStore, InFlightPermit, MaybeReady, PermitRequest, Receipt,
    ServicePermitRequest, ready_now,
};
use crate::policy_handle::{ActivePolicy, PolicyHandle, PolicyLoadError, read_stamped};
use crate::refusals::{Recorder, RefusalLog};
use crate::request_id::RequestIds;
use crate::telemetry::{Outcome, Telemetry};

/// The usual header of a request's id.
const REQUEST_ID: &str = "x-request-id";

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
    /// How the requests come that this clone decides about.
    protocol: &'static str,
    /// The header that has the id of a request.
    request_id_header: Arc<str>,
}

struct Inner {
    policy: Arc<PolicyHandle>,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    refusals: Arc<RefusalLog>,
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
        let refusals = Arc::<RefusalLog>::default();
        let policy = PolicyHandle::new(policy, engine.clone(), telemetry.clone(), refusals.clone());
        let inner = Arc::new(Inner { policy: Arc::new(policy), engine, telemetry, refusals });
        Ok(Self { inner, protocol: "library", request_id_header: REQUEST_ID.into() })
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

    /// Returns the log of recent refusals.
    pub fn refusals(&self) -> &Arc<RefusalLog> {
        &self.inner.refusals
    }

    /// Returns a clone for requests that come in another way, and whose id is in another header than `x-request-id`.
    /// Both are shown in the refusal log.
    ///
    /// ```
    /// use ratekeeper::{Policy, PolicyLimiter};
    ///
    /// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
    /// let of_queue = limiter.for_requests("queue", "x-message-id");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn for_requests(&self, protocol: &'static str, request_id_header: &str) -> Self {
        let request_id_header = request_id_header.to_ascii_lowercase().into();
        Self { inner: Arc::clone(&self.inner), protocol, request_id_header }
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
        let request_id = || RequestIds::of_headers(&self.request_id_header, request.headers);
        match self.resolve(&policy, request, &mut limits) {
            Ok(Subject::Limited) => {}
            Ok(Subject::Exempt) => return MaybeReady::ready(Admission::Exempt),
            Err(refusal) => {
                let recorder = self.recorder(&policy, request_id(), now);
                return MaybeReady::ready(recorder.missing_identity(refusal));
            }
        }
        let class = ShedClass::of(policy.policy(), request);
        if self.engine().is_memory() && !limits.iter().any(has_queue) {
            let result = ready_now(self.inner.admit(&policy, limits, class, now));
            let is_quiet = matches!(&result, Ok(admitted) if admitted.shadow_denials.is_empty());
            let request_id = if is_quiet { None } else { request_id() };
            let recorder = self.recorder(&policy, request_id, now);
            return MaybeReady::ready(recorder.admission(result));
        }
        let (limiter, request_id) = (self.clone(), request_id());
        MaybeReady::pending(async move {
            let result = limiter.inner.admit(&policy, limits, class, now).await;
            limiter.recorder(&policy, request_id, now).admission(result)
        })
    }

    fn recorder<'r>(
        &'r self,
        policy: &'r ActivePolicy,
        request_id: Option<Arc<str>>,
        now: Micros,
    ) -> Recorder<'r> {
        let Inner { engine, refusals, .. } = &*self.inner;
        Recorder { engine, refusals, policy, request_id, protocol: self.protocol, now }
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
                Err(refusal_by(rule, reason, false))
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
        let charge = self.inner.charge(policy, limits, now, charged).await;
        charge.map_err(|denial| denial.refusal)?;
        let entered = self.inner.enter(policy, limits, false, charged).await;
        entered.map_err(|denial| denial.refusal)
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
    ) -> Result<Admitted, (AppliedLimits, NotAdmitted)> {
        let mut charged = Charged::default();
        match self.try_admit(policy, &limits, class, now, &mut charged).await {
            Ok(()) => Ok(charged.admitted(limits, Arc::clone(&self.engine))),
            Err(not_admitted) => Err((limits, not_admitted)),
        }
    }

    async fn try_admit(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        class: Option<ShedClass>,
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), NotAdmitted> {
        self.charge(policy, limits, now, charged).await?;
        if let Some(class) = class
            && let Err(shed) = self.shed(&class)
        {
            self.refund(limits, charged);
            let class = policy.policy().classes()[class.index].clone();
            return Err(NotAdmitted::Shed(Box::new(ShedRefusal { class, shed })));
        }
        Ok(self.enter(policy, limits, true, charged).await?)
    }

    /// Charges the client of a request, or refuses it: permits first, because they can be released; then all rate
    /// limits or none; then the limits in shadow mode, each by itself.
    async fn charge(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), Denial> {
        charged.receipts.resize_with(limits.len(), || None);
        if let Err(denial) = self.enforce(policy, limits, now, charged).await {
            self.telemetry.record(policy, &limits[denial.index], Outcome::Denied, now);
            return Err(denial);
        }
        for (i, limit) in limits.iter().enumerate().filter(|(_, limit)| !limit.is_enforced) {
            charged.receipts[i] = self.shadow(policy, (i, limit), now, charged).await;
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
    ) -> Result<(), Denial> {
        let protecting = |limit: &AppliedLimit| limit.is_enforced && protects_service(limit);
        for (index, limit) in limits.iter().enumerate().filter(|(_, limit)| protecting(limit)) {
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
                    let refusal = refusal_by(&limit.rule, reason, charged.is_degraded);
                    return Err(Denial { index, refusal, applied: None });
                }
            }
        }
        Ok(())
    }

    /// Refunds what was charged for a request that is not served.
    fn refund(&self, limits: &[AppliedLimit], charged: &mut Charged) {
        correct(&self.engine, limits, &mut charged.receipts, |_| Some(0));
    }

    /// Charges the limits that are enforced.
    async fn enforce(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), Denial> {
        let mut rates: SmallVec<[usize; 4]> = SmallVec::new();
        for (i, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.is_enforced) {
            match limit.amount() {
                Amount::Rate(_) => rates.push(i),
                Amount::Concurrency { rule, .. } if rule.protects_service() => {}
                Amount::Concurrency { .. } => {
                    let permit = self.acquire(limit, false).await;
                    let permit = permit.map_err(|(reason, is_degraded)| {
                        let refusal = refusal_by(&limit.rule, reason, is_degraded);
                        Denial { index: i, refusal, applied: None }
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
    ) -> Result<(), Denial> {
        if let [i] = *rates
            && let Some(charge) = limits[i].charge()
            && let Some(decision) = self.engine.apply_one_now(Op::Check, &charge, now)
        {
            if !decision.allowed() {
                let applied = Applied::by_store(Verdict::single(decision, now));
                return Err(rate_limited(i, &limits[i], applied, charged.is_degraded));
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
            let refusal = refusal_by(&limits[rates[0]].rule, reason, false);
            return Err(Denial { index: rates[0], refusal, applied: None });
        };
        let (by, decision) = (rates[applied.binding()], **applied);
        charged.is_degraded |= applied.is_degraded();
        if !decision.allowed() {
            return Err(rate_limited(by, &limits[by], applied, charged.is_degraded));
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
        (index, limit): (usize, &AppliedLimit),
        now: Micros,
        charged: &mut Charged,
    ) -> Option<Receipt> {
        let applied = match limit.charge() {
            Some(charge) => Some(self.engine.apply_at(Op::Check, &[charge], now).await.ok()?),
            None => None,
        };
        let decision = applied.as_ref().map(|applied| ***applied);
        let receipt = applied.as_ref().zip(decision);
        let receipt = receipt.map(|(applied, decision)| applied.receipt().of_charge(&decision));
        let is_allowed = match &decision {
            Some(decision) => decision.allowed(),
            None => {
                let permit = self.acquire(limit, false).await.ok();
                let is_allowed = permit.is_some();
                charged.permits.extend(permit);
                is_allowed
            }
        };
        match is_allowed {
            true if limit.is_share() => {}
            true => self.telemetry.record_allowed(policy, limit, decision.as_ref(), now),
            false => {
                self.telemetry.record(policy, limit, Outcome::ShadowDenied, now);
                let applied = applied.map(Box::new);
                charged.shadow_denials.push(ShadowDenial { index, applied });
            }
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

fn refusal_by(rule: &Arc<LimitRule>, reason: RefusalReason, is_degraded: bool) -> Box<Refusal> {
    Box::new(Refusal { rule: rule.clone(), reason, is_degraded, request_id: None })
}

/// Returns the denial of the limit at this index, which was applied.
fn rate_limited(index: usize, limit: &AppliedLimit, applied: Applied, is_degraded: bool) -> Denial {
    let rate = limit.rate().expect("only rates were charged").clone();
    let reason = RefusalReason::RateLimited { limit: rate, decision: **applied };
    let refusal = refusal_by(&limit.rule, reason, is_degraded);
    Denial { index, refusal, applied: Some(Box::new(applied)) }
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
