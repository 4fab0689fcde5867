//! The signals that end the process or reload its configuration.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub(crate) struct Termination {
    terminate: Signal,
    interrupt: Signal,
}

impl Termination {
    /// From here on, no signal is missed. Must be called in a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Returns when the process is to end.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns SIGHUP. Must be called in a tokio runtime.
pub(super) fn sighup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}
