//! Kuadrant's rate limit service: an estimate is reserved for the descriptors of a request, and corrected to
//! what was used. Limits are resolved and counted as for Envoy.

use std::time::Duration;

use ratekeeper::{
    Applied, Charge, ChargeKind, ChargesError, Cost, HoldId, InvalidHoldId, Limit, Op,
    ReservationError, ReserveError,
};
use tonic::Status;

use super::descriptors::{self, DescriptorCheck, DescriptorChecks, Indices};
use super::limit_metrics::increment;
use super::proto::{
    Code, CommitRequest, CommitResponse, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    ReserveRequest, ReserveResponse,
};
use super::quota::Enforced;
use super::{RateLimitRequestError, RateLimitService};
use crate::serve::hold_time::HOLD_MAX;

/// How long a reservation can be committed at least, whatever its `ttl` says: its charge is not released at the
/// end of that, so that a late response must still be corrected.
const COMMIT_MIN: Duration = Duration::from_secs(600);
/// An estimate is at most this part of a limit, as with limitador: one request does not take all of it.
const QUOTA_PART: u64 = 2;

/// Why a request of Kuadrant fails.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum KuadrantError {
    #[error(transparent)]
    Request(#[from] RateLimitRequestError),
    #[error("this is not the id of a reservation; send the one that Reserve returned, unchanged")]
    ReservationId(#[from] InvalidHoldId),
    #[error(transparent)]
    Reserve(ReserveError),
    #[error(transparent)]
    Commit(#[from] ReservationError),
}

impl From<ReserveError> for KuadrantError {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Charges(error) => error.into(),
            error => Self::Reserve(error),
        }
    }
}

impl From<ChargesError> for KuadrantError {
    fn from(error: ChargesError) -> Self {
        Self::Request(error.into())
    }
}

impl From<KuadrantError> for Status {
    fn from(error: KuadrantError) -> Self {
        let message = error.to_string();
        match error {
            KuadrantError::Request(_) | KuadrantError::ReservationId(_) => {
                Self::invalid_argument(message)
            }
            KuadrantError::Reserve(_) | KuadrantError::Commit(ReservationError::Store(_)) => {
                Self::unavailable(message)
            }
            KuadrantError::Commit(_) => Self::not_found(message),
        }
    }
}

impl RateLimitService {
    /// Returns whether anything is left. Its limits are not noted as looked at: those who look here report by
    /// [`report`](Self::report), and do not make the hits of Envoy reports.
    pub(in super::super) async fn look(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, KuadrantError> {
        let request = of_hits(request.domain, request.descriptors, 1);
        self.check_request(&request)?;
        let config = self.config();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let mut checks = self.checks_of(&request, &matched)?;
        let rates = checks.iter().filter_map(DescriptorCheck::charge);
        let looks: Vec<_> = rates.map(|charge| charge.kind(ChargeKind::Look)).collect();
        if !looks.is_empty() {
            let applied = self.limiter.engine().apply(Op::Peek, &looks).await?;
            let indices: Indices = (0..checks.len()).collect();
            set_decisions(&mut checks, &indices, &applied);
        }
        let request = of_hits(request.domain, request.descriptors, 0);
        let response = super::response::response(&request, &checks, &self.settings, self.now());
        self.count_response(&checks, response.is_over_limit());
        Ok(response)
    }

    /// Charges what was used, whatever is left.
    pub(in super::super) async fn report(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, KuadrantError> {
        let used = request.hits_addend.max(1).into();
        let statuses = request.descriptors.len();
        self.charge_used(request.domain, request.descriptors, used, |_| true).await?;
        let status = super::proto::DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        Ok(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status; statuses],
            ..RateLimitResponse::default()
        })
    }

    /// Charges an estimate to all limits that are enforced, or to none of them.
    pub(in super::super) async fn reserve(
        &self,
        request: ReserveRequest,
    ) -> Result<ReserveResponse, KuadrantError> {
        let valid = valid_time(request.ttl);
        let Some(amount) = Cost::new(request.amount) else {
            let ReserveRequest { domain, descriptors, .. } = request;
            let response = self.look(of_hits(domain, descriptors, 0)).await?;
            return Ok(ReserveResponse { code: response.overall_code, ..Default::default() });
        };
        let request = of_hits(request.domain, request.descriptors, 1);
        self.check_request(&request)?;
        let config = self.config();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let mut checks = self.checks_of(&request, &matched)?;
        let (enforced, others): (Indices, Indices) =
            (0..checks.len()).partition(|index| !checks[*index].is_shadow);
        let has_open_quota =
            self.has_open_quota(&matched) || others.iter().any(|index| checks[*index].is_quota);
        let mut enforced = Enforced::new(&checks, enforced, has_open_quota);
        loop {
            let is_denied = enforced.is_denied(&checks);
            let charges = enforced.indices().iter().map(|index| &checks[*index]);
            let charges: Vec<_> = charges.filter_map(charge_of).collect();
            if is_denied || charges.is_empty() {
                self.count_reserved(&checks, !is_denied);
                return Ok(response(!is_denied, None));
            }
            let estimate = bounded_estimate(amount, &charges);
            let reserved = self.limiter.engine().reserve(&charges, estimate, valid).await?;
            set_decisions(&mut checks, enforced.indices(), reserved.applied());
            let is_allowed = reserved.applied().allowed();
            if is_allowed || !enforced.retry(&checks) {
                self.count_reserved(&checks, is_allowed);
                return Ok(response(is_allowed, reserved.id()));
            }
        }
    }

