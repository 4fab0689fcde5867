//! Makes the response of decided checks.

use std::time::Duration;

use http::HeaderMap;
use ratekeeper::policy::envoy::{DescriptorQuota, Unit};
use ratekeeper::tower::set_headers_of;

use super::RateLimitSettings;
use super::descriptors::DescriptorCheck;
use super::proto::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};

impl RateLimitResponse {
    pub(super) fn is_over_limit(&self) -> bool {
        self.overall_code == Code::OverLimit as i32
    }
}

/// Returns the response to a request with this many descriptors.
pub(super) fn response(
    checks: &[DescriptorCheck<'_>],
    descriptors: usize,
    settings: &RateLimitSettings,
) -> RateLimitResponse {
    let statuses: Vec<_> = (0..descriptors).map(|descriptor| status(checks, descriptor)).collect();
    let is_over = statuses.iter().any(|status| status.code == Code::OverLimit as i32);
    RateLimitResponse {
        overall_code: code(is_over),
        statuses,
        response_headers_to_add: headers(checks, settings),
        ..RateLimitResponse::default()
    }
}

fn code(is_over_limit: bool) -> i32 {
    if is_over_limit { Code::OverLimit as i32 } else { Code::Ok as i32 }
}

/// Returns the status of a descriptor, which is that of its binding limit.
fn status(checks: &[DescriptorCheck<'_>], descriptor: usize) -> DescriptorStatus {
    let own = checks.iter().filter(|check| check.descriptor == descriptor);
    let Some(binding) = binding_check(own) else {
        return DescriptorStatus { code: code(false), ..DescriptorStatus::default() };
    };
    let is_over = binding.is_over_limit() && !binding.is_shadow;
    if matches!(binding.limit.quota(), DescriptorQuota::Unlimited) {
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
        duration_until_reset: binding.decision.map(|decision| whole_secs(decision.reset_after())),
    }
}

/// Returns the strictest check, and one in shadow mode only if none is enforced.
fn binding_check<'t, 'm>(
    checks: impl Iterator<Item = &'t DescriptorCheck<'m>>,
) -> Option<&'t DescriptorCheck<'m>> {
    checks.max_by_key(|check| (!check.is_shadow, check.strictness()))
}

/// Rounds up: Envoy shows whole seconds, and a client that waits this long is not too early.
fn whole_secs(span: Duration) -> prost_types::Duration {
    let secs = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    prost_types::Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 }
}

/// Returns the headers that Envoy adds to the response of the client, about the binding limit.
fn headers(checks: &[DescriptorCheck<'_>], settings: &RateLimitSettings) -> Vec<HeaderValue> {
    let Some(header_settings) = &settings.headers else { return Vec::new() };
    let enforced = checks.iter().filter(|check| !check.is_shadow);
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
