//! The folder with the files, looked at now and then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::PolicyErrors;
use tollgate::policy::envoy::{EnvoyConfig, EnvoyErrors};

/// The names and texts of files, sorted by name.
type Texts = Vec<(String, String)>;

/// A folder of files, and what has become of them.
pub(super) struct EnvoyFiles {
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    seen: Result<Texts, String>,
    error: Option<String>,
}

impl EnvoyFiles {
    /// Reads the folder for the first time.
    pub(super) fn open(folder: &Path) -> Result<(Self, EnvoyConfig), EnvoyErrors> {
        let texts = read(folder).map_err(|errors| EnvoyErrors::from(*errors))?;
        let config = EnvoyConfig::parse(&texts)?;
        let state = Mutex::new(State { seen: Ok(texts), error: None });
        Ok((Self { folder: folder.to_path_buf(), state }, config))
    }

    /// What is wrong with the files as they are now, if the limits in force are older ones.
    pub(super) fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    /// Reads the folder again, and returns what is in it if that is new and good.
    pub(super) fn reload_if_changed(&self) -> Option<EnvoyConfig> {
        let texts = self.read();
        if self.lock().seen == texts {
            return None;
        }
        self.take_up(texts)
    }

    /// Reads the folder again, and returns what is in it if that is good.
    pub(super) fn reload(&self) -> Option<EnvoyConfig> {
        self.take_up(self.read())
    }

    fn read(&self) -> Result<Texts, String> {
        read(&self.folder).map_err(|errors| errors.to_string())
    }

    fn take_up(&self, texts: Result<Texts, String>) -> Option<EnvoyConfig> {
        let parsed = match &texts {
            Ok(texts) => EnvoyConfig::parse(texts).map_err(|errors| errors.to_string()),
            Err(error) => Err(error.clone()),
        };
        *self.lock() = State { seen: texts, error: parsed.as_ref().err().cloned() };
        match &parsed {
            Ok(config) => {
                let (domains, limits) = (config.domains().len(), config.limits().len());
                tracing::info!(domains, limits, "rate limit files loaded");
            }
            Err(error) => tracing::error!("the limits stay as they were:\n{error}"),
        }
        parsed.ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole texts are compared, not times: mounted folders change by a switch of links.
fn read(folder: &Path) -> Result<Texts, Box<PolicyErrors>> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| {
        Box::new(PolicyErrors::unreadable(&path.display().to_string(), error))
    };
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut texts = Texts::new();
    for entry in entries {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        if !is_config(&path) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
        texts.push((path.display().to_string(), text));
    }
    texts.sort();
    Ok(texts)
}

fn is_config(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_yaml = path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    is_yaml && !is_hidden && path.is_file()
}
