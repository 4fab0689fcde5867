//! Idle connections to one upstream. Each worker has a pool of its own, so its lock is never contended.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::upstream_connection::UpstreamConnection;

pub(super) struct Pool {
    idle: Mutex<Vec<Idle>>,
    idle_max: usize,
    idle_timeout: Duration,
}

struct Idle {
    connection: Box<UpstreamConnection>,
    until: Instant,
}

impl Pool {
    pub(super) fn new(idle_max: usize, idle_timeout: Duration) -> Self {
        Self { idle: Mutex::default(), idle_max, idle_timeout }
    }

    /// Takes the connection that was used last, which is the least likely to have been closed.
    pub(super) fn take(&self) -> Option<Box<UpstreamConnection>> {
        loop {
            let Idle { mut connection, until } = self.idle().pop()?;
            if connection.is_ready(&mut no_waker()) && Instant::now() < until {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next request, if it can serve one. The upstream may have said for how
    /// long it keeps it open.
    pub(super) fn put(
        &self,
        mut connection: Box<UpstreamConnection>,
        keep_alive: Option<Duration>,
    ) {
        if !connection.is_ready(&mut no_waker()) {
            return;
        }
        connection.set_in_use(None);
        let timeout = keep_alive.map_or(self.idle_timeout, |span| span.min(self.idle_timeout));
        let until = Instant::now() + timeout;
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            idle.push(Idle { connection, until });
        }
    }

    /// Closes what has been idle for too long or was closed by the upstream.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        self.idle()
            .retain_mut(|idle| now < idle.until && idle.connection.is_ready(&mut no_waker()));
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes no task when something happens to an idle connection.
fn no_waker() -> Context<'static> {
    Context::from_waker(Waker::noop())
}
