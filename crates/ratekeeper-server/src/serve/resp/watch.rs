//! The one timer of a connection: it looks now and then whether anything has happened.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// So often in its time it looks. A connection may live that part longer than it should.
const LOOKS: u32 = 4;

/// Done when nothing has been noted for its time, or a little longer. To note something costs next to
/// nothing, which to set a timer for every command would not.
pub(super) struct Watch {
    patience: Duration,
    quiet_looks: u32,
    timer: Pin<Box<Sleep>>,
}

impl Watch {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, quiet_looks: 0, timer: Box::pin(sleep(patience / LOOKS)) }
    }

    #[inline]
    pub(super) fn note(&mut self) {
        self.quiet_looks = 0;
    }

    pub(super) fn poll_quiet(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            self.quiet_looks += 1;
            // The first look comes at any time after the last thing that happened.
            if self.quiet_looks > LOOKS {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + self.patience / LOOKS);
        }
    }
}
