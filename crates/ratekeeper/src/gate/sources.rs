//! What a policy refers to: files beside it, and the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ratekeeper_policy::{SourceError, Sources};

use crate::files::{FILE_BYTES_MAX, read};

/// How much all files that a policy refers to may have together.
const ALL_BYTES_MAX: u64 = 16 << 20;

/// Files, named from the folder of the policy, and the environment's variables. Each file has at most
/// [`FILE_BYTES_MAX`] bytes, and all of them 16 MiB. Clones are one.
#[derive(Clone, Debug)]
pub struct FileSources {
    folder: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug)]
struct Seen {
    files: Vec<(PathBuf, Stamp)>,
    bytes_left: u64,
}

/// When a file was written and how long it was, if it was there.
type Stamp = Option<(SystemTime, u64)>;

impl FileSources {
    /// For a policy in this file.
    pub fn beside(policy: &Path) -> Self {
        let folder = policy.parent().unwrap_or(Path::new(".")).to_path_buf();
        let files = vec![(policy.to_path_buf(), stamp(policy))];
        Self { folder, seen: Arc::new(Mutex::new(Seen { files, bytes_left: ALL_BYTES_MAX })) }
    }

    /// Is the policy, or a file that it referred to, no longer as it was when it was read?
    pub fn have_changed(&self) -> bool {
        // Not while it is locked: a file may take its time.
        let files = self.seen().files.clone();
        files.iter().any(|(path, seen)| *seen != stamp(path))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources for FileSources {
    fn file(&self, name: &str) -> Result<Vec<u8>, SourceError> {
        let path = self.folder.join(name);
        // Before it is read, so that what changes meanwhile is noticed.
        let stamped = (path.clone(), stamp(&path));
        self.seen().files.push(stamped);
        let bytes = read(&path, FILE_BYTES_MAX).map_err(|error| SourceError::read(path, error))?;
        let mut seen = self.seen();
        let left = seen.bytes_left.checked_sub(bytes.len() as u64);
        seen.bytes_left = left.ok_or(SourceError::TooLarge { max_bytes: ALL_BYTES_MAX })?;
        Ok(bytes)
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
