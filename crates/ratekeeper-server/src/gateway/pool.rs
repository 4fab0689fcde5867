//! Connections to one upstream that wait for work. Each worker has its own, so nobody waits for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::link::Link;

pub(super) struct Pool {
    idle: Mutex<Vec<Idle>>,
    idle_max: usize,
    patience: Duration,
}

struct Idle {
    link: Box<Link>,
    until: Instant,
}

impl Pool {
    pub(super) fn new(idle_max: usize, patience: Duration) -> Self {
        Self { idle: Mutex::default(), idle_max, patience }
    }

    /// The connection that was used last, which is the least likely to have been closed.
    pub(super) fn take(&self) -> Option<Box<Link>> {
        loop {
            let Idle { mut link, until } = self.idle().pop()?;
            if link.is_ready(&mut unwoken()) && Instant::now() < until {
                return Some(link);
            }
        }
    }

    /// Keeps a connection for the next request, unless it has had its day. The upstream may have
    /// said for how long it will keep it.
    pub(super) fn give(&self, mut link: Box<Link>, allowed: Option<Duration>) {
        if !link.is_ready(&mut unwoken()) {
            return;
        }
        link.set_in_use(None);
        let patience = allowed.map_or(self.patience, |allowed| allowed.min(self.patience));
        let until = Instant::now() + patience;
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            idle.push(Idle { link, until });
        }
    }

    /// Closes what has been idle for too long or was closed by the upstream.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        self.idle().retain_mut(|idle| now < idle.until && idle.link.is_ready(&mut unwoken()));
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nobody is to be woken when something happens to an idle connection.
fn unwoken() -> Context<'static> {
    Context::from_waker(Waker::noop())
}
