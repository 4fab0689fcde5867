//! Waits until a request may be sent: for its limits, for pauses, and for what remains of the server's quota.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Cost, Micros};
use ratekeeper_policy::json_fields::JsonFields;
use ratekeeper_policy::{AppliedLimit, AppliedLimits};
use sha2::{Digest, Sha256};

use super::error::{LocalReason, LocalRefusal};
use super::outbound::{Outbound, Shared};
use super::quota::{Hold, Quota};
use super::request::{EstimatedCost, OutboundRequest};
use super::stats::{WaitReason, count};
use crate::admission::{Admitted, Charged, Refusal, RefusalReason};
use crate::engine::ready_now;
use crate::policy_handle::ActivePolicy;
use crate::tower::InMap;
use crate::wait::WAITERS_MAX;

/// Headers that tell a server who its client is.
static CREDENTIALS: [http::HeaderName; 4] = [
    http::header::AUTHORIZATION,
    http::HeaderName::from_static("x-api-key"),
    http::HeaderName::from_static("api-key"),
    http::HeaderName::from_static("x-goog-api-key"),
];

/// How far requests are apart after a pause if no bucket says so.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(10);

/// How often a request that waits for a permit tries to get one that another process has released.
const PERMIT_POLL: Duration = Duration::from_millis(100);

/// How old the knowledge of pauses in other processes may be, for a request that goes on meanwhile, and at all.
#[cfg(feature = "redis")]
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
#[cfg(feature = "redis")]
const LOOK_MAX_AGE: Duration = Duration::from_secs(1);

/// A request that is about to be sent.
pub(super) struct Candidate<'a> {
    pub(super) policy: &'a ActivePolicy,
    pub(super) quota: Arc<Quota>,
    pub(super) limits: AppliedLimits,
    /// Whether it was not sent before.
    pub(super) is_first: bool,
}

/// A request that may be sent. Until this is ended or dropped, it has no response.
pub(super) struct Ticket<'a> {
    pub(super) quota: Arc<Quota>,
    /// What depends on the response, or is held until there is one.
    pub(super) admitted: Option<Box<Admitted>>,
    shared: &'a Shared,
    tokens: u64,
    /// Whether the quota does not count it as in flight, or no longer.
    has_ended: bool,
}

/// What was charged and counted for a request that is sent.
struct Charge {
    admitted: Option<Box<Admitted>>,
    tokens: u64,
}

/// A request that may be sent, or has to wait until then.
pub(super) enum Admitting<'a> {
    Now(Result<Ticket<'a>, NotSent>),
    /// In a box, so that the future of a request that does not wait is small.
    Later(Pin<Box<dyn Future<Output = Result<Ticket<'a>, NotSent>> + Send + 'a>>),
}

