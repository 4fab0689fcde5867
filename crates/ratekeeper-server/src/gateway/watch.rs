//! Runs a client's connection, and ends it when it is overdue or when the gateway ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use tokio::time::{Instant, Sleep, sleep_until};

use super::client::{Client, Outlook};
use super::shared::Shared;
use crate::drain::{Stage, StageWatch};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long an idle client has to close a connection that it was told is over.
const GOODBYE: Duration = Duration::from_secs(2);

/// A connection that can be asked to come to an end.
pub(super) trait Graceful: Future {
    /// When a connection is asked to.
    const SHUTDOWN_AT: Stage;

    fn shut_down(self: Pin<&mut Self>);
}

impl<I, S, B> Graceful for http1::UpgradeableConnection<I, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: Read + Write + Unpin + Send + 'static,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    /// Only then, because a client that has not been told may have sent its next request already.
    const SHUTDOWN_AT: Stage = Stage::CloseIdle;

    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, E, B> Graceful for http2::Connection<I, S, E>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
    E: Http2ServerConnExec<S::Future, B>,
{
    /// At once: HTTP/2 tells the client which requests will not be answered.
    const SHUTDOWN_AT: Stage = Stage::LastAnswers;

    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// A connection under watch. Its timer and the news of the drain cost nothing while neither has
/// anything to say: each is polled once and then only looked at.
pub(super) struct Watched<C> {
    connection: Pin<Box<C>>,
    client: Arc<Client>,
    shared: Arc<Shared>,
    stage: StageWatch,
    timer: Pin<Box<Sleep>>,
    is_begun: bool,
    is_shut_down: bool,
}

impl<C: Graceful> Watched<C> {
    pub(super) fn new(connection: C, client: Arc<Client>, shared: Arc<Shared>) -> Self {
        Self {
            connection: Box::pin(connection),
            stage: StageWatch::new(&shared.drain),
            timer: Box::pin(sleep_until(shared.ticks.instant(0))),
            is_begun: false,
            is_shut_down: false,
            client,
            shared,
        }
    }

    fn shut_down(&mut self) {
        if !self.is_shut_down {
            self.is_shut_down = true;
            self.connection.as_mut().shut_down();
        }
    }

    fn heed_drain(&mut self, cx: &mut Context<'_>) {
        if self.stage.poll_stage(cx) >= C::SHUTDOWN_AT {
            self.shut_down();
        }
    }

    /// Returns whether the connection is to be cut.
    fn heed_time(&mut self, cx: &mut Context<'_>) -> bool {
        while self.timer.is_elapsed() {
            match self.client.activity.outlook(&self.shared.timeouts) {
                Outlook::FineUntil(us) => {
                    self.timer.as_mut().reset(self.shared.ticks.instant(us));
                    _ = self.timer.as_mut().poll(cx);
                }
                Outlook::Idle if self.is_shut_down => return true,
                Outlook::Idle => {
                    self.shut_down();
                    self.timer.as_mut().reset(Instant::now() + GOODBYE);
                    _ = self.timer.as_mut().poll(cx);
                }
                Outlook::Overdue(what) => {
                    tracing::debug!(peer = %self.client.peer, what, "client too slow");
                    return true;
                }
            }
        }
        false
    }
}

impl<C: Graceful> Future for Watched<C> {
    type Output = Option<C::Output>;

    /// `None` if the connection was cut.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.is_begun {
            this.is_begun = true;
            _ = this.timer.as_mut().poll(cx);
        }
        this.heed_drain(cx);
        if this.heed_time(cx) {
            return Poll::Ready(None);
        }
        this.connection.as_mut().poll(cx).map(Some)
    }
}
