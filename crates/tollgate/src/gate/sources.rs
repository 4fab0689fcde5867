//! What a policy refers to: files beside it, and the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use tollgate_rules::Sources;

/// Files, named from the folder of the policy, and the environment's variables.
#[derive(Debug)]
pub struct FileSources {
    folder: PathBuf,
    seen: Mutex<Vec<(PathBuf, Stamp)>>,
}

/// When a file was written and how long it was, if it was there.
type Stamp = Option<(SystemTime, u64)>;

impl FileSources {
    /// For a policy in this file.
    pub fn beside(policy: &Path) -> Self {
        let folder = policy.parent().unwrap_or(Path::new(".")).to_path_buf();
        let seen = vec![(policy.to_path_buf(), stamp(policy))];
        Self { folder, seen: Mutex::new(seen) }
    }

    /// Is the policy, or a file that it referred to, no longer as it was when it was read?
    pub fn have_changed(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().any(|(path, seen)| *seen != stamp(path))
    }
}

impl Sources for FileSources {
    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.folder.join(name);
        // Before it is read, so that what changes meanwhile is noticed.
        let seen = (path.clone(), stamp(&path));
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
