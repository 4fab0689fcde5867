//! What the first thread does while the workers work: signals, the policy file, and the end.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, sleep};

use super::ending::Ending;
use crate::policy_file::PolicyFile;

const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    runtime: Runtime,
    policy: PolicyFile,
    ending: Ending,
    patience: Duration,
    signals: Signals,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Supervisor {
    /// From here on, no signal is missed.
    pub(super) fn new(policy: PolicyFile, ending: Ending, patience: Duration) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        };
        drop(entered);
        Ok(Self { runtime, policy, ending, patience, signals })
    }

    /// Returns when everything has come to its end.
    pub(super) fn run(self) {
        let Self { runtime, policy, ending, patience, mut signals } = self;
        runtime.block_on(async {
            policy.gate().start();
            signals.until_asked(&policy).await;
            end(&ending, patience, &mut signals).await;
        });
    }
}

impl Signals {
    async fn until_asked(&mut self, policy: &PolicyFile) {
        let mut look = interval(LOOK_AT_FILES_EVERY);
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => { let _ = policy.reload(); }
                _ = look.tick() => policy.reload_if_changed(),
            }
        }
    }

    async fn again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn end(ending: &Ending, patience: Duration, signals: &mut Signals) {
    tracing::info!(connections = ending.live(), ?patience, "ending: no new connections");
    ending.begin();
    tokio::select! {
        () = ending.emptied() => return,
        () = sleep(patience) => {}
        () = signals.again() => {}
    }
    tracing::warn!(connections = ending.live(), "ended with connections open");
}
