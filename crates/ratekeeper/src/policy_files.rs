//! A policy file, the files that it refers to, and the environment.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ratekeeper_policy::{Policy, PolicyErrors, SourceError, Sources};

use crate::files::{FILE_BYTES_MAX, FileStamps, POLICY_BYTES_MAX, read, read_text};

/// The most bytes of all files that a policy refers to.
const ALL_BYTES_MAX: u64 = 16 << 20;

/// The files that a policy refers to, relative to its folder, and environment variables. Each file has at
/// most [`FILE_BYTES_MAX`] bytes, and all of them together 16 MiB. Clones share what they have read.
///
/// ```no_run
/// use std::path::Path;
/// use ratekeeper::{PolicyFiles, read_policy};
///
/// # fn f() -> Result<(), ratekeeper::PolicyErrors> {
/// let path = Path::new("policy.yaml");
/// let files = PolicyFiles::of(path);
/// let policy = read_policy(path, &files)?;
/// let stamps = files.stamps(); // of the policy, and of the keys and certificates that it names
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PolicyFiles {
    folder: PathBuf,
    known: Arc<Mutex<KnownFiles>>,
}

#[derive(Debug)]
struct KnownFiles {
    stamps: FileStamps,
    bytes_left: u64,
}

impl PolicyFiles {
    /// Returns the sources of the policy in this file.
    pub fn of(policy: &Path) -> Self {
        let folder = policy.parent().unwrap_or(Path::new(".")).to_path_buf();
        let stamps = FileStamps::of([policy]);
        let known = KnownFiles { stamps, bytes_left: ALL_BYTES_MAX };
        Self { folder, known: Arc::new(Mutex::new(known)) }
    }

    /// Returns the stamps of the policy and of the files that it has referred to so far.
    pub fn stamps(&self) -> FileStamps {
        self.lock().stamps.clone()
    }

    fn lock(&self) -> MutexGuard<'_, KnownFiles> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources for PolicyFiles {
    fn file(&self, name: &str) -> Result<Vec<u8>, SourceError> {
        let path = self.folder.join(name);
        self.lock().stamps.add(&path);
        let bytes = read(&path, FILE_BYTES_MAX).map_err(|error| SourceError::read(path, error))?;
        let mut known = self.lock();
        let left = known.bytes_left.checked_sub(bytes.len() as u64);
        known.bytes_left = left.ok_or(SourceError::TooLarge { max_bytes: ALL_BYTES_MAX })?;
        Ok(bytes)
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
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
