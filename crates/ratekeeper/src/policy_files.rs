//! A policy file, the files that it refers to, and the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ratekeeper_policy::{Policy, PolicyErrors, Sources};

use crate::files::{FILE_BYTES_MAX, POLICY_BYTES_MAX, read, read_text};

/// The most bytes of all files that a policy refers to.
const ALL_BYTES_MAX: u64 = 16 << 20;

/// The files that a policy refers to, relative to its folder, and environment variables. Each file has at
/// most [`FILE_BYTES_MAX`] bytes, and all of them together 16 MiB. Clones share what they have read.
#[derive(Clone, Debug)]
pub struct PolicyFiles {
    folder: PathBuf,
    known: Arc<Mutex<KnownFiles>>,
}

#[derive(Debug)]
struct KnownFiles {
    files: Vec<(PathBuf, Stamp)>,
    bytes_left: u64,
}

/// The modification time and length of a file; `None` if it does not exist.
type Stamp = Option<(SystemTime, u64)>;

impl PolicyFiles {
    /// Returns the sources of the policy in this file.
    pub fn beside(policy: &Path) -> Self {
        let folder = policy.parent().unwrap_or(Path::new(".")).to_path_buf();
        let files = vec![(policy.to_path_buf(), stamp(policy))];
        Self {
            folder,
            known: Arc::new(Mutex::new(KnownFiles { files, bytes_left: ALL_BYTES_MAX })),
        }
    }

    /// Returns whether the policy, or a file that it refers to, has changed since it was read.
    pub fn have_changed(&self) -> bool {
        // Not under the lock, because a file system may hang.
        let files = self.lock().files.clone();
        files.iter().any(|(path, known)| *known != stamp(path))
    }

    fn lock(&self) -> MutexGuard<'_, KnownFiles> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources for PolicyFiles {
    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.folder.join(name);
        // Before it is read, so that a change meanwhile is noticed.
        let stamped = (path.clone(), stamp(&path));
        self.lock().files.push(stamped);
        let bytes = read(&path, FILE_BYTES_MAX);
        let bytes = bytes.map_err(|error| format!("{}: {error}", path.display()))?;
        let mut known = self.lock();
        let left = known.bytes_left.checked_sub(bytes.len() as u64);
        known.bytes_left = left.ok_or_else(|| {
            format!("the policy's files have more than {} MiB together", ALL_BYTES_MAX >> 20)
        })?;
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

/// Reads a policy file: a regular file of at most [`POLICY_BYTES_MAX`] bytes.
///
/// # Errors
///
/// If the file cannot be read, or the policy is invalid.
pub fn read_policy(path: &Path, sources: &dyn Sources) -> Result<Policy, PolicyErrors> {
    let name = path.display().to_string();
    let text = read_text(path, POLICY_BYTES_MAX);
    let text = text.map_err(|error| PolicyErrors::unreadable(&name, error))?;
    Policy::parse(&name, &text, sources)
}
