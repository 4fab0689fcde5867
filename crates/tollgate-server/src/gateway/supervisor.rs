//! What the first thread does while the workers work: signals, certificates, health, and the end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep, sleep_until};

use super::drain::Stage;
use super::health;
use super::shared::Shared;
use super::tls::Certificate;
use crate::admin::{self, Admin};
use crate::policy_file::PolicyFile;

const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);

/// How long a client that keeps its connection open has to ask once more, and be told that this was
/// the last answer. Connections on which nothing comes are closed then.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    runtime: Runtime,
    shared: Arc<Shared>,
    certificate: Option<Arc<Certificate>>,
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
        certificate: Option<Arc<Certificate>>,
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
        Ok(Self { runtime, shared, certificate, side_door, signals })
    }

    /// Returns when the gateway has come to its end.
    pub(super) fn run(self) {
        let Self { runtime, shared, certificate, side_door, mut signals } = self;
        runtime.block_on(async {
            health::start(&shared);
            if let Some((listener, admin)) = side_door {
                tokio::spawn(admin::serve(listener, admin));
            }
            shared.policy.gate().start();
            until_asked(&mut signals, &shared.policy, certificate.as_deref()).await;
            drain(&mut signals, &shared).await;
        });
    }
}

async fn until_asked(
    signals: &mut Signals,
    policy: &PolicyFile,
    certificate: Option<&Certificate>,
) {
    let mut look = interval(LOOK_AT_FILES_EVERY);
    loop {
        let Signals { terminate, interrupt, hang_up } = signals;
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hang_up.recv() => {
                let _ = policy.reload();
                certificate.iter().for_each(|certificate| certificate.reload());
            }
            _ = look.tick() => {
                policy.reload_if_changed();
                certificate.iter().for_each(|certificate| certificate.reload_if_changed());
            }
        }
    }
}

async fn drain(signals: &mut Signals, shared: &Shared) {
    let patience = shared.timeouts.drain;
    let deadline = Instant::now() + patience;
    let stages = async {
        shared.drain.enter(Stage::LastAnswers);
        sleep(LAST_ANSWERS.min(patience / 2)).await;
        shared.drain.enter(Stage::CloseIdle);
        std::future::pending::<()>().await;
    };
    tracing::info!(connections = shared.drain.live(), ?patience, "ending: no new connections");
    tokio::select! {
        () = shared.drain.emptied() => return,
        () = stages => {}
        () = sleep_until(deadline) => {}
        () = signals.end() => {}
    }
    tracing::warn!(connections = shared.drain.live(), "ended with connections open");
}
