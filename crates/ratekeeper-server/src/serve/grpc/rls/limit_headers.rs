//! The response headers of envoyproxy/ratelimit: limit, what remains, and seconds until the window ends.

use super::proto::{Code, DescriptorStatus, HeaderValue};

/// The names of the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitHeaders {
    pub(crate) limit: String,
    pub(crate) remaining: String,
    pub(crate) reset: String,
}

impl LimitHeaders {
    /// Returns the headers for these statuses. They are about the last descriptor that denies the request,
    /// or else about the first one of which least is left.
    pub(super) fn of<'s>(
        &self,
        statuses: impl Iterator<Item = (&'s DescriptorStatus, IsQuota)> + Clone,
    ) -> Vec<HeaderValue> {
        let limited = statuses.filter(|(status, _)| status.current_limit.is_some());
        let denies = |(status, is_quota): &(&DescriptorStatus, IsQuota)| {
            status.code() == Code::OverLimit && !is_quota.0
        };
        let denying = limited.clone().filter(denies).last();
        let shown = denying.or_else(|| limited.min_by_key(|(status, _)| status.limit_remaining));
        let Some((status, _)) = shown else { return Vec::new() };
        let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        let reset = status.duration_until_reset.as_ref().map_or(0, |duration| duration.seconds);
        [
            (&self.limit, limit.to_string()),
            (&self.remaining, status.limit_remaining.to_string()),
            (&self.reset, reset.to_string()),
        ]
        .map(|(name, value)| HeaderValue { key: name.clone(), value, raw_value: Vec::new() })
        .into()
    }
}

/// Whether a descriptor is in quota mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsQuota(pub(super) bool);
