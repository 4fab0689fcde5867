//! Corrections of charges that are under way in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the corrections that are under way, so that a process can wait for them before it exits.
#[derive(Clone, Default)]
pub(super) struct Corrections(Arc<Pending>);

#[derive(Default)]
struct Pending {
    count: AtomicUsize,
    is_done: Notify,
}

/// A correction that is under way until this is dropped.
pub(super) struct Correction(Arc<Pending>);

impl Corrections {
    pub(super) fn begin(&self) -> Correction {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        Correction(Arc::clone(&self.0))
    }

    /// Waits until none is under way.
    pub(super) async fn done(&self) {
        loop {
            let is_done = self.0.is_done.notified();
            if self.0.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            is_done.await;
        }
    }
}

impl Drop for Correction {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.is_done.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn it_waits_for_all_that_are_under_way() {
        let corrections = Corrections::default();
        let (one, two) = (corrections.begin(), corrections.begin());
        let mut done = pin!(corrections.done());
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(done.as_mut().poll(&mut context), Poll::Pending);
        drop(one);
        assert_eq!(done.as_mut().poll(&mut context), Poll::Pending);
        drop(two);
        assert_eq!(done.as_mut().poll(&mut context), Poll::Ready(()));
    }
}
