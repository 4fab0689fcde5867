//! How many connections there are, and how they come to an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// What connections are asked to do. Later stages include the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum Stage {
    Serve,
    /// Nothing new is accepted, and each answer is the last of its connection.
    LastAnswers,
    /// Connections without a request are closed.
    CloseIdle,
}

/// Shared by all connections; clones are one.
#[derive(Clone, Default)]
pub(super) struct Drain(Arc<State>);

#[derive(Default)]
struct State {
    stage: AtomicU8,
    changed: Arc<Notify>,
    live: AtomicUsize,
    listeners: AtomicUsize,
    emptied: Notify,
}

/// Counts a connection until it is dropped.
pub(super) struct LiveConnection(Drain);

/// Counts a listener until it is dropped.
pub(super) struct LiveListener(Drain);

impl Drain {
    pub(super) fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Acquire) {
            0 => Stage::Serve,
            1 => Stage::LastAnswers,
            _ => Stage::CloseIdle,
        }
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Done when the stage changes after this call.
    pub(super) fn changed(&self) -> OwnedNotified {
        Arc::clone(&self.0.changed).notified_owned()
    }

    /// Counts one more connection, unless there are `max`.
    pub(super) fn connect(&self, max: u32) -> Option<LiveConnection> {
        let live = self.0.live.fetch_add(1, Ordering::AcqRel);
        let counted = LiveConnection(self.clone());
        (live < max as usize).then_some(counted)
    }

    pub(super) fn listen(&self) -> LiveListener {
        self.0.listeners.fetch_add(1, Ordering::AcqRel);
        LiveListener(self.clone())
    }

    pub(super) fn live(&self) -> usize {
        self.0.live.load(Ordering::Acquire)
    }

    /// Done when no connection is left and none can come.
    pub(super) async fn emptied(&self) {
        while self.live() + self.0.listeners.load(Ordering::Acquire) > 0 {
            self.0.emptied.notified().await;
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
