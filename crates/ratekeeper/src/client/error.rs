//! Why a request was not sent, or not served.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use ratekeeper_control::StopReason;

use super::stats::WaitReason;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Why a request was not sent, or not served. `T` is the response of the client.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::client::OutboundError;
///
/// /// When it makes sense to try again, if that is known.
/// fn retry_after<T>(error: &OutboundError<T>) -> Option<Duration> {
///     error.retry_after()
/// }
/// ```
#[non_exhaustive]
pub enum OutboundError<T> {
    /// A limit refused it here, and it was not to wait, or no wait helps.
    Refused(LocalRefusal),
    /// It would have had to wait for longer than it may.
    WaitTooLong(LocalRefusal),
    /// The server refused it.
    UpstreamRefused(UpstreamRefusal<T>),
    /// It failed, and the retry budget does not allow another attempt.
    BudgetSpent(FailedAttempt<T>),
    /// The client failed.
    Failed {
        /// The attempts that were made.
        attempts: u32,
        /// Why there was no other attempt; `None` if retries are off.
        stop: Option<StopReason>,
        /// The client's error.
        source: BoxError,
    },
    /// The limits cannot be applied.
    Misconfigured(Arc<str>),
}

impl<T> OutboundError<T> {
    /// Returns when it makes sense to try again, if that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) | Self::WaitTooLong(refusal) => refusal.retry_after,
            Self::UpstreamRefused(refusal) => refusal.retry_after,
            Self::BudgetSpent(_) | Self::Failed { .. } | Self::Misconfigured(_) => None,
        }
    }

    /// Returns the last response, if there was one.
    pub fn into_response(self) -> Option<T> {
        match self {
            Self::UpstreamRefused(refusal) => Some(refusal.response.into_inner()),
            Self::BudgetSpent(FailedAttempt::Response { response, .. }) => {
                Some(response.into_inner())
            }
            _ => None,
        }
    }
}

/// A request that was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalRefusal {
    /// What it would have had to wait for.
    pub reason: LocalReason,
    /// How long it would have had to wait; `None` if no wait helps.
    pub retry_after: Option<Duration>,
    #[cfg(feature = "tonic")]
    status: GrpcStatus,
}

impl LocalRefusal {
    pub(super) fn new(reason: LocalReason, retry_after: Option<Duration>) -> Self {
        Self {
            reason,
            retry_after,
            #[cfg(feature = "tonic")]
            status: GrpcStatus::default(),
        }
    }
}

/// The refusal for clients of tonic, which look for a [`tonic::Status`] among the sources of an error and report the
/// code `UNKNOWN` if there is none. Made when it is first looked for, so that other clients do not pay for it.
#[cfg(feature = "tonic")]
#[derive(Clone, Debug, Default)]
struct GrpcStatus(std::sync::OnceLock<tonic::Status>);

/// It follows from the rest of the refusal.
#[cfg(feature = "tonic")]
impl PartialEq for GrpcStatus {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(feature = "tonic")]
impl Eq for GrpcStatus {}

#[cfg(feature = "tonic")]
impl LocalRefusal {
    /// Returns the status that the layer for servers would respond with, with this message.
    fn status(&self, message: impl FnOnce() -> String) -> &tonic::Status {
        self.status.0.get_or_init(|| {
            let code = match self.reason {
                LocalReason::MissingIdentity { .. } => tonic::Code::Unauthenticated,
                _ => tonic::Code::ResourceExhausted,
            };
            let mut status = tonic::Status::new(code, message());
            if let Some(wait) = self.retry_after {
                let secs = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                status.metadata_mut().insert("retry-after", secs.into());
            }
            status
        })
    }
}

/// Why a request was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalReason {
    /// It would have had to wait for this; the name of the limit, if it was one.
    Wait {
        /// What it would have waited for.
        reason: WaitReason,
        /// The name of the limit.
        limit: Option<Arc<str>>,
    },
    /// It costs more than the limit of this name can ever allow.
    ExceedsCapacity(Arc<str>),
    /// The limit of this name requires an identity that the request lacks.
    MissingIdentity {
        /// The name of the limit.
        limit: Arc<str>,
        /// The identity.
        identity: String,
    },
    /// The server has refused most requests lately, so that this one was not sent.
    Throttled,
    /// Too many requests wait already.
    TooManyWaiting,
    /// More limits apply to it than can be charged in one step.
    TooManyLimits,
}

