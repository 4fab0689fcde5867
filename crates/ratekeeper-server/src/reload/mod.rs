//! Reloads configuration while the server runs: the policy, Envoy's files, certificates and secrets.
//!
//! Files are read on a thread of their own, within a time limit, so that a mount that hangs stops neither
//! a listener nor a health check. What cannot be loaded changes nothing.

mod policy;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use ratekeeper::files::{FileStamps, LoadError, Loaded, Reloader};
use ratekeeper::{Clock, SystemClock};
use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use policy::{PolicyFile, Program};
pub(crate) use ratekeeper::LoadStatus;

/// How often files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Configuration that comes from files.
pub(crate) trait Reload: Send + Sync + 'static {
    type Value: Send + 'static;
    type Error: std::error::Error;

    /// Returns what this is, for the log.
    fn what(&self) -> &'static str;

    /// Whether it comes from files, so that it can be read again.
    fn is_from_file(&self) -> bool {
        true
    }

    fn state(&self) -> &LoadState;

    /// Returns where it comes from, for the log.
    fn source(&self) -> String;

    /// Reads the files, and returns their stamps from before that. May block.
    fn read(&self) -> (Self::Value, FileStamps);

    /// Makes what was read active. Returns what is worth logging about it, or why it stays inactive.
    fn activate(&self, value: Self::Value) -> Result<String, Self::Error>;

    /// Notes that the files could not be read in time.
    fn note_failure(&self, _: &LoadError) {}
}

/// The last loads of some configuration.
pub(crate) struct LoadState {
    reloader: Reloader,
    status: Mutex<LoadStatus>,
}

impl LoadState {
    /// Returns the state after a first load.
    pub(crate) fn loaded(stamps: FileStamps) -> Self {
        let mut status = LoadStatus::default();
        status.record_success(SystemClock.now());
        Self { reloader: Reloader::new(stamps), status: Mutex::new(status) }
    }

    pub(crate) fn status(&self) -> LoadStatus {
        self.lock().clone()
    }

    fn note_loaded(&self) -> u64 {
        let mut status = self.lock();
        status.record_success(SystemClock.now());
        status.version
    }

    fn note_failed(&self, error: String) {
        self.lock().record_failure(error, SystemClock.now());
    }

    fn lock(&self) -> MutexGuard<'_, LoadStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// ReloadTrigger to read files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadTrigger {
    Changed,
    Always,
}

/// Reloads it. Returns whether what the files contain is active.
pub(crate) async fn reload<R: Reload>(this: &Arc<R>) -> bool {
    load(this, ReloadTrigger::Always).await
}

/// Loads it. Returns whether what was read is active, or whether nothing has changed.
pub(crate) async fn load<R: Reload>(this: &Arc<R>, when: ReloadTrigger) -> bool {
    if !this.is_from_file() {
        return true;
    }
    let (state, on_thread) = (this.state(), Arc::clone(this));
    let read = move || on_thread.read();
    let read = match when {
        ReloadTrigger::Always => Some(state.reloader.reload(read).await),
        ReloadTrigger::Changed => state.reloader.reload_if_changed(read).await,
    };
    match read {
        None => true,
        // The next load waits until this one is active.
        Some(Ok(Loaded { value, .. })) => activate(&**this, value),
        Some(Err(error)) => {
            this.note_failure(&error.error);
            let message = format!("{}: {error}", this.source());
            if !error.is_repeated {
                log_failure(this.what(), &message);
            }
            state.note_failed(message);
            false
        }
    }
}

fn activate<R: Reload>(this: &R, value: R::Value) -> bool {
    match this.activate(value) {
        Ok(details) => {
            let (version, source) = (this.state().note_loaded(), this.source());
            tracing::info!(version, source, details, "{} reloaded", this.what());
            true
        }
        Err(error) => {
            let error = error.to_string();
            log_failure(this.what(), &error);
            this.state().note_failed(error);
            false
        }
    }
}

fn log_failure(what: &str, error: &str) {
    tracing::error!("{what} not reloaded, the previous version stays active:\n{error}");
}

/// Everything that a process reloads.
#[derive(Default)]
pub(crate) struct ReloadSet(Vec<Arc<dyn DynReload>>);

trait DynReload: Send + Sync {
    fn load(self: Arc<Self>, when: ReloadTrigger) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

impl<R: Reload> DynReload for R {
    fn load(self: Arc<Self>, when: ReloadTrigger) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        Box::pin(async move { load(&self, when).await })
    }
}

impl ReloadSet {
    pub(crate) fn add<R: Reload>(&mut self, reloaded: &Arc<R>) {
        let reloaded = Arc::clone(reloaded);
        self.0.push(reloaded);
    }

    /// Reloads everything when this signal comes, and what has changed every second.
    pub(crate) async fn run(&self, sighup: &mut Signal) {
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let when = tokio::select! {
                _ = sighup.recv() => ReloadTrigger::Always,
                _ = checks.tick() => ReloadTrigger::Changed,
            };
            // Together, so that none waits for another that hangs.
            join_all(self.0.iter().map(|reloaded| Arc::clone(reloaded).load(when))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A number in a file.
    struct Number {
        file: PathBuf,
        active: Mutex<Option<u32>>,
        loads: LoadState,
    }

    impl Reload for Number {
        type Value = Result<u32, std::num::ParseIntError>;
        type Error = std::num::ParseIntError;

        fn what(&self) -> &'static str {
            "number"
        }

        fn state(&self) -> &LoadState {
            &self.loads
        }

        fn source(&self) -> String {
            self.file.display().to_string()
        }

        fn read(&self) -> (Self::Value, FileStamps) {
            let stamps = FileStamps::of([&self.file]);
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            (text.parse(), stamps)
        }

        fn activate(&self, value: Self::Value) -> Result<String, Self::Error> {
            *self.active.lock().unwrap() = Some(value?);
            Ok(String::new())
        }
    }

    #[tokio::test]
    async fn a_failed_load_keeps_what_is_active_and_is_recorded_until_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        let loads = LoadState::loaded(FileStamps::of([&file]));
        let number = Number { file: file.clone(), active: Mutex::new(Some(1)), loads };
        let number = Arc::new(number);
        let active = || *number.active.lock().unwrap();

        assert!(load(&number, ReloadTrigger::Changed).await);
        assert_eq!((active(), number.loads.status().version), (Some(1), 1));
        std::fs::write(&file, "one").unwrap();
        assert!(!load(&number, ReloadTrigger::Changed).await);
        assert!(load(&number, ReloadTrigger::Changed).await, "nothing has changed");
        assert!(!reload(&number).await);
        let status = number.loads.status();
        assert_eq!((active(), status.version, status.failures), (Some(1), 1, 2));
        assert_eq!(status.last_error.as_deref(), Some("invalid digit found in string"));
        assert!(status.failed_at.is_some());
        std::fs::write(&file, "22").unwrap();
        assert!(load(&number, ReloadTrigger::Changed).await);
        let status = number.loads.status();
        assert_eq!((active(), status.version, status.failures), (Some(22), 2, 2));
        assert_eq!((status.last_error, status.failed_at), (None, None));
    }
}
