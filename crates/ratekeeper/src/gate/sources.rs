//! What a policy refers to: files beside it, and the environment.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ratekeeper_policy::Sources;

use crate::files::{FILE_BYTES_MAX, FileStamps, read};

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
    stamps: FileStamps,
    bytes_left: u64,
}

impl FileSources {
    /// For a policy in this file.
    pub fn beside(policy: &Path) -> Self {
        let folder = policy.parent().unwrap_or(Path::new(".")).to_path_buf();
        let stamps = FileStamps::of([policy]);
        Self { folder, seen: Arc::new(Mutex::new(Seen { stamps, bytes_left: ALL_BYTES_MAX })) }
    }

    /// Returns the stamps of the policy and of the files that it has referred to so far.
    pub fn stamps(&self) -> FileStamps {
        self.seen().stamps.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources for FileSources {
    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.folder.join(name);
        self.seen().stamps.add(&path);
        let bytes = read(&path, FILE_BYTES_MAX);
        let bytes = bytes.map_err(|error| format!("{}: {error}", path.display()))?;
        let mut seen = self.seen();
        let left = seen.bytes_left.checked_sub(bytes.len() as u64);
        seen.bytes_left = left.ok_or_else(|| {
            format!("the policy's files have more than {} MiB together", ALL_BYTES_MAX >> 20)
        })?;
        Ok(bytes)
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}