    /// Corrects the estimate of a reservation to what was used. What was used is charged to the limits in
    /// shadow mode now, because those reserve nothing. Without an id, it is charged to all limits.
    pub(in super::super) async fn commit(
        &self,
        request: CommitRequest,
    ) -> Result<CommitResponse, KuadrantError> {
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = request;
        let reservation_released = !reservation_id.is_empty();
        if reservation_released {
            let _settled =
                self.limiter.engine().settle(reservation_id.parse()?, actual_amount).await?;
        }
        let is_charged = |check: &DescriptorCheck<'_>| !reservation_released || check.is_shadow;
        let charged = self.charge_used(domain, descriptors, actual_amount, is_charged).await;
        match charged {
            // The descriptors are not needed to settle.
            Err(KuadrantError::Request(_)) if reservation_released => {}
            charged => charged?,
        }
        Ok(CommitResponse { reservation_released })
    }

    /// Charges what was used to the limits for which `is_charged` holds, whatever is left.
    async fn charge_used(
        &self,
        domain: String,
        descriptors: Vec<RateLimitDescriptor>,
        used: u64,
        is_charged: impl Fn(&DescriptorCheck<'_>) -> bool,
    ) -> Result<(), KuadrantError> {
        let request = of_hits(domain, descriptors, 1);
        self.check_request(&request)?;
        let config = self.config();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let checks = self.checks_of(&request, &matched)?;
        let Some(used) = Cost::new(used) else { return Ok(()) };
        let charged = checks.iter().filter(|check| is_charged(check));
        let charges: Vec<_> = charged
            .filter_map(|check| Some(charge_of(check)?.cost(used).max_debt(check.limit.max_debt())))
            .collect();
        if !charges.is_empty() {
            let _applied = self.limiter.engine().apply(Op::Charge, &charges).await?;
        }
        Ok(())
    }

    fn check_request(&self, request: &RateLimitRequest) -> Result<(), RateLimitRequestError> {
        descriptors::check_request(request).inspect_err(|_| self.count_invalid())
    }

    fn checks_of<'m>(
        &self,
        request: &RateLimitRequest,
        matched: &'m [Option<ratekeeper::policy::envoy::MatchedLimits<'_>>],
    ) -> Result<DescriptorChecks<'m>, RateLimitRequestError> {
        let checks = descriptors::checks_of(request, matched, self.settings.modes);
        descriptors::check_count(&checks)?;
        Ok(checks)
    }

    fn count_reserved(&self, checks: &[DescriptorCheck<'_>], is_allowed: bool) {
        increment(if is_allowed { &self.counters.ok } else { &self.counters.over_limit });
        let decided = checks.iter().filter(|check| !check.is_shadow);
        let decided: DescriptorChecks<'_> = decided.cloned().collect();
        self.record(&decided, is_allowed, None, self.limiter.engine().now());
    }
}

/// Returns a request in which every descriptor has these hits.
fn of_hits(domain: String, descriptors: Vec<RateLimitDescriptor>, hits: u64) -> RateLimitRequest {
    let with_hits = |descriptor| RateLimitDescriptor {
        hits_addend: Some(hits),
        is_negative_hits: false,
        ..descriptor
    };
    let descriptors = descriptors.into_iter().map(with_hits).collect();
    RateLimitRequest { domain, descriptors, hits_addend: 0 }
}

/// Returns the charge of a limit that is a rate. The whole estimate has to fit.
fn charge_of<'m>(check: &DescriptorCheck<'m>) -> Option<Charge<'m>> {
    Some(check.charge()?.kind(ChargeKind::Full))
}

fn bounded_estimate(amount: Cost, charges: &[Charge<'_>]) -> Cost {
    let quotas = charges.iter().map(Charge::limit).map(Limit::quota);
    let most = quotas.min().unwrap_or(u64::MAX) / QUOTA_PART;
    Cost::new(amount.get().min(most)).unwrap_or(Cost::ONE)
}

fn set_decisions(checks: &mut [DescriptorCheck<'_>], indices: &[usize], applied: &Applied) {
    let rates = indices.iter().filter(|index| checks[**index].charge().is_some());
    let rates: Indices = rates.copied().collect();
    for (index, decision) in rates.into_iter().zip(applied.decisions()) {
        checks[index].decision = Some(*decision);
        checks[index].is_degraded = applied.is_degraded();
    }
}

fn response(is_allowed: bool, id: Option<HoldId>) -> ReserveResponse {
    let code = if is_allowed { Code::Ok } else { Code::OverLimit };
    let reservation_id = id.map(|id| id.to_string()).unwrap_or_default();
    ReserveResponse { code: code.into(), reservation_id }
}

fn valid_time(ttl: Option<prost_types::Duration>) -> Duration {
    let ttl = ttl.and_then(|ttl| Duration::try_from(ttl).ok()).unwrap_or_default();
    ttl.clamp(COMMIT_MIN, HOLD_MAX)
}