impl Ticket<'_> {
    /// Returns how long the request is delayed by a leaky bucket.
    fn delay(&self) -> Duration {
        self.admitted.as_ref().map_or(Duration::ZERO, |admitted| admitted.delay)
    }

    /// Notes that there is a response, or will be none.
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.quota.end(self.tokens);
            if self.quota.waiting() > 0 {
                self.shared.ended.notify_waiters();
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why a request was not sent.
pub(super) struct NotSent {
    pub(super) refusal: LocalRefusal,
    /// Whether a wait would have helped.
    pub(super) is_wait: bool,
}

impl NotSent {
    fn never(reason: LocalReason) -> Self {
        Self { refusal: LocalRefusal::new(reason, None), is_wait: false }
    }

    fn too_long(wait: &Wait, now: Micros) -> Self {
        let reason = LocalReason::Wait { reason: wait.hold.reason, limit: wait.limit.clone() };
        let retry_after = Some(wait.hold.until.since(now)).filter(|wait| !wait.is_zero());
        Self { refusal: LocalRefusal::new(reason, retry_after), is_wait: true }
    }
}

/// Why a request cannot be sent yet.
struct Wait {
    hold: Hold,
    limit: Option<Arc<str>>,
    /// Whether the end of another request may end the wait, so that it is not known how long it takes.
    ends_with_others: bool,
    /// How long after this request the next one can be sent, as far as it is known.
    interval: Duration,
}

impl Wait {
    fn new(hold: Hold) -> Self {
        Self { hold, limit: None, ends_with_others: false, interval: Duration::ZERO }
    }

    /// Whether it is known that the wait takes longer than a request may wait.
    fn is_too_long(&self, now: Micros, wait_until: Micros) -> bool {
        let until = if self.ends_with_others {
            now.after(Duration::from_micros(1))
        } else {
            self.hold.until
        };
        until > wait_until
    }
}

enum Blocked {
    Wait(Wait),
    Never(LocalReason),
}

impl Outbound {
    /// Finds the limits of a request, and adds them to `limits`.
    pub(super) fn limits(
        &self,
        request: &OutboundRequest<'_>,
        json: Option<&JsonFields>,
        policy: &ActivePolicy,
        now: Micros,
        limits: &mut AppliedLimits,
    ) -> Result<(), NotSent> {
        let custom = |name: &str| {
            let (_, find) = self.config.custom.iter().find(|(known, _)| known == name)?;
            find(request)
        };
        let headers = InMap(request.headers);
        let attributes = request.attributes(&headers, json, &custom, now.get() / 1_000_000);
        let resolved = self.limiter.resolve(policy, &attributes, limits);
        resolved.map_err(|refusal| not_sent(&refusal))?;
        if let Some(EstimatedCost(cost)) = request.extensions.get()
            && let Some(cost) = Cost::new(*cost)
        {
            limits.iter_mut().filter(|limit| is_metered(limit)).for_each(|limit| limit.cost = cost);
        }
        Ok(())
    }

    /// Finds the quota of a request.
    pub(super) fn quota(
        &self,
        request: &OutboundRequest<'_>,
        limits: &[AppliedLimit],
        now: Micros,
    ) -> Arc<Quota> {
        let quotas = &self.shared.quotas;
        let make = |parts: &mut dyn Iterator<Item = &[u8]>| {
            let shared_key = (!self.limiter.engine().is_memory()).then(|| digest(parts));
            Quota::new(self.config.budget.clone(), self.config.throttle.clone(), shared_key)
        };
        if let Some(quota_by) = &self.config.quota_by {
            let key = quota_by(request);
            let hash = quotas.hash([key.as_slice()]);
            return quotas.get(hash, now, || make(&mut [key.as_slice()].into_iter()));
        }
        let port = request.port.unwrap_or_default().to_be_bytes();
        let parts = || {
            let of_server = [request.host.as_bytes(), &port];
            let credentials = CREDENTIALS.iter().filter_map(|name| request.headers.get(name));
            let routes = limits.iter().filter(|limit| limit.rule.is_conditional());
            of_server
                .into_iter()
                .chain(credentials.map(http::HeaderValue::as_bytes))
                .chain(routes.map(|limit| limit.rule.name().as_bytes()))
        };
        quotas.get(quotas.hash(parts()), now, || make(&mut parts()))
    }

    /// Waits until the request may be sent, no longer than `wait_until`, and charges it.
    #[inline]
    pub(super) fn admit<'a>(
        &'a self,
        mut candidate: Candidate<'a>,
        now: Micros,
        wait_until: impl FnOnce() -> Micros,
    ) -> Admitting<'a> {
        if !self.limiter.engine().is_memory() {
            return Admitting::Later(Box::pin(self.admit_shared(candidate, wait_until())));
        }
        let blocked = match candidate.quota.waiting() {
            0 => match ready_now(self.try_admit(&mut candidate, 0, now)) {
                Ok(charge) => {
                    let ticket = self.ticket(charge, candidate.quota);
                    return match ticket.delay().is_zero() {
                        true => Admitting::Now(Ok(ticket)),
                        false => Admitting::Later(Box::pin(self.delayed(ticket, wait_until()))),
                    };
                }
                Err(blocked) => Some(blocked),
            },
            _ => None,
        };
        Admitting::Later(Box::pin(self.admit_later(candidate, blocked, wait_until())))
    }

    /// Does what [`Outbound::admit`] does, by a shared store.
    async fn admit_shared<'a>(
        &'a self,
        mut candidate: Candidate<'a>,
        wait_until: Micros,
    ) -> Result<Ticket<'a>, NotSent> {
        #[cfg(feature = "redis")]
        self.look(&candidate.quota).await;
        let blocked = match candidate.quota.waiting() {
            0 => match self.try_admit(&mut candidate, 0, self.now()).await {
                Ok(charge) => {
                    let ticket = self.ticket(charge, candidate.quota);
                    return self.delayed(ticket, wait_until).await;
                }
                Err(blocked) => Some(blocked),
            },
            _ => None,
        };
        self.admit_later(candidate, blocked, wait_until).await
    }

    /// Waits for what blocks the request, and counts it if it is refused.
    async fn admit_later<'a>(
        &'a self,
        candidate: Candidate<'a>,
        blocked: Option<Blocked>,
        wait_until: Micros,
    ) -> Result<Ticket<'a>, NotSent> {
        let admitted = self.wait_and_admit(candidate, blocked, wait_until).await;
        if admitted.is_err() {
            count(&self.shared.counters.refused_locally);
        }
        admitted
    }

    /// Waits for the delay of a leaky bucket.
    async fn delayed<'a>(
        &'a self,
        ticket: Ticket<'a>,
        wait_until: Micros,
    ) -> Result<Ticket<'a>, NotSent> {
        let delay = ticket.delay();
        if delay.is_zero() {
            return Ok(ticket);
        }
        let now = self.now();
        let hold = Hold { until: now.after(delay), reason: WaitReason::RateLimit };
        let binding = ticket.admitted.as_ref().and_then(|admitted| admitted.binding());
        let limit = binding.map(|binding| binding.rule.shared_name().clone());
        let wait = Wait { limit, ..Wait::new(hold) };
        if wait.hold.until > wait_until {
            if let Some(mut admitted) = { ticket }.admitted.take() {
                admitted.settle_as(0);
            }
            return Err(NotSent::too_long(&wait, now));
        }
        self.sleep(&wait, now, wait_until).await;
        Ok(ticket)
    }

    /// Waits behind the others of the same quota, and then until the request may be sent.
    async fn wait_and_admit<'a>(
        &'a self,
        mut candidate: Candidate<'a>,
        blocked: Option<Blocked>,
        wait_until: Micros,
    ) -> Result<Ticket<'a>, NotSent> {
        let quota = Arc::clone(&candidate.quota);
        let began = self.now();
        if let Some(blocked) = blocked {
            let wait = blocked.into_wait()?;
            if wait.is_too_long(began, wait_until) {
                return Err(NotSent::too_long(&wait, began));
            }
        }
        if quota.waiting() >= WAITERS_MAX {
            return Err(NotSent::never(LocalReason::TooManyWaiting));
        }
        let expected = expected(&quota, began);
        if expected.hold.until > wait_until {
            return Err(NotSent::too_long(&expected, began));
        }
        let waiting = quota.wait();
        let turn = tokio::time::timeout(wait_until.since(began), quota.turn.lock());
        let Ok(turn) = turn.await else { return Err(NotSent::too_long(&expected, self.now())) };
        let queued = self.now().since(began);
        if !queued.is_zero() {
            self.shared.counters.waited(WaitReason::Queue, queued);
        }
        loop {
            // It is notified of what ends from here on.
            let ended = self.shared.ended.notified();
            let wait = match self.try_admit(&mut candidate, 1, self.now()).await {
                Ok(charge) => {
                    // The next one need not wait for the delay of this one.
                    drop((turn, waiting));
                    let ticket = self.ticket(charge, candidate.quota);
                    return self.delayed(ticket, wait_until).await;
                }
                Err(blocked) => blocked.into_wait()?,
            };
            let now = self.now();
            if wait.is_too_long(now, wait_until) {
                return Err(NotSent::too_long(&wait, now));
            }
            {
                let mut state = quota.state();
                (state.next_at, state.next_interval) = (wait.hold.until, wait.interval);
            }
            tokio::select! {
                () = self.sleep(&wait, now, wait_until) => {}
                () = ended, if wait.ends_with_others => {}
            }
        }
    }

    /// Sleeps until a hold is over, and counts that.
    async fn sleep(&self, wait: &Wait, now: Micros, wait_until: Micros) {
        let Hold { until, reason } = wait.hold;
        let time = until.min(wait_until).since(now);
        tracing::debug!(
            reason = reason.name(),
            limit = wait.limit.as_deref().unwrap_or_default(),
            wait_ms = time.as_millis() as u64,
            "outbound request waits"
        );
        let guard = CountWait { outbound: self, reason, began: now };
        tokio::time::sleep(time).await;
        drop(guard);
    }

    /// Charges a request if it may be sent now. `waiting` of those that wait are this request.
    async fn try_admit<'a>(
        &'a self,
        candidate: &mut Candidate<'a>,
        waiting: usize,
        now: Micros,
    ) -> Result<Charge, Blocked> {
        let Candidate { policy, quota, limits, is_first } = candidate;
        let tokens = limits.iter().filter(|limit| is_metered(limit)).map(|limit| limit.cost.get());
        let tokens = tokens.max().unwrap_or(0);
        let mut interval = Duration::ZERO;
        if self.config.is_learning {
            let sent_since_pause = quota.check(tokens, now).map_err(|hold| {
                let ends_with_others =
                    hold.reason == WaitReason::ServerQuota && quota.is_in_flight();
                Blocked::Wait(Wait { ends_with_others, ..Wait::new(hold) })
            })?;
            if let Some(sent) = sent_since_pause {
                interval = self.recovery_interval(limits, sent);
            }
        }
        let mut admitted = None;
        if !limits.is_empty() {
            let mut charged = Charged::default();
            let charging = self.limiter.charge(policy, limits, now, &mut charged);
            charging.await.map_err(|refusal| self.blocked(&refusal, limits, now))?;
            if is_kept(&charged, limits) {
                let engine = Arc::clone(self.limiter.engine());
                let charged = charged.admitted(std::mem::take(limits), engine);
                admitted = Some(Box::new(charged.notifying(&self.shared.ended)));
            }
        }
        if self.config.is_learning {
            quota.send(tokens, now, interval, quota.waiting() <= waiting);
        }
        if *is_first && self.config.retry.is_some() {
            quota.state().budget.deposit(now);
        }
        count(&self.shared.counters.attempts);
        Ok(Charge { admitted, tokens })
    }

    fn ticket(&self, charge: Charge, quota: Arc<Quota>) -> Ticket<'_> {
        let Charge { admitted, tokens } = charge;
        let has_ended = !self.config.is_learning;
        Ticket { quota, admitted, shared: &self.shared, tokens, has_ended }
    }

    /// How far requests are apart after a pause: as the fastest of their buckets allows, because the others hold them
    /// back by themselves; at first to all processes together. With each request it is to half as many of them, because the others may have none to send.
    fn recovery_interval(&self, limits: &[AppliedLimit], sent: u32) -> Duration {
        let intervals = limits.iter().filter(is_bucket).filter_map(interval_of);
        let interval = intervals.min().unwrap_or(RECOVERY_INTERVAL);
        let busy = self.limiter.engine().nodes() >> sent.min(u32::BITS - 1);
        interval.saturating_mul(busy.max(1))
    }

    fn blocked(&self, refusal: &Refusal, limits: &[AppliedLimit], now: Micros) -> Blocked {
        let limit = Some(refusal.rule.shared_name().clone());
        // A window holds back all until its end, and then none.
        let binding = limits.iter().filter(is_bucket);
        let mut binding = binding.filter(|limit| Arc::ptr_eq(&limit.rule, &refusal.rule));
        let interval = binding.find_map(interval_of).unwrap_or_default();
        match &refusal.reason {
            RefusalReason::RateLimited { decision, .. } => match decision.retry_after() {
                Some(wait) => {
                    let hold = Hold { until: now.after(wait), reason: WaitReason::RateLimit };
                    Blocked::Wait(Wait { limit, interval, ..Wait::new(hold) })
                }
                None => {
                    Blocked::Never(LocalReason::ExceedsCapacity(refusal.rule.shared_name().clone()))
                }
            },
            RefusalReason::TooManyInFlight { .. } | RefusalReason::NoPermit(_) => {
                let hold = Hold { until: now.after(PERMIT_POLL), reason: WaitReason::Concurrency };
                Blocked::Wait(Wait { limit, ends_with_others: true, ..Wait::new(hold) })
            }
            _ => Blocked::Never(not_sent(refusal).refusal.reason),
        }
    }

    /// Learns of pauses that other processes have begun.
    #[cfg(feature = "redis")]
    async fn look(&self, quota: &Arc<Quota>) {
        let Some(key) = quota.shared_key.as_deref().filter(|_| self.config.is_learning) else {
            return;
        };
        let now = self.now();
        let age = {
            let mut state = quota.state();
            let age = state.looked_at.map_or(Duration::MAX, |looked_at| now.since(looked_at));
            if age < LOOK_INTERVAL {
                return;
            }
            state.looked_at = Some(now);
            age
        };
        if age >= LOOK_MAX_AGE {
            return self.learn_of_pause(quota, key).await;
        }
        let (outbound, quota) = (self.clone(), Arc::clone(quota));
        tokio::spawn(async move {
            if let Some(key) = quota.shared_key.as_deref() {
                outbound.learn_of_pause(&quota, key).await;
            }
        });
    }

    #[cfg(feature = "redis")]
    async fn learn_of_pause(&self, quota: &Quota, key: &[u8]) {
        let wait = self.limiter.engine().paused_for(key).await;
        if !wait.is_zero() && quota.pause(wait, self.now(), fastrand::u64(..)) {
            count(&self.shared.counters.pauses_shared);
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.limiter.engine().now()
    }
}

