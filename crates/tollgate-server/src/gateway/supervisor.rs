//! What the first thread does while the workers work: signals, certificates, health, and the end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::interval;

use super::health;
use super::shared::Shared;
use crate::admin::{self, Admin};
use crate::policy_file::PolicyFile;
use crate::tls::Tls;
use crate::tokens::Tokens;

const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);

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
                tokio::spawn(admin::serve(listener, admin, tls));
            }
            shared.policy.gate().start();
            let files = Files { policy: &shared.policy, tls, admin_tokens };
            until_asked(&mut signals, &files).await;
            shared.drain.end(shared.timeouts.drain, signals.end()).await;
            shared.policy.leave().await;
        });
    }
}

/// What may change while the gateway runs.
struct Files<'f> {
    policy: &'f PolicyFile,
    tls: Option<Arc<Tls>>,
    admin_tokens: Option<Arc<Tokens>>,
}

impl Files<'_> {
    fn reload(&self) {
        // What came of it is in the log.
        let _ = self.policy.reload();
        self.tls.iter().for_each(|tls| tls.reload());
    }

    fn look(&self) {
        self.policy.reload_if_changed();
        self.tls.iter().for_each(|tls| tls.reload_if_changed());
        self.admin_tokens.iter().for_each(|tokens| tokens.reload_if_changed());
    }
}

async fn until_asked(signals: &mut Signals, files: &Files<'_>) {
    let mut look = interval(LOOK_AT_FILES_EVERY);
    loop {
        let Signals { terminate, interrupt, hang_up } = signals;
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hang_up.recv() => files.reload(),
            _ = look.tick() => files.look(),
        }
    }
}
