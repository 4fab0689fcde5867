//! What the headers of a response say about quotas and retries.

use std::time::Duration;

use ratekeeper_core::Micros;

/// What a server says about one of its quotas.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::QuotaHint;
///
/// let hint = QuotaHint { remaining: Some(3), ..QuotaHint::default() };
/// assert_eq!(hint.reset_after, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaHint {
    /// The quota: units per window, or the capacity of a bucket.
    pub limit: Option<u64>,
    /// The time in which the whole quota becomes available again. It is not a wait, so it has no
    /// maximum.
    pub window: Option<Duration>,
    /// The units that are left.
    pub remaining: Option<u64>,
    /// The time until the quota is available again: all of it, or what the request needs.
    pub reset_after: Option<Duration>,
}

/// What a gRPC server says about the next retry (`grpc-retry-pushback-ms`).
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Micros, Pushback, ResponseHints};
///
/// let headers = [("grpc-status", b"14".as_slice()), ("grpc-retry-pushback-ms", b"-1")];
/// let hints = ResponseHints::read(200, headers, Micros::new(0), Duration::from_secs(60));
/// assert_eq!(hints.pushback, Some(Pushback::DoNotRetry));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushback {
    /// Retry after exactly this long.
    After(Duration),
    /// Do not retry: the value is negative, or it is not a number.
    DoNotRetry,
}

/// What the status and the headers of a response say about quotas and retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResponseHints {
    /// The HTTP status of the response; 0 if there is no response.
    pub status: u16,
    /// How long to wait before the next request.
    pub retry_after: Option<Duration>,
    /// Whether the server wants a retry (`x-should-retry`).
    pub should_retry: Option<bool>,
    /// What a gRPC server says about the next retry.
    pub pushback: Option<Pushback>,
    /// The gRPC status.
    pub grpc_status: Option<u16>,
    /// The quota of requests.
    pub requests: Option<QuotaHint>,
    /// The quota of tokens of a language model.
    pub tokens: Option<QuotaHint>,
}

impl ResponseHints {
    /// Returns what a response says. Names of headers are in lower case.
    #[must_use]
    pub fn read<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        now: Micros,
        max_wait: Duration,
    ) -> Self {
        let _ = (headers.into_iter().count(), now, max_wait);
        Self { status, ..Self::default() }
    }

    /// Returns whether the response refuses the request because of a quota.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        const GRPC_RESOURCE_EXHAUSTED: u16 = 8;
        let has_none_left = self.requests.is_some_and(|quota| quota.remaining == Some(0));
        match self.status {
            429 => true,
            503 => self.retry_after.is_some(),
            403 => self.retry_after.is_some() || has_none_left,
            _ => self.grpc_status == Some(GRPC_RESOURCE_EXHAUSTED),
        }
    }

    /// Returns how long the server asks to wait before the next request.
    ///
    /// It is `retry_after`. If the response is a refusal without it, it is the longest time until
    /// a quota of which nothing is left is available again.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        let of_spent = |quota: Option<QuotaHint>| {
            quota.filter(|quota| quota.remaining == Some(0)).and_then(|quota| quota.reset_after)
        };
        let reset = || of_spent(self.requests).max(of_spent(self.tokens));
        self.retry_after.or_else(|| self.is_refusal().then(reset).flatten())
    }
}
