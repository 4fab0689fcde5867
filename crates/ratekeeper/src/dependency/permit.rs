//! A permit for one call of a dependency.

use std::fmt;

use ratekeeper_control::Outcome;
use ratekeeper_control::adaptive::SampleOutcome;

use super::parts::EngineClock;
use crate::adaptive_limit::AdaptivePermit;
use crate::breaker::OwnedCall;
use crate::concurrency::Permit;

/// How a call of a [`Dependency`](crate::Dependency) ended.
///
/// ```
/// use ratekeeper::CallOutcome;
///
/// fn of_status(status: u16) -> CallOutcome {
///     match status {
///         429 => CallOutcome::Ignored,
///         503 | 504 => CallOutcome::Overloaded,
///         500.. => CallOutcome::Failure,
///         _ => CallOutcome::Success,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// The dependency did what it was asked for.
    Success,
    /// It failed.
    Failure,
    /// It failed because it is overloaded: a timeout, or a response that says so.
    Overloaded,
    /// It says nothing about the dependency, such as an error of the caller.
    Ignored,
}

/// A permit for one call, from [`Dependency::acquire`](crate::Dependency::acquire).
///
/// The call takes its place until the permit is dropped. If nothing was reported until then, the call counts neither as
/// success nor as failure.
#[must_use = "a call without a permit is not protected"]
pub struct DependencyPermit {
    permit: Option<HeldPermit>,
    call: Option<OwnedCall<EngineClock>>,
}

/// A place among the calls in flight.
pub(super) enum HeldPermit {
    Fixed { _permit: Permit },
    Adaptive(AdaptivePermit<'static, EngineClock>),
}

impl DependencyPermit {
    pub(super) fn new(permit: Option<HeldPermit>, call: Option<OwnedCall<EngineClock>>) -> Self {
        Self { permit, call }
    }

    /// Reports that the call has succeeded, and releases the permit.
    pub fn success(mut self) {
        self.report(CallOutcome::Success);
    }

    /// Reports that the call has failed, and releases the permit.
    pub fn failure(mut self) {
        self.report(CallOutcome::Failure);
    }

    /// Reports that the call has failed because of overload, and releases the permit.
    pub fn overloaded(mut self) {
        self.report(CallOutcome::Overloaded);
    }

    /// Reports that the call says nothing about the dependency, and releases the permit.
    pub fn ignore(mut self) {
        self.report(CallOutcome::Ignored);
    }

    /// Reports how the call ended, and keeps the permit. For a stream whose outcome is known with its first byte, and
    /// which occupies the dependency until its end. A second report has no effect.
    pub fn report(&mut self, outcome: CallOutcome) {
        if let Some(call) = self.call.take() {
            call.record(match outcome {
                CallOutcome::Success => Outcome::Success,
                CallOutcome::Failure | CallOutcome::Overloaded => Outcome::Failure,
                CallOutcome::Ignored => Outcome::Ignored,
            });
        }
        if let Some(permit) = &mut self.permit {
            permit.sample(match outcome {
                CallOutcome::Success => SampleOutcome::Success,
                CallOutcome::Overloaded => SampleOutcome::Overload,
                CallOutcome::Failure | CallOutcome::Ignored => SampleOutcome::Ignored,
            });
        }
    }
}

impl fmt::Debug for DependencyPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DependencyPermit").finish_non_exhaustive()
    }
}
