//! How many connections there are, and how they come to an end.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, sleep, sleep_until};

/// How long a client that keeps its connection open has to ask once more, and be told that this was
/// the last answer. Connections on which nothing comes are closed then.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What connections are asked to do. Later stages include the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Stage {
    Serve,
    /// Nothing new is accepted, and each answer is the last of its connection.
    LastAnswers,
    /// Connections without a request are closed.
    CloseIdle,
}

/// Shared by all connections; clones are one.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<State>);

#[derive(Default)]
struct State {
    stage: AtomicU8,
    changed: Arc<Notify>,
    live: AtomicUsize,
    listeners: AtomicUsize,
    emptied: Notify,
}

/// Counts a connection until it is dropped.
pub(crate) struct LiveConnection(Drain);

/// Counts a listener until it is dropped.
pub(crate) struct LiveListener(Drain);

impl Drain {
    pub(crate) fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Acquire) {
            0 => Stage::Serve,
            1 => Stage::LastAnswers,
            _ => Stage::CloseIdle,
        }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Done when the stage changes after this call.
    pub(crate) fn changed(&self) -> OwnedNotified {
        Arc::clone(&self.0.changed).notified_owned()
    }

    /// Done when this stage is reached.
    pub(crate) async fn reached(&self, stage: Stage) {
        loop {
            let changed = self.changed();
            if self.stage() >= stage {
                return;
            }
            changed.await;
        }
    }

    /// Counts one more connection.
    pub(crate) fn join(&self) -> LiveConnection {
        self.0.live.fetch_add(1, Ordering::AcqRel);
        LiveConnection(self.clone())
    }

    /// Counts one more connection, unless there are `max`.
    pub(crate) fn connect(&self, max: u32) -> Option<LiveConnection> {
        let live = self.0.live.fetch_add(1, Ordering::AcqRel);
        let counted = LiveConnection(self.clone());
        (live < max as usize).then_some(counted)
    }

    pub(crate) fn listen(&self) -> LiveListener {
        self.0.listeners.fetch_add(1, Ordering::AcqRel);
        LiveListener(self.clone())
    }

    pub(crate) fn live(&self) -> usize {
        self.0.live.load(Ordering::Acquire)
    }

    /// Done when no connection is left and none can come.
    pub(crate) async fn emptied(&self) {
        while self.live() + self.0.listeners.load(Ordering::Acquire) > 0 {
            self.0.emptied.notified().await;
        }
    }

    /// Goes through the stages until nothing is left, but not longer than `patience`, nor when somebody
    /// has had enough.
    pub(crate) async fn end(&self, patience: Duration, had_enough: impl Future<Output = ()>) {
        let deadline = Instant::now() + patience;
        let stages = async {
            self.enter(Stage::LastAnswers);
            sleep(LAST_ANSWERS.min(patience / 2)).await;
            self.enter(Stage::CloseIdle);
            std::future::pending::<()>().await;
        };
        tracing::info!(connections = self.live(), ?patience, "ending: no new connections");
        tokio::select! {
            () = self.emptied() => return,
            () = stages => {}
            () = sleep_until(deadline) => {}
            () = had_enough => {}
        }
        tracing::warn!(connections = self.live(), "ended with connections open");
    }
}

/// Drives a connection, and tells it of each stage that the drain comes to. `None` if it was to be cut
/// then.
pub(crate) async fn drive<C: Future>(
    connection: C,
    drain: &Drain,
    mut heed: impl FnMut(Stage, Pin<&mut C>) -> Heeded,
) -> Option<C::Output> {
    let mut connection = pin!(connection);
    let (mut watch, mut heeded) = (StageWatch::new(drain), Stage::Serve);
    poll_fn(|cx| {
        let stage = watch.poll_stage(cx);
        if stage != heeded {
            heeded = stage;
            if heed(stage, connection.as_mut()) == Heeded::Cut {
                return Poll::Ready(None);
            }
        }
        connection.as_mut().poll(cx).map(Some)
    })
    .await
}

/// What becomes of a connection at a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heeded {
    GoesOn,
    Cut,
}

/// Follows the stages for one task. While nothing changes, that costs one look.
pub(crate) struct StageWatch {
    drain: Drain,
    seen: Option<Stage>,
    changed: Pin<Box<OwnedNotified>>,
}

impl StageWatch {
    pub(crate) fn new(drain: &Drain) -> Self {
        Self { changed: Box::pin(drain.changed()), seen: None, drain: drain.clone() }
    }

    /// The stage now. The context's task, which has to be always the same, is woken when it changes.
    pub(crate) fn poll_stage(&mut self, cx: &mut Context<'_>) -> Stage {
        loop {
            let stage = self.drain.stage();
            if self.seen == Some(stage) {
                return stage;
            }
            self.changed.set(self.drain.changed());
            // Looked at before it is waited for, so that no change is missed.
            let stage = self.drain.stage();
            if self.changed.as_mut().poll(cx).is_pending() {
                self.seen = Some(stage);
            }
        }
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        if self.0.0.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.emptied.notify_one();
        }
    }
}

impl Drop for LiveListener {
    fn drop(&mut self) {
        self.0.0.listeners.fetch_sub(1, Ordering::AcqRel);
        self.0.0.emptied.notify_one();
    }
}
