//! Makes the response of decided checks.

use std::time::Duration;

use http::HeaderMap;
use ratekeeper::Micros;
use ratekeeper::policy::envoy::{DescriptorQuota, Unit};
use ratekeeper::tower::{X_REQUEST_ID, set_headers_of};

use super::RateLimitSettings;
use super::descriptors::{DescriptorCheck, is_unlimited};
use super::limit_headers::IsQuota;
use super::metadata::dynamic_metadata;
use super::proto::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse,
};

impl RateLimitResponse {
    pub(super) fn is_over_limit(&self) -> bool {
        self.overall_code == Code::OverLimit as i32
    }

    /// Adds a header with the id of a refused request.
    pub(super) fn add_request_id(&mut self, id: &str) {
        self.response_headers_to_add.push(HeaderValue {
            key: X_REQUEST_ID.as_str().to_string(),
            value: id.to_string(),
            raw_value: Vec::new(),
        });
    }
}

/// Returns the response to a request.
pub(super) fn response(
    request: &RateLimitRequest,
    checks: &[DescriptorCheck<'_>],
    settings: &RateLimitSettings,
    now: Micros,
) -> RateLimitResponse {
    let descriptors = 0..request.descriptors.len();
    let statuses: Vec<_> =
        descriptors.clone().map(|descriptor| status(checks, descriptor, now)).collect();
    let quotas = descriptors.map(|descriptor| quota_of(checks, descriptor, settings));
    let statuses_and_quotas = statuses.iter().zip(quotas);
    let is_over = is_denied(statuses_and_quotas.clone()) && !settings.modes.is_shadow;
    let mut headers = headers(checks, settings, is_over);
    if let Some(names) = &settings.limit_headers {
        headers.extend(names.of(statuses_and_quotas));
    }
    let dynamic_metadata = settings.has_dynamic_metadata.then(|| {
        let passed = statuses.iter().enumerate().filter(|(_, status)| !is_over_limit(status));
        let metadata = |(descriptor, _)| first_of(checks, descriptor)?.limit.metadata();
        dynamic_metadata(request, passed.filter_map(metadata))
    });
    RateLimitResponse {
        overall_code: code(is_over),
        statuses,
        response_headers_to_add: headers,
        dynamic_metadata,
        ..RateLimitResponse::default()
    }
}

fn is_over_limit(status: &DescriptorStatus) -> bool {
    status.code() == Code::OverLimit
}

/// A request is denied if a descriptor is over its limit or, of those in quota mode, if all are.
fn is_denied<'s>(statuses: impl Iterator<Item = (&'s DescriptorStatus, IsQuota)>) -> bool {
    let (mut quotas, mut quotas_over) = (0, 0);
    for (status, is_quota) in statuses {
        match (is_quota.0, is_over_limit(status)) {
            (false, true) => return true,
            (false, false) => {}
            (true, is_over) => {
                quotas += 1;
                quotas_over += usize::from(is_over);
            }
        }
    }
    quotas > 0 && quotas == quotas_over
}

fn first_of<'t, 'm>(
    checks: &'t [DescriptorCheck<'m>],
    descriptor: usize,
) -> Option<&'t DescriptorCheck<'m>> {
    checks.iter().find(|check| check.descriptor == descriptor)
}

/// Returns whether a descriptor is in quota mode; also one without a limit, if all are.
fn quota_of(
    checks: &[DescriptorCheck<'_>],
    descriptor: usize,
    settings: &RateLimitSettings,
) -> IsQuota {
    let check = first_of(checks, descriptor);
    IsQuota(check.map_or(settings.modes.is_quota, |check| check.is_quota))
}

fn code(is_over_limit: bool) -> i32 {
    if is_over_limit { Code::OverLimit as i32 } else { Code::Ok as i32 }
}

/// Returns the status of a descriptor, which is that of its binding limit.
fn status(checks: &[DescriptorCheck<'_>], descriptor: usize, now: Micros) -> DescriptorStatus {
    let own = checks.iter().filter(|check| check.descriptor == descriptor);
    let Some(binding) = binding_check(own) else {
        return DescriptorStatus { code: code(false), ..DescriptorStatus::default() };
    };
    // Also if all limits are in shadow mode.
    let is_over = binding.is_over_limit() && !binding.limit.is_shadow();
    if is_unlimited(binding.limit) {
        let limit_remaining = u32::MAX;
        return DescriptorStatus { code: code(false), limit_remaining, ..Default::default() };
    }
    DescriptorStatus {
        code: code(is_over),
        current_limit: Some(RateLimit {
            requests_per_unit: binding.limit.requests_per_unit(),
            unit: binding.limit.unit().map_or(0, Unit::number),
            name: binding.limit.name().to_string(),
        }),
        limit_remaining: binding
            .decision
            .map_or(0, |decision| u32::try_from(decision.remaining()).unwrap_or(u32::MAX)),
        duration_until_reset: until_reset(binding, now).map(whole_secs),
    }
}

/// Returns the time until the limit is unused again; for one that denies all requests, until its window ends.
fn until_reset(check: &DescriptorCheck<'_>, now: Micros) -> Option<Duration> {
    match (check.limit.quota(), check.decision) {
        (DescriptorQuota::DenyAll(unit), _) => {
            let period_us = u64::try_from((*unit)?.period().as_micros()).ok()?;
            Some(Duration::from_micros(period_us - now.get() % period_us))
        }
        (_, decision) => decision.map(|decision| decision.reset_after()),
    }
}

/// Returns the strictest check, and one in shadow mode only if none is enforced.
fn binding_check<'t, 'm>(
    checks: impl Iterator<Item = &'t DescriptorCheck<'m>>,
) -> Option<&'t DescriptorCheck<'m>> {
    checks.max_by_key(|check| (!check.limit.is_shadow(), check.strictness()))
}

/// Rounds up: Envoy shows whole seconds, and a client that waits this long is not too early.
fn whole_secs(span: Duration) -> prost_types::Duration {
    let secs = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    prost_types::Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 }
}

/// Returns the headers that Envoy adds to the response of the client, about the binding limit. If a request
/// is allowed, a quota that is used up is not binding.
fn headers(
    checks: &[DescriptorCheck<'_>],
    settings: &RateLimitSettings,
    is_over: bool,
) -> Vec<HeaderValue> {
    let Some(header_settings) = &settings.headers else { return Vec::new() };
    let is_passed_over =
        |check: &DescriptorCheck<'_>| check.is_quota && !is_over && check.is_over_limit();
    let enforced = checks.iter().filter(|check| !check.is_shadow && !is_passed_over(check));
    let Some(binding) = binding_check(enforced) else { return Vec::new() };
    let (DescriptorQuota::Rate(limit), Some(decision)) = (binding.limit.quota(), &binding.decision)
    else {
        return Vec::new();
    };
    if decision.allowed() && !header_settings.on_allowed {
        return Vec::new();
    }
    let mut headers = HeaderMap::new();
    set_headers_of(
        header_settings,
        (&quotable(binding.limit.label()), limit),
        decision,
        &mut headers,
    );
    let to_wire = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
        key: name.as_str().to_string(),
        value: value.to_str().unwrap_or_default().to_string(),
        raw_value: Vec::new(),
    };
    headers.iter().map(to_wire).collect()
}

/// Replaces characters that a quoted string in a header must not contain. Descriptors may have any text.
fn quotable(label: &str) -> String {
    let quotable =
        |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '_' };
    label.chars().map(quotable).collect()
}
