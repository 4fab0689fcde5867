//! A policy over a store: requests in, admissions out.

use std::path::Path;
use std::sync::Arc;

use ratekeeper_core::{Decision, Micros};
use ratekeeper_policy::{
    Amount, AppliedLimit, AppliedLimits, LimitRule, NotCharged, Policy, RequestAttributes,
    StoreSettings,
};
use ratekeeper_stores::{CHARGES_MAX, Charge, MemoryStore, Op, Verdict};
use smallvec::SmallVec;

use crate::admission::{
    Admission, Admitted, Charged, Denial, Refusal, RefusalReason, ShadowDenial,
};
use crate::clock::{Clock, SystemClock};
use crate::engine::{
    Applied, Engine, EngineStore, InFlightPermit, MaybeReady, PermitRefused, PermitRequest,
    Receipt, ready_now,
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
        if self.engine().is_memory() {
            let result = ready_now(self.inner.admit(&policy, limits, now));
            let is_quiet = matches!(&result, Ok(admitted) if admitted.shadow_denials.is_empty());
            let request_id = if is_quiet { None } else { request_id() };
            let recorder = self.recorder(&policy, request_id, now);
            return MaybeReady::ready(recorder.admission(result));
        }
        let (limiter, request_id) = (self.clone(), request_id());
        MaybeReady::pending(async move {
            let result = limiter.inner.admit(&policy, limits, now).await;
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

    /// Charges these limits, all or none.
    #[cfg(feature = "client")]
    pub(crate) async fn charge(
        &self,
        policy: &ActivePolicy,
        limits: &[AppliedLimit],
        now: Micros,
        charged: &mut Charged,
    ) -> Result<(), Box<Refusal>> {
        self.inner.charge(policy, limits, now, charged).await.map_err(|denial| denial.refusal)
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
    ) -> Result<Admitted, (AppliedLimits, Denial)> {
        let mut charged = Charged::default();
        match self.charge(policy, &limits, now, &mut charged).await {
            Ok(()) => Ok(charged.admitted(limits, Arc::clone(&self.engine))),
            Err(denial) => Err((limits, denial)),
        }
    }

    /// Charges a request, or refuses it: permits first, because they can be released; then all rate limits
    /// or none; then the limits in shadow mode, each by itself.
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
                Amount::Concurrency { rule, .. } => {
                    let permit = self.acquire(limit).await.map_err(|refused| {
                        let reason = RefusalReason::TooManyInFlight { max: rule.max() };
                        let refusal = refusal_by(&limit.rule, reason, refused.is_degraded);
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
                let permit = self.acquire(limit).await.ok();
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

    async fn acquire(&self, limit: &AppliedLimit) -> Result<InFlightPermit, PermitRefused> {
        let Amount::Concurrency { name, rule } = limit.amount() else {
            return Err(PermitRefused::default());
        };
        let (key, on_failure) = (limit.key.as_bytes(), limit.rule.on_failure());
        self.engine.acquire(PermitRequest { name, key, max: rule.max(), on_failure }).await
    }
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
