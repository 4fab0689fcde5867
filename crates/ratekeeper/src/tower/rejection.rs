//! Requests that are rejected to protect a service.

use std::time::Duration;

use ratekeeper_control::Shed;

use crate::bulkhead::BulkheadError;

/// How long to wait before a retry, where nothing else is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a request was rejected to protect the service. It is in the extensions of a response that
/// [`reject`](super::reject) made.
///
/// ```
/// use http::Response;
/// use ratekeeper::tower::Rejection;
///
/// fn log<B>(response: &Response<B>) {
///     if let Some(rejection) = response.extensions().get::<Rejection>() {
///         println!("{}: {rejection}", rejection.code());
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// It was shed.
    #[error(transparent)]
    Shed(#[from] Shed),
    /// It got no permit of a bulkhead.
    #[error(transparent)]
    Bulkhead(#[from] BulkheadError),
    /// It got no permit of an adaptive limit.
    #[error("{0}")]
    ConcurrencyLimit(#[source] BulkheadError),
}

impl Rejection {
    /// Returns when it makes sense to try again: a second or later.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Shed(shed) => shed.retry_after.max(RETRY_AFTER),
            Self::Bulkhead(_) | Self::ConcurrencyLimit(_) => RETRY_AFTER,
        }
    }

    /// Returns the code in the body of a response: `OVERLOADED`, `BULKHEAD_FULL`, `BULKHEAD_TIMEOUT` or
    /// `CONCURRENCY_LIMIT`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Shed(_) => "OVERLOADED",
            Self::Bulkhead(error) => error.code(),
            Self::ConcurrencyLimit(_) => "CONCURRENCY_LIMIT",
        }
    }
}

/// The error of a service behind a [`ShedLayer`](super::ShedLayer), a [`BulkheadLayer`](super::BulkheadLayer) or an
/// [`AdaptiveLimitLayer`](super::AdaptiveLimitLayer).
///
/// ```
/// use ratekeeper::tower::ProtectError;
///
/// fn is_worth_a_retry<E>(error: &ProtectError<E>) -> bool {
///     matches!(error, ProtectError::Rejected(_))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtectError<E> {
    /// The service was not called.
    #[error(transparent)]
    Rejected(Rejection),
    /// The service failed.
    #[error("{0}")]
    Service(#[source] E),
}
