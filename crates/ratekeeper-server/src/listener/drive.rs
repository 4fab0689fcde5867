//! Runs a connection, and ends it at a timeout and when the server drains.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep};

use super::drain::{Drain, Stage, StageWatch};
use super::timeouts::{ConnState, TimeoutCheck, Timeouts};

/// How long an idle client has to close a connection after a graceful shutdown has started.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than any connection is without a timer.
const FAR: Duration = Duration::from_secs(86_400);

/// How a connection ends after the requests that it has received.
pub(crate) struct GracefulShutdown<C> {
    /// The stage of the drain in which it starts.
    at: Stage,
    start: fn(Pin<&mut C>),
}

impl<C> GracefulShutdown<C> {
    /// HTTP/1 is shut down late, because a client may have sent its next request before it has seen the
    /// response that says `Connection: close`.
    pub(crate) fn http1(start: fn(Pin<&mut C>)) -> Self {
        Self { at: Stage::CloseIdle, start }
    }

    /// HTTP/2 is shut down at once: GOAWAY says which requests will not be served.
    pub(crate) fn http2(start: fn(Pin<&mut C>)) -> Self {
        Self { at: Stage::LastResponses, start }
    }
}

/// Runs a connection to its end. Returns `None` if it was cut off, at a timeout or because it was not
/// even established when idle connections were closed. Without a shutdown, a connection has to follow the
/// drain itself, and is cut off when it is idle.
///
/// While no timeout passes and the server does not drain, this costs a few loads of atomics each time the
/// connection is polled: the timer is polled once and then only checked for whether it has elapsed.
pub(crate) async fn drive<C: Future>(
    connection: C,
    shutdown: Option<GracefulShutdown<C>>,
    conn: &ConnState,
    timeouts: &Timeouts,
    drain: &Drain,
) -> Option<C::Output> {
    let (connection, timer) = (pin!(connection), pin!(sleep(FAR)));
    let stages = StageWatch::new(drain);
    let stage = Stage::Serving;
    let close_at = None;
    let mut driver =
        Driver { connection, shutdown, timer, stages, stage, close_at, conn, timeouts };
    poll_fn(|cx| driver.poll(cx)).await
}

struct Driver<'d, C> {
    connection: Pin<&'d mut C>,
    shutdown: Option<GracefulShutdown<C>>,
    timer: Pin<&'d mut Sleep>,
    stages: StageWatch,
    /// The stage that the connection has followed.
    stage: Stage,
    /// When to cut off a connection that was shut down because it was idle.
    close_at: Option<Instant>,
    conn: &'d ConnState,
    timeouts: &'d Timeouts,
}

/// Whether the connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    CutOff,
}

impl<C: Future> Driver<'_, C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<C::Output>> {
        if self.follow_drain(cx) == Next::CutOff {
            return Poll::Ready(None);
        }
        if self.timer.is_elapsed() && self.check(cx) == Next::CutOff {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = self.connection.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        // A wait has started for which the timer has to be set.
        if self.conn.needs_check() && self.check(cx) == Next::CutOff {
            return Poll::Ready(None);
        }
        Poll::Pending
    }

    fn follow_drain(&mut self, cx: &mut Context<'_>) -> Next {
        let stage = self.stages.poll_stage(cx);
        if stage == self.stage {
            return Next::Continue;
        }
        self.stage = stage;
        if let Some(shutdown) = self.shutdown.as_ref().filter(|shutdown| stage >= shutdown.at) {
            // A connection that has not received its preface does not end by itself.
            if stage == Stage::CloseIdle && !self.conn.is_established() {
                return Next::CutOff;
            }
            (shutdown.start)(self.connection.as_mut());
        }
        Next::Continue
    }

    fn check(&mut self, cx: &mut Context<'_>) -> Next {
        loop {
            let at = match self.conn.check(self.timeouts) {
                TimeoutCheck::OpenUntil(us) => self.conn.ticks().instant(us),
                TimeoutCheck::Idle => match self.close_idle(cx) {
                    Some(at) => at,
                    None => return Next::CutOff,
                },
                TimeoutCheck::Lingered => return Next::CutOff,
                TimeoutCheck::TimedOut(waiting_for) => {
                    tracing::debug!(peer = %self.conn.peer, waiting_for, "connection timed out");
                    return Next::CutOff;
                }
            };
            if at >= self.timer.deadline() && !self.timer.is_elapsed() {
                return Next::Continue;
            }
            self.timer.as_mut().reset(at);
            // A task that has used up its budget could not set its timer otherwise.
            if pin!(unconstrained(self.timer.as_mut())).poll(cx).is_pending() {
                return Next::Continue;
            }
        }
    }

    /// Shuts down an idle connection, and returns when to check it again. `None` if it is to be cut off.
    fn close_idle(&mut self, cx: &Context<'_>) -> Option<Instant> {
        let (shutdown, now) = (self.shutdown.as_ref()?, Instant::now());
        if self.close_at.is_none() {
            (shutdown.start)(self.connection.as_mut());
            // It has to be polled for that.
            cx.waker().wake_by_ref();
        }
        let close_at = *self.close_at.get_or_insert(now + CLOSE_TIMEOUT);
        (now < close_at).then_some(close_at)
    }
}
