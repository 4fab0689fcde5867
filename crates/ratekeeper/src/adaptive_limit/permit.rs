//! A permit of an adaptive limit.

use std::fmt;
use std::sync::Arc;

use ratekeeper_control::adaptive::SampleOutcome;
use ratekeeper_core::Micros;

use super::samples::Shared;
use crate::clock::{Clock, SystemClock};

/// A permit of an [`AdaptiveLimit`](crate::AdaptiveLimit). Report to it how the request ended.
///
/// A permit that is dropped without an outcome is released, and the request is ignored: a caller that has gone away says
/// nothing about load. There is one exception: if the request took three times as long as nine tenths of the others, or
/// longer than the target, it counts as overload. So the limit learns from a service that hangs also if its callers give
/// up by dropping their futures, as `tokio::time::timeout` does.
///
/// ```
/// use ratekeeper::AdaptiveLimit;
///
/// let limit = AdaptiveLimit::default();
/// drop(limit.try_acquire()?);
/// let stats = limit.stats();
/// assert_eq!((stats.ignored, stats.permits.in_flight), (1, 0));
/// # Ok::<(), ratekeeper::BulkheadError>(())
/// ```
#[must_use = "a permit that is dropped has no outcome; call `success`, `overloaded` or `ignore`"]
pub struct AdaptivePermit<'l, C: Clock = SystemClock> {
    limit: LimitRef<'l, C>,
    /// If it is timed.
    began: Option<Micros>,
    phase: Phase,
}

enum LimitRef<'l, C> {
    Borrowed(&'l Arc<Shared<C>>),
    Owned(Arc<Shared<C>>),
}

impl<C> LimitRef<'_, C> {
    #[inline]
    fn shared(&self) -> &Arc<Shared<C>> {
        match self {
            Self::Borrowed(shared) => shared,
            Self::Owned(shared) => shared,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Unsampled,
    Sampled,
    /// Nothing is left to do when it is dropped.
    Released,
}

impl<'l, C: Clock> AdaptivePermit<'l, C> {
    #[inline]
    pub(super) fn begin(shared: &'l Arc<Shared<C>>) -> Self {
        let began = shared.begin();
        Self { limit: LimitRef::Borrowed(shared), began, phase: Phase::Unsampled }
    }

    /// Reports that the service did the work. How long that took is a sample of its latency.
    #[inline]
    pub fn success(self) {
        self.record(SampleOutcome::Success);
    }

    /// Reports that the service is overloaded: the request timed out, or the response says so, such as a 503.
    pub fn overloaded(self) {
        self.record(SampleOutcome::Overload);
    }

    /// Reports that the request says nothing about load: it failed for another reason.
    pub fn ignore(self) {
        self.record(SampleOutcome::Ignored);
    }

    /// Reports how the request ended. One that was sampled before is only released.
    #[inline]
    pub fn record(mut self, outcome: SampleOutcome) {
        let shared = self.limit.shared();
        match self.phase {
            Phase::Unsampled => shared.end(self.began, outcome),
            Phase::Sampled => shared.release(),
            Phase::Released => {}
        }
        self.phase = Phase::Released;
    }

    /// Reports an outcome now, while the request stays in flight until this is dropped. It is for streams: the latency
    /// of a stream is the time to its first byte. Only the first one counts.
    ///
    /// ```
    /// use ratekeeper::{AdaptiveLimit, SampleOutcome};
    ///
    /// let limit = AdaptiveLimit::default();
    /// let mut permit = limit.try_acquire()?;
    /// permit.sample(SampleOutcome::Success);
    /// assert_eq!((limit.stats().successes, limit.in_flight()), (1, 1));
    /// drop(permit);
    /// assert_eq!(limit.in_flight(), 0);
    /// # Ok::<(), ratekeeper::BulkheadError>(())
    /// ```
    pub fn sample(&mut self, outcome: SampleOutcome) {
        if self.phase == Phase::Unsampled {
            self.phase = Phase::Sampled;
            self.limit.shared().sample(self.began, outcome);
        }
    }

    /// Returns the permit without the borrow of its limit, for a request in a task of its own.
    ///
    /// ```
    /// use ratekeeper::AdaptiveLimit;
    ///
    /// let limit = AdaptiveLimit::default();
    /// let permit = limit.try_acquire()?.into_owned();
    /// std::thread::spawn(move || permit.success()).join().unwrap();
    /// assert_eq!(limit.stats().successes, 1);
    /// # Ok::<(), ratekeeper::BulkheadError>(())
    /// ```
    pub fn into_owned(mut self) -> AdaptivePermit<'static, C> {
        let phase = std::mem::replace(&mut self.phase, Phase::Released);
        let shared = Arc::clone(self.limit.shared());
        AdaptivePermit { limit: LimitRef::Owned(shared), began: self.began, phase }
    }
}

impl<C: Clock> Drop for AdaptivePermit<'_, C> {
    #[inline]
    fn drop(&mut self) {
        match self.phase {
            Phase::Unsampled => self.limit.shared().abandon(self.began),
            Phase::Sampled => self.limit.shared().release(),
            Phase::Released => {}
        }
    }
}

impl<C: Clock> fmt::Debug for AdaptivePermit<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptivePermit").finish_non_exhaustive()
    }
}
