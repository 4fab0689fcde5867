//! What the headers of a response say about quotas and retries.

mod headers;
mod structured_list;
mod values;

use std::time::Duration;

use ratekeeper_core::Micros;

use self::headers::Headers;
use self::values::WaitReader;

/// The gRPC status of a refusal because of a quota.
pub(crate) const GRPC_RESOURCE_EXHAUSTED: u16 = 8;

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
///
/// These headers are read:
///
/// | headers | form |
/// |---|---|
/// | `retry-after` | seconds, also with decimals, or an HTTP date |
/// | `retry-after-ms` | milliseconds; it wins over `retry-after` |
/// | `x-should-retry` | `true` or `false` |
/// | `x-amzn-errortype` | `ThrottlingException` and other names of refusals of AWS |
/// | `grpc-status`, `grpc-retry-pushback-ms` | a number; a negative pushback means no retry |
/// | `ratelimit`, `ratelimit-policy` | lists of the IETF draft, and `limit=100, remaining=50, reset=5` of older ones |
/// | `ratelimit-{limit,remaining,reset}` | older drafts |
/// | `x-ratelimit-{limit,remaining,reset,reset-after}`, `x-rate-limit-…` | numbers |
/// | `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` | resets such as `6m0s` |
/// | `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}` | resets as RFC 3339 times |
///
/// A reset that is a number is the seconds left if it is less than half of the current time since
/// the epoch; around the current time, it is a time in seconds or milliseconds. Times are compared with the `Date`
/// of the response, so that a local clock which is wrong does not matter, and with `now` if there
/// is none. A time in the past is no wait. A value that cannot be read counts as absent.
///
/// Of several limits in a list, the one with the least remaining counts. Limits with a unit other
/// than requests are skipped. At most four lines and 16 items of a list header are read.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_control::{Micros, ResponseHints};
///
/// let now = Micros::new(1_790_000_000_000_000);
/// let headers = [
///     ("content-type", b"application/json".as_slice()),
///     ("ratelimit-policy", br#""api";q=100;w=60"#),
///     ("ratelimit", br#""api";r=99;t=1"#),
/// ];
/// let hints = ResponseHints::read(200, headers, now, Duration::from_secs(3600));
///
/// let requests = hints.requests.unwrap();
/// assert_eq!((requests.limit, requests.remaining), (Some(100), Some(99)));
/// assert_eq!(requests.window, Some(Duration::from_secs(60)));
/// assert_eq!(requests.reset_after, Some(Duration::from_secs(1)));
/// assert!(!hints.is_refusal());
/// ```
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
    /// Whether the name of the error says that a quota is used up (`x-amzn-errortype`).
    pub is_throttling_error: bool,
    /// The quota of requests.
    pub requests: Option<QuotaHint>,
    /// The quota of tokens of a language model.
    pub tokens: Option<QuotaHint>,
}

impl ResponseHints {
    /// Returns whether headers of these names may say anything. If not, which is quickly found, they
    /// need not be read.
    ///
    /// ```
    /// use ratekeeper_control::ResponseHints;
    ///
    /// assert!(!ResponseHints::may_be_in(["content-type", "date", "server", "x-request-id"]));
    /// assert!(ResponseHints::may_be_in(["content-type", "ratelimit"]));
    /// ```
    #[inline]
    #[must_use]
    pub fn may_be_in<'a>(names: impl IntoIterator<Item = &'a str>) -> bool {
        names.into_iter().any(Headers::is_candidate)
    }

    /// Returns what a response says.
    ///
    /// Names of headers must be in lower case, as HTTP/2 and the `http` crate have them; others are
    /// not recognized. The trailers of a gRPC response are passed after its headers. Each wait is at
    /// most `max_wait`, which must be above the longest one that the caller would wait for, so that
    /// the caller can tell them apart.
    #[must_use]
    pub fn read<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        now: Micros,
        max_wait: Duration,
    ) -> Self {
        let mut found = Headers::default();
        for (name, value) in headers {
            found.add(name, value);
        }
        if !found.has_hints {
            return Self { status, ..Self::default() };
        }
        let waits = WaitReader { date: found.date, now, max_wait };
        Self {
            status,
            retry_after: found.retry_after(&waits),
            should_retry: found.should_retry(),
            pushback: found.pushback(max_wait),
            grpc_status: found.grpc_status(),
            is_throttling_error: found.is_throttling_error(),
            requests: found.requests(&waits),
            tokens: found.tokens(&waits),
        }
    }

    /// Returns whether the response refuses the request because of a quota.
    ///
    /// That is a 429, a 503 with `Retry-After`, a 403 with `Retry-After` or without any request
    /// remaining (GitHub), an error of AWS with the name of a refusal, and the gRPC status 8
    /// (`RESOURCE_EXHAUSTED`).
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        let has_none_left = self.requests.is_some_and(|quota| quota.remaining == Some(0));
        let is_refused = match self.status {
            429 => true,
            503 => self.retry_after.is_some(),
            403 => self.retry_after.is_some() || has_none_left,
            400.. => self.is_throttling_error,
            _ => false,
        };
        is_refused || self.grpc_status == Some(GRPC_RESOURCE_EXHAUSTED)
    }

    /// Returns how long the server asks to wait before the next request.
    ///
    /// It is `retry_after`. If the response is a refusal without it, it is the pushback of gRPC, or the
    /// longest time until a quota of which nothing is left is available again.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        let of_spent = |quota: Option<QuotaHint>| {
            quota.filter(|quota| quota.remaining == Some(0)).and_then(|quota| quota.reset_after)
        };
        let pushback = match self.pushback {
            Some(Pushback::After(wait)) => Some(wait),
            _ => None,
        };
        let reset = || pushback.or_else(|| of_spent(self.requests).max(of_spent(self.tokens)));
        self.retry_after.or_else(|| self.is_refusal().then(reset).flatten())
    }
}
