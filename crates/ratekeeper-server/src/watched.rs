//! Files that may be replaced while the server runs.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// When and how long each of some files was, if it was there.
pub(crate) type Stamps = Vec<Option<(SystemTime, u64)>>;

/// Some files, and what they were like when they were last loaded.
pub(crate) struct WatchedFiles {
    paths: Vec<PathBuf>,
    seen: Mutex<Stamps>,
}

impl WatchedFiles {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let seen = Mutex::new(stamps(&paths));
        Self { paths, seen }
    }

    /// What the files are like now. May block.
    pub(crate) fn stamps(&self) -> Stamps {
        stamps(&self.paths)
    }

    /// Whether they were different when they were last loaded.
    pub(crate) fn have_changed(&self, now: &Stamps) -> bool {
        *self.seen() != *now
    }

    /// Notes that they were loaded as they were at that time, whether they could be used or not.
    pub(crate) fn loaded(&self, stamps: Stamps) {
        *self.seen() = stamps;
    }

    fn seen(&self) -> MutexGuard<'_, Stamps> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(paths: &[PathBuf]) -> Stamps {
    let stamp = |path: &PathBuf| {
        let about = fs::metadata(path).ok()?;
        Some((about.modified().ok()?, about.len()))
    };
    paths.iter().map(stamp).collect()
}
