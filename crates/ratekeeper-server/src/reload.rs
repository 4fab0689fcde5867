//! Loads configuration again while the server runs: the policy, Envoy's files, certificates, secrets.
//!
//! Files are read on a thread of their own, within a time limit, so that a mount that hangs stops neither
//! a listener nor a health check. What cannot be loaded changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratekeeper::files::{LoadError, Loaded, Loader};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it may take to read them.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Configuration that comes from files.
pub(crate) trait Reload: Send + Sync + 'static {
    /// What was read.
    type Fresh: Send + 'static;

    fn state(&self) -> &ReloadState;

    /// Reads the files; `None` if they have not changed and need not be read. May block.
    fn read(&self, when: When) -> Option<Self::Fresh>;

    /// Makes what was read active, or says in the log why it is not. Returns whether it is active.
    fn apply(&self, fresh: Self::Fresh) -> bool;

    /// Notes that the files could not be read in time. `is_first` unless the load before it failed in
    /// the same way.
    fn reject(&self, error: &LoadError, is_first: bool);
}

/// When files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// If they have changed.
    Changed,
    Always,
}

#[derive(Default)]
pub(crate) struct ReloadState {
    loader: Loader,
    /// Whether the last load was abandoned.
    is_late: AtomicBool,
}

/// Loads it again. Returns whether that is active now.
pub(crate) async fn reload<R: Reload>(what: &Arc<R>) -> bool {
    load(what, When::Always).await
}

/// Loads it again if its files have changed, unless they are being read at present.
pub(crate) async fn reload_if_changed<R: Reload>(what: &Arc<R>) {
    let state = what.state();
    if !state.loader.is_busy() {
        let is_late = state.is_late.load(Ordering::Relaxed);
        load(what, if is_late { When::Always } else { When::Changed }).await;
    }
}

async fn load<R: Reload>(what: &Arc<R>, when: When) -> bool {
    let (state, on_thread) = (what.state(), Arc::clone(what));
    match state.loader.load(READ_WITHIN, move || on_thread.read(when)).await {
        Ok(Loaded { value: None, .. }) => true,
        // The turn is kept until it is active.
        Ok(Loaded { value: Some(fresh), .. }) => {
            state.is_late.store(false, Ordering::Relaxed);
            what.apply(fresh)
        }
        Err(error) => {
            what.reject(&error, !state.is_late.swap(true, Ordering::Relaxed));
            false
        }
    }
}

/// When to look at files.
pub(crate) fn looks() -> Interval {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// The same at once, where nobody waits.
#[cfg(test)]
pub(crate) fn load_here<R: Reload>(what: &R, when: When) {
    if let Some(fresh) = what.read(when) {
        what.apply(fresh);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Reads a number from a file that hangs until the test sends it.
    struct Slow {
        state: ReloadState,
        file: Mutex<Receiver<u32>>,
        reads: Mutex<Vec<When>>,
        seen: Mutex<Vec<String>>,
    }

    impl Slow {
        fn new() -> (Sender<u32>, Arc<Self>) {
            let (file, reads) = channel();
            let slow = Self {
                state: ReloadState::default(),
                file: Mutex::new(reads),
                reads: Mutex::default(),
                seen: Mutex::default(),
            };
            (file, Arc::new(slow))
        }

        fn note(&self, what: String) {
            self.seen.lock().unwrap().push(what);
        }
    }

    impl Reload for Slow {
        type Fresh = u32;

        fn state(&self) -> &ReloadState {
            &self.state
        }

        fn read(&self, when: When) -> Option<u32> {
            self.reads.lock().unwrap().push(when);
            self.file.lock().unwrap().recv().ok()
        }

        fn apply(&self, fresh: u32) -> bool {
            self.note(format!("apply {fresh}"));
            true
        }

        fn reject(&self, error: &LoadError, is_first: bool) {
            self.note(format!("{error}, first: {is_first}"));
        }
    }

    /// With the clock paused, the limit is over as soon as there is nothing else to do.
    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_is_abandoned_once_and_made_up_for() {
        let (file, slow) = Slow::new();
        reload_if_changed(&slow).await;
        // These find it hanging still.
        reload_if_changed(&slow).await;
        reload_if_changed(&slow).await;
        assert!(!reload(&slow).await);
        let seen = std::mem::take(&mut *slow.seen.lock().unwrap());
        let late = "reading it took longer than 5s, first:";
        assert_eq!(seen, [format!("{late} true"), format!("{late} false")]);

        tokio::time::resume();
        // The first is what the abandoned read gets, and is dropped.
        file.send(1).unwrap();
        file.send(2).unwrap();
        while slow.state.loader.is_busy() {
            tokio::task::yield_now().await;
        }
        reload_if_changed(&slow).await;
        assert_eq!(*slow.seen.lock().unwrap(), ["apply 2"]);
        assert_eq!(*slow.reads.lock().unwrap(), [When::Changed, When::Always]);
    }
}
