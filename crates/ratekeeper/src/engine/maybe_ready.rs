//! A result that is there already, or a future of it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// The result of a decision: there already if the store is in memory, a future if the store is shared.
///
/// Await it where waiting is no concern. Code that serves many requests in one go, such as a pipeline of
/// commands, takes the result at once with [`MaybeReady::try_now`].
///
/// ```
/// use ratekeeper::{Charge, Limit, Op, Policy, PolicyLimiter};
///
/// let limiter = PolicyLimiter::new(Policy::one_line("100/minute per ip")?)?;
/// let limit = Limit::token_bucket("5/s burst 10")?.named("exports");
/// let applying = limiter.engine().apply(Op::Check, &[Charge::new(&limit, "ann")]);
/// // The store is in memory, so the result is there.
/// assert!(applying.try_now().expect("ready")?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a shared store is not called until it is awaited"]
pub struct MaybeReady<T>(State<T>);

#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "memory is never pending"))]
enum State<T> {
    Ready(Option<T>),
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> MaybeReady<T> {
    #[inline]
    pub(crate) fn ready(result: T) -> Self {
        Self(State::Ready(Some(result)))
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "memory is never pending"))]
    pub(crate) fn pending(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(future)))
    }

    /// Returns the result if it is there; otherwise this, to be awaited.
    ///
    /// # Errors
    ///
    /// If a shared store has to be waited for.
    #[inline]
    pub fn try_now(self) -> Result<T, Self> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            state => Err(Self(state)),
        }
    }
}

impl<T: Unpin> Future for MaybeReady<T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            State::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
            State::Pending(future) => future.as_mut().poll(context),
        }
    }
}

/// Returns the result of a future that waits for nothing but the store, which is in memory.
#[inline]
pub(crate) fn ready_now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a store in memory decides at once"),
    }
}

impl<T> std::fmt::Debug for MaybeReady<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_ready = matches!(self.0, State::Ready(_));
        f.debug_struct("MaybeReady").field("is_ready", &is_ready).finish()
    }
}