impl fmt::Display for LocalRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            LocalReason::Wait { reason: WaitReason::RateLimit, limit: Some(limit) } => {
                write!(f, "the limit \"{limit}\" is used up")?;
            }
            LocalReason::Wait { reason: WaitReason::Concurrency, limit: Some(limit) } => {
                write!(f, "as many requests as the limit \"{limit}\" allows are in flight")?;
            }
            LocalReason::Wait { reason: WaitReason::Paused, .. } => {
                f.write_str("the server refused requests of this quota")?;
            }
            LocalReason::Wait { reason: WaitReason::ServerQuota, .. } => {
                f.write_str("nothing remains of the server's quota")?;
            }
            LocalReason::Wait { reason, .. } => write!(f, "it has to wait ({reason})")?,
            LocalReason::ExceedsCapacity(limit) => {
                return write!(f, "the cost is more than the limit \"{limit}\" can ever allow");
            }
            LocalReason::MissingIdentity { limit, identity } => {
                return write!(
                    f,
                    "the limit \"{limit}\" requires \"{identity}\", which is missing"
                );
            }
            LocalReason::Throttled => {
                f.write_str("the server has refused most requests lately")?;
            }
            LocalReason::TooManyWaiting => f.write_str("too many requests are waiting already")?,
            LocalReason::TooManyLimits => f.write_str("too many limits apply to it")?,
        }
        match self.retry_after {
            Some(wait) => write!(f, "; retry in {wait:?}"),
            None => Ok(()),
        }
    }
}

/// A request that the server refused, with its last response.
#[non_exhaustive]
pub struct UpstreamRefusal<T> {
    /// The attempts that were made.
    pub attempts: u32,
    /// The status of the response.
    pub status: StatusCode,
    /// When to come back, if the server said so.
    pub retry_after: Option<Duration>,
    /// Why there was no other attempt; `None` if retries are off.
    pub stop: Option<StopReason>,
    /// The response.
    pub response: LastResponse<T>,
}

/// The attempt after which the retry budget was spent.
#[non_exhaustive]
pub enum FailedAttempt<T> {
    /// There was a response.
    #[non_exhaustive]
    Response {
        /// The attempts that were made.
        attempts: u32,
        /// The status of the response.
        status: StatusCode,
        /// The response.
        response: LastResponse<T>,
    },
    /// The client failed.
    #[non_exhaustive]
    Error {
        /// The attempts that were made.
        attempts: u32,
        /// The client's error.
        source: BoxError,
    },
}

/// A response in an error. It can be taken out; an error can be shared between threads, which not every response
/// can.
pub struct LastResponse<T>(Box<Mutex<T>>);

impl<T> LastResponse<T> {
    pub(super) fn new(response: T) -> Self {
        Self(Box::new(Mutex::new(response)))
    }

    /// Returns the response.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same text as `Display`, because it is what `main` prints of an error that it returns.
impl<T> fmt::Debug for OutboundError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> fmt::Display for OutboundError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = |f: &mut fmt::Formatter<'_>, stop: &Option<StopReason>| match stop {
            Some(stop) => write!(f, "; not retried: {stop}"),
            None => Ok(()),
        };
        match self {
            Self::Refused(refusal) => write!(f, "not sent: {refusal}"),
            Self::WaitTooLong(refusal) => write!(f, "not sent, the wait is too long: {refusal}"),
            Self::UpstreamRefused(UpstreamRefusal { attempts, status, stop, .. }) => {
                write!(f, "the server refused it with {status} ({})", Times(*attempts))?;
                stopped(f, stop)
            }
            Self::BudgetSpent(FailedAttempt::Response { attempts, status, .. }) => {
                write!(f, "the server responded {status} ({})", Times(*attempts))?;
                stopped(f, &Some(StopReason::BudgetSpent))
            }
            Self::BudgetSpent(FailedAttempt::Error { attempts, .. }) => {
                write!(f, "it failed ({})", Times(*attempts))?;
                stopped(f, &Some(StopReason::BudgetSpent))
            }
            Self::Failed { attempts, stop, .. } => {
                write!(f, "it failed ({})", Times(*attempts))?;
                stopped(f, stop)
            }
            Self::Misconfigured(why) => f.write_str(why),
        }
    }
}

struct Times(u32);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "attempt" } else { "attempts" })
    }
}

impl<T> Error for OutboundError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed { source, .. }
            | Self::BudgetSpent(FailedAttempt::Error { source, .. }) => Some(&**source),
            #[cfg(feature = "tonic")]
            Self::Refused(refusal) | Self::WaitTooLong(refusal) => {
                Some(refusal.status(|| self.to_string()))
            }
            _ => None,
        }
    }
}
