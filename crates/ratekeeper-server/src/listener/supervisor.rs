//! What the main thread does while the workers serve: signals, the admin listener, reloads and the
//! graceful shutdown.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::Signal;

use super::drain::Drain;
use super::signals::{Termination, sighup};
use super::tls::Tls;
use crate::admin::{self, Admin};
use crate::reload::{PolicyFile, ReloadSet};

pub(crate) struct Supervisor {
    runtime: Runtime,
    termination: Termination,
    sighup: Signal,
}

/// What a supervisor looks after.
pub(crate) struct Supervised {
    pub(crate) policy: Arc<PolicyFile>,
    pub(crate) reloads: ReloadSet,
    pub(crate) admin: Option<AdminListener>,
    pub(crate) drain: Drain,
    /// How long a graceful shutdown may take.
    pub(crate) drain_timeout: Duration,
}

pub(crate) struct AdminListener {
    pub(crate) listener: TcpListener,
    pub(crate) admin: Arc<Admin>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) connections_max: usize,
}

impl Supervisor {
    /// From here on, no signal is missed.
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let (termination, sighup) = (Termination::new()?, sighup()?);
        drop(entered);
        Ok(Self { runtime, termination, sighup })
    }

    /// Runs until the process is to end and its connections are closed. `background` runs until the
    /// graceful shutdown starts.
    pub(crate) fn run(self, supervised: Supervised, background: impl Future<Output = ()>) {
        let Self { runtime, mut termination, mut sighup } = self;
        let Supervised { policy, reloads, admin, drain, drain_timeout } = supervised;
        runtime.block_on(async {
            policy.limiter().engine().start();
            if let Some(AdminListener { listener, admin, tls, connections_max }) = admin {
                tokio::spawn(admin::serve(listener, admin, tls, connections_max));
            }
            let background = async {
                background.await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = termination.received() => {}
                () = reloads.run(&mut sighup) => {}
                () = background => {}
            }
            drain.shut_down(drain_timeout, termination.received()).await;
            policy.return_leases().await;
        });
    }
}
