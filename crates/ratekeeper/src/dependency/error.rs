//! Why a dependency is not called.

use std::sync::Arc;
use std::time::Duration;

use crate::breaker::CircuitOpen;
use crate::bulkhead::BulkheadError;

/// How long to wait before a retry, where nothing else is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A call of a [`Dependency`](crate::Dependency) that was rejected, so that the dependency was not called.
///
/// ```
/// use ratekeeper::DependencyRejected;
///
/// fn log(rejected: &DependencyRejected) {
///     // inventory: the circuit breaker is open; retry after 4s
///     println!("{rejected}; Retry-After: {}", rejected.retry_after().as_secs());
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{dependency}: {reason}")]
pub struct DependencyRejected {
    /// The name of the dependency.
    pub dependency: Arc<str>,
    /// What rejected it.
    #[source]
    pub reason: DependencyRejection,
}

impl DependencyRejected {
    /// Returns when it makes sense to try again.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match &self.reason {
            DependencyRejection::RateLimited { retry_after } => *retry_after,
            DependencyRejection::Bulkhead(_) => RETRY_AFTER,
            DependencyRejection::Open(open) => {
                open.retry_after.unwrap_or(RETRY_AFTER).max(RETRY_AFTER)
            }
        }
    }

    /// Returns the code in the body of a response: `RATE_LIMITED`, `BULKHEAD_FULL`, `BULKHEAD_TIMEOUT` or
    /// `CIRCUIT_OPEN`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.reason {
            DependencyRejection::RateLimited { .. } => "RATE_LIMITED",
            DependencyRejection::Bulkhead(error) => error.code(),
            DependencyRejection::Open(_) => "CIRCUIT_OPEN",
        }
    }
}

/// What rejected a call of a [`Dependency`](crate::Dependency).
///
/// ```
/// use ratekeeper::DependencyRejection;
///
/// fn is_overload(rejection: &DependencyRejection) -> bool {
///     !matches!(rejection, DependencyRejection::RateLimited { .. })
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DependencyRejection {
    /// Its rate is used up.
    #[error("the rate is used up; retry after {retry_after:?}")]
    RateLimited {
        /// When the next call would be admitted.
        retry_after: Duration,
    },
    /// There was no permit in time.
    #[error(transparent)]
    Bulkhead(#[from] BulkheadError),
    /// The circuit breaker is open.
    #[error(transparent)]
    Open(#[from] CircuitOpen),
}

/// Why [`Dependency::call`](crate::Dependency::call) has no result.
///
/// ```
/// use ratekeeper::DependencyError;
///
/// fn was_called<E>(error: &DependencyError<E>) -> bool {
///     matches!(error, DependencyError::Failed(_))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DependencyError<E> {
    /// The dependency was not called.
    #[error(transparent)]
    Rejected(#[from] DependencyRejected),
    /// The call failed.
    #[error("the call failed")]
    Failed(#[source] E),
}

/// Why there is no [`Dependency`](crate::Dependency) of a name.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/s")?)?;
/// let error = limiter.dependency("inventory").unwrap_err();
/// assert_eq!(error.to_string(), "the policy has no dependency \"inventory\"; it has none");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownDependency {
    /// The policy has none of this name.
    #[error("the policy has no dependency \"{name}\"; it has {}", list(.known))]
    Name {
        /// The name.
        name: String,
        /// The dependencies of the policy.
        known: Vec<String>,
    },
    /// Each upstream has its own.
    #[error(
        "the dependency \"{name}\" is for each upstream of the gateway (`per: upstream`); a program uses one \
         without `per`"
    )]
    PerUpstream {
        /// The name.
        name: String,
    },
}

fn list(known: &[String]) -> String {
    match known {
        [] => "none".to_string(),
        known => known.join(", "),
    }
}