impl Blocked {
    fn into_wait(self) -> Result<Wait, NotSent> {
        match self {
            Self::Wait(wait) => Ok(wait),
            Self::Never(reason) => Err(NotSent::never(reason)),
        }
    }
}

/// Counts a wait when it is over, or cancelled.
struct CountWait<'a> {
    outbound: &'a Outbound,
    reason: WaitReason,
    began: Micros,
}

impl Drop for CountWait<'_> {
    fn drop(&mut self) {
        let time = self.outbound.now().since(self.began);
        self.outbound.shared.counters.waited(self.reason, time);
    }
}

/// Whether anything that was charged depends on the response, or is held until there is one.
fn is_kept(charged: &Charged, limits: &[AppliedLimit]) -> bool {
    !charged.permits.is_empty()
        || !charged.delay.is_zero()
        || limits.iter().any(|limit| limit.rule.is_charged_by_response())
}

fn is_metered(limit: &AppliedLimit) -> bool {
    limit.rule.usage_format().is_some()
}

fn is_bucket(limit: &&AppliedLimit) -> bool {
    limit.rate().is_some_and(|limit| limit.algorithm().has_burst())
}

/// Returns how long a limit takes to allow the cost of a request again.
fn interval_of(limit: &AppliedLimit) -> Option<Duration> {
    let rate = limit.rate().filter(|_| limit.is_enforced)?.rate();
    let micros = rate.period().as_micros() * u128::from(limit.cost.get());
    let micros = micros / u128::from(rate.count()).max(1);
    Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

/// Returns when a request is expected to be sent, behind those that wait: by what the first of them waits for.
fn expected(quota: &Quota, now: Micros) -> Wait {
    let ahead = u32::try_from(quota.waiting()).unwrap_or(u32::MAX);
    let state = quota.state();
    let until = match ahead {
        0 => now,
        ahead => state.next_at.max(now).after(state.next_interval.saturating_mul(ahead)),
    };
    Wait::new(Hold { until, reason: WaitReason::Queue })
}

fn not_sent(refusal: &Refusal) -> NotSent {
    let limit = refusal.rule.shared_name().clone();
    NotSent::never(match &refusal.reason {
        RefusalReason::MissingIdentity { identity, .. } => {
            LocalReason::MissingIdentity { limit, identity: identity.clone() }
        }
        _ => LocalReason::TooManyLimits,
    })
}

/// Returns a key that does not disclose the parts, one of which may be a credential.
fn digest(parts: &mut dyn Iterator<Item = &[u8]>) -> Box<[u8]> {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize()[..16].into()
}
