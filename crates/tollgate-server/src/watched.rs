//! Files that may be replaced while the server runs.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Some files, and their times when they were last looked at.
pub(crate) struct WatchedFiles {
    paths: Vec<PathBuf>,
    seen: Mutex<Vec<Option<SystemTime>>>,
}

impl WatchedFiles {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let seen = Mutex::new(changed_at(&paths));
        Self { paths, seen }
    }

    /// Has one of them changed since the last look? Told only once.
    pub(crate) fn have_changed(&self) -> bool {
        let now = changed_at(&self.paths);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let have_changed = *seen != now;
        *seen = now;
        have_changed
    }
}

fn changed_at(paths: &[PathBuf]) -> Vec<Option<SystemTime>> {
    let changed = |path: &PathBuf| fs::metadata(path).and_then(|about| about.modified()).ok();
    paths.iter().map(changed).collect()
}
