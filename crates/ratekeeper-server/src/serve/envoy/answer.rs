//! What came of a request, in the protocol's words.

use std::time::Duration;

use http::HeaderMap;
use ratekeeper::policy::envoy::{DescriptorQuota, Unit};
use ratekeeper::tower::set_headers_of;

use super::RateLimitSettings;
use super::proto::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};
use super::turns::Turn;

impl RateLimitResponse {
    pub(super) fn is_over_limit(&self) -> bool {
        self.overall_code == Code::OverLimit as i32
    }
}

/// The answer to a request of so many descriptors.
pub(super) fn answer(
    turns: &[Turn<'_>],
    descriptors: usize,
    settings: &RateLimitSettings,
) -> RateLimitResponse {
    let statuses: Vec<_> = (0..descriptors).map(|descriptor| status(turns, descriptor)).collect();
    let is_over = statuses.iter().any(|status| status.code == Code::OverLimit as i32);
    RateLimitResponse {
        overall_code: code(is_over),
        statuses,
        response_headers_to_add: headers(turns, settings),
        ..RateLimitResponse::default()
    }
}

fn code(is_over_limit: bool) -> i32 {
    if is_over_limit { Code::OverLimit as i32 } else { Code::Ok as i32 }
}

/// The tightest of a descriptor's limits speaks for it.
fn status(turns: &[Turn<'_>], descriptor: usize) -> DescriptorStatus {
    let own = turns.iter().filter(|turn| turn.descriptor == descriptor);
    let Some(speaker) = tightest(own) else {
        return DescriptorStatus { code: code(false), ..DescriptorStatus::default() };
    };
    let is_over = speaker.is_over_limit() && !speaker.is_shadow;
    if matches!(speaker.limit.quota(), DescriptorQuota::Unlimited) {
        let limit_remaining = u32::MAX;
        return DescriptorStatus { code: code(false), limit_remaining, ..Default::default() };
    }
    DescriptorStatus {
        code: code(is_over),
        current_limit: Some(RateLimit {
            requests_per_unit: speaker.limit.requests_per_unit(),
            unit: speaker.limit.unit().map_or(0, Unit::number),
            name: speaker.limit.name().to_string(),
        }),
        limit_remaining: speaker
            .decision
            .map_or(0, |decision| u32::try_from(decision.remaining()).unwrap_or(u32::MAX)),
        duration_until_reset: speaker.decision.map(|decision| whole_secs(decision.reset_after())),
    }
}

/// One that is enforced, if there is one.
fn tightest<'t, 'm>(turns: impl Iterator<Item = &'t Turn<'m>>) -> Option<&'t Turn<'m>> {
    turns.max_by_key(|turn| (!turn.is_shadow, turn.strictness()))
}

/// Rounded up: Envoy shows whole seconds, and a caller who waits so long is not early.
fn whole_secs(span: Duration) -> prost_types::Duration {
    let secs = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    prost_types::Duration { seconds: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 }
}

/// What Envoy is to tell the caller about the tightest limit of all.
fn headers(turns: &[Turn<'_>], settings: &RateLimitSettings) -> Vec<HeaderValue> {
    let Some(answers) = &settings.headers else { return Vec::new() };
    let enforced = turns.iter().filter(|turn| !turn.is_shadow);
    let Some(speaker) = tightest(enforced) else { return Vec::new() };
    let (DescriptorQuota::Rate(limit), Some(decision)) = (speaker.limit.quota(), &speaker.decision)
    else {
        return Vec::new();
    };
    if decision.allowed() && !answers.on_allowed {
        return Vec::new();
    }
    let mut headers = HeaderMap::new();
    set_headers_of(answers, (&quotable(speaker.limit.label()), limit), decision, &mut headers);
    let to_wire = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
        key: name.as_str().to_string(),
        value: value.to_str().unwrap_or_default().to_string(),
        raw_value: Vec::new(),
    };
    headers.iter().map(to_wire).collect()
}

/// Descriptors may have any text in them, and a header's name in quotes may not.
fn quotable(label: &str) -> String {
    let quotable =
        |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '_' };
    label.chars().map(quotable).collect()
}
