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

const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    runtime: Runtime,
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
    side_door: Option<(TcpListener, Arc<Admin>)>,
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
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        };
        drop(entered);
        Ok(Self { runtime, shared, tls, side_door, signals })
    }

    /// Returns when the gateway has come to its end.
    pub(super) fn run(self) {
        let Self { runtime, shared, tls, side_door, mut signals } = self;
        runtime.block_on(async {
            health::start(&shared);
            if let Some((listener, admin)) = side_door {
                tokio::spawn(admin::serve(listener, admin, None));
            }
            shared.policy.gate().start();
            until_asked(&mut signals, &shared.policy, tls.as_deref()).await;
            shared.drain.end(shared.timeouts.drain, signals.end()).await;
        });
    }
}

async fn until_asked(signals: &mut Signals, policy: &PolicyFile, tls: Option<&Tls>) {
    let mut look = interval(LOOK_AT_FILES_EVERY);
    loop {
        let Signals { terminate, interrupt, hang_up } = signals;
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hang_up.recv() => {
                let _ = policy.reload();
                tls.iter().for_each(|tls| tls.reload());
            }
            _ = look.tick() => {
                policy.reload_if_changed();
                tls.iter().for_each(|tls| tls.reload_if_changed());
            }
        }
    }
}
