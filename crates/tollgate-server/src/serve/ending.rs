//! How many connections there are, and how they come to an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Shared by all doors and their connections; clones are one.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<State>);

#[derive(Default)]
struct State {
    has_begun: AtomicBool,
    begun: Arc<Notify>,
    live: AtomicUsize,
    emptied: Notify,
}

/// Something that has to come to its end before the process may: a connection, or a listener.
pub(crate) struct Live(Ending);

impl Ending {
    /// Asks everything to come to its end.
    pub(crate) fn begin(&self) {
        self.0.has_begun.store(true, Ordering::Release);
        self.0.begun.notify_waiters();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Acquire)
    }

    /// Done when it begins after this call. Whoever waits has to look at [`Ending::has_begun`] first.
    pub(crate) fn begins(&self) -> OwnedNotified {
        Arc::clone(&self.0.begun).notified_owned()
    }

    /// Counts one more until it is dropped.
    pub(crate) fn join(&self) -> Live {
        self.0.live.fetch_add(1, Ordering::AcqRel);
        Live(self.clone())
    }

    pub(crate) fn live(&self) -> usize {
        self.0.live.load(Ordering::Acquire)
    }

    /// Done when nothing is left.
    pub(crate) async fn emptied(&self) {
        while self.live() > 0 {
            self.0.emptied.notified().await;
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.0.0.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.emptied.notify_one();
        }
    }
}
