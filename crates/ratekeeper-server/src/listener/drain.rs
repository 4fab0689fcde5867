//! Graceful shutdown: its stages, and how many connections are left.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, sleep, sleep_until};

/// How long a client that keeps its connection open has for one more request, whose response says that
/// it is the last. Idle connections are closed after that.
const LAST_RESPONSES: Duration = Duration::from_secs(1);

/// The stages of a graceful shutdown. Later stages include the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Stage {
    Serving,
    /// No connection is accepted, and each response is the last of its connection.
    LastResponses,
    /// Connections without a request are closed.
    CloseIdle,
}

/// The stage that the server is in, and its open connections. Clones share both.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<DrainState>);

#[derive(Default)]
struct DrainState {
    stage: AtomicU8,
    changed: Arc<Notify>,
    connections: AtomicUsize,
    listeners: AtomicUsize,
    emptied: Notify,
}

/// Counts a connection until it is dropped.
pub(crate) struct ConnectionCount(Drain);

/// Counts a listener until it is dropped.
pub(crate) struct ListenerCount(Drain);

impl Drain {
    pub(crate) fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Acquire) {
            0 => Stage::Serving,
            1 => Stage::LastResponses,
            _ => Stage::CloseIdle,
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.stage() > Stage::Serving
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Returns a future that is ready when the stage changes after this call.
    fn changed(&self) -> OwnedNotified {
        Arc::clone(&self.0.changed).notified_owned()
    }

    /// Waits until this stage is reached.
    pub(crate) async fn reached(&self, stage: Stage) {
        loop {
            let changed = self.changed();
            if self.stage() >= stage {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn count_connection(&self) -> ConnectionCount {
        self.0.connections.fetch_add(1, Ordering::AcqRel);
        ConnectionCount(self.clone())
    }

    pub(super) fn count_listener(&self) -> ListenerCount {
        self.0.listeners.fetch_add(1, Ordering::AcqRel);
        ListenerCount(self.clone())
    }

    fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Acquire)
    }

    /// Waits until no connection is open and none can be accepted.
    async fn emptied(&self) {
        while self.connections() + self.0.listeners.load(Ordering::Acquire) > 0 {
            self.0.emptied.notified().await;
        }
    }

    /// Goes through the stages until no connection is left, for at most `within` and until `aborted`.
    pub(super) async fn shut_down(&self, within: Duration, aborted: impl Future<Output = ()>) {
        let deadline = Instant::now() + within;
        let stages = async {
            self.enter(Stage::LastResponses);
            sleep(LAST_RESPONSES.min(within / 2)).await;
            self.enter(Stage::CloseIdle);
            std::future::pending::<()>().await;
        };
        tracing::info!(connections = self.connections(), timeout = ?within, "shutting down: no new connections are accepted");
        tokio::select! {
            () = self.emptied() => {}
            () = stages => {}
            () = sleep_until(deadline) => {}
            () = aborted => {}
        }
        let connections = self.connections();
        if connections > 0 {
            tracing::warn!(connections, "shut down with connections open");
        }
    }
}

/// Follows the stages for one task. While nothing changes, that costs one load of an atomic.
pub(crate) struct StageWatch {
    drain: Drain,
    seen: Option<Stage>,
    changed: Pin<Box<OwnedNotified>>,
}

impl StageWatch {
    pub(crate) fn new(drain: &Drain) -> Self {
        Self { changed: Box::pin(drain.changed()), seen: None, drain: drain.clone() }
    }

    /// Returns the current stage. The context's task, which has to be the same in each call, is woken
    /// when the stage changes.
    pub(crate) fn poll_stage(&mut self, cx: &mut Context<'_>) -> Stage {
        loop {
            let stage = self.drain.stage();
            if self.seen == Some(stage) {
                return stage;
            }
            self.changed.set(self.drain.changed());
            // Read again after `changed` was created, so that no change is missed.
            let stage = self.drain.stage();
            if self.changed.as_mut().poll(cx) == Poll::Pending {
                self.seen = Some(stage);
            }
        }
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        if self.0.0.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.emptied.notify_one();
        }
    }
}

impl Drop for ListenerCount {
    fn drop(&mut self) {
        self.0.0.listeners.fetch_sub(1, Ordering::AcqRel);
        self.0.0.emptied.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_connections_but_not_longer_than_its_timeout() {
        let (drain, started) = (Drain::default(), Instant::now());
        drain.shut_down(Duration::from_secs(10), std::future::pending()).await;
        assert_eq!(started.elapsed(), Duration::ZERO, "nothing is open");
        let connection = drain.count_connection();
        let closes = async {
            drain.reached(Stage::CloseIdle).await;
            drop(connection);
        };
        tokio::join!(drain.shut_down(Duration::from_secs(10), std::future::pending()), closes);
        assert_eq!(started.elapsed(), LAST_RESPONSES);
        let _stays = drain.count_connection();
        drain.shut_down(Duration::from_secs(10), std::future::pending()).await;
        assert_eq!(started.elapsed(), LAST_RESPONSES + Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn it_can_be_aborted() {
        let (drain, started) = (Drain::default(), Instant::now());
        let _stays = drain.count_connection();
        drain.shut_down(Duration::from_secs(10), sleep(Duration::from_secs(3))).await;
        assert_eq!(started.elapsed(), Duration::from_secs(3));
    }
}
