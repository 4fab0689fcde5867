//! What a policy refers to: files beside it, and the environment.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tollgate_rules::Sources;

/// Files, named from the folder of the policy, and the environment's variables.
#[derive(Debug)]
pub struct FileSources {
    folder: PathBuf,
    read: Mutex<Vec<PathBuf>>,
}

impl FileSources {
    /// For a policy in this file.
    pub fn beside(policy: &Path) -> Self {
        let folder = policy.parent().unwrap_or(Path::new(".")).to_path_buf();
        Self { folder, read: Mutex::default() }
    }

    /// The files that were asked for, to be watched too.
    pub fn files(&self) -> Vec<PathBuf> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Sources for FileSources {
    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.folder.join(name);
        self.read.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}
