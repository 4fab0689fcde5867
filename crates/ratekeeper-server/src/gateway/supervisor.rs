//! What the first thread does while the workers work: signals, certificates, health, and the end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::health;
use super::shared::Shared;
use crate::admin::{self, Admin};
use crate::policy_file::PolicyFile;
use crate::reload::{self, reload, reload_if_changed};
use crate::tls::Tls;
use crate::tokens::Tokens;

pub(super) struct Supervisor {
    runtime: Runtime,
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
    side_door: Option<(TcpListener, Arc<Admin>)>,
    is_admin_tls: bool,
    signals: Signals,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Supervisor {
    /// From here on, no signal is missed.
    pub(super) fn new(
        shared: Arc<Shared>,
        tls: Option<Arc<Tls>>,
        side_door: Option<(TcpListener, Arc<Admin>)>,
        is_admin_tls: bool,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        };
        drop(entered);
        Ok(Self { runtime, shared, tls, side_door, is_admin_tls, signals })
    }

    /// Returns when the gateway has come to its end.
    pub(super) fn run(self) {
        let Self { runtime, shared, tls, side_door, is_admin_tls, mut signals } = self;
        runtime.block_on(async {
            health::start(&shared);
            let admin_tokens = side_door.as_ref().map(|(_, admin)| Arc::clone(&admin.tokens));
            if let Some((listener, admin)) = side_door {
                let tls = tls.clone().filter(|_| is_admin_tls);
                let max = shared.descriptors.admin_max;
                tokio::spawn(admin::serve(listener, admin, tls, max));
            }
            shared.policy.gate().engine().start();
            let files = Files { policy: &shared.policy, tls, admin_tokens };
            until_asked(&mut signals, &files).await;
            shared.drain.end(shared.timeouts.drain, signals.end()).await;
            shared.policy.leave().await;
        });
    }
}

/// What may change while the gateway runs.
struct Files<'f> {
    policy: &'f Arc<PolicyFile>,
    tls: Option<Arc<Tls>>,
    admin_tokens: Option<Arc<Tokens>>,
}

impl Files<'_> {
    /// Keeps what is loaded up to date. All files are looked at together, so that none waits for
    /// another that hangs. What comes of it is in the log.
    async fn keep_loaded(&self, hang_up: &mut Signal) {
        let mut looks = reload::looks();
        loop {
            tokio::select! {
                _ = hang_up.recv() => self.reload().await,
                _ = looks.tick() => self.look().await,
            }
        }
    }

    async fn reload(&self) {
        let tls = join_all(self.tls.iter().map(reload));
        tokio::join!(reload(self.policy), tls, join_all(self.admin_tokens.iter().map(reload)));
    }

    async fn look(&self) {
        let tls = join_all(self.tls.iter().map(reload_if_changed));
        let tokens = join_all(self.admin_tokens.iter().map(reload_if_changed));
        tokio::join!(reload_if_changed(self.policy), tls, tokens);
    }
}

async fn until_asked(signals: &mut Signals, files: &Files<'_>) {
    let Signals { terminate, interrupt, hang_up } = signals;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = files.keep_loaded(hang_up) => {}
    }
}
