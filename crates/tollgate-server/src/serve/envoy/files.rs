//! The folder with the files, looked at now and then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::gate::Loaded;
use tollgate::policy::envoy::{EnvoyConfig, EnvoyErrors};
use tollgate::{Micros, PolicyErrors};

use crate::metrics::{Page, one};

/// The names and texts of files, sorted by name.
type Texts = Vec<(String, String)>;

/// A folder of files, and what has become of them.
pub(super) struct EnvoyFiles {
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    seen: Result<Texts, String>,
    loaded: Loaded,
}

impl EnvoyFiles {
    /// Reads the folder for the first time.
    pub(super) fn open(folder: &Path, now: Micros) -> Result<(Self, EnvoyConfig), EnvoyErrors> {
        let texts = read(folder).map_err(|errors| EnvoyErrors::from(*errors))?;
        let config = EnvoyConfig::parse(&texts)?;
        let loaded = Loaded { version: 1, at: now, ..Loaded::default() };
        let state = Mutex::new(State { seen: Ok(texts), loaded });
        Ok((Self { folder: folder.to_path_buf(), state }, config))
    }

    /// When the files in force were read, and what was wrong with the last that are not.
    pub(super) fn loaded(&self) -> Loaded {
        self.lock().loaded.clone()
    }

    pub(super) fn tell_metrics(&self, page: &mut Page) {
        let loaded = self.loaded();
        let help = "Whether the files as they are now are in force.";
        page.gauge("tollgate_envoy_config_ok", help, one(u8::from(loaded.error.is_none())));
        let help = "When the files in force were read.";
        let at = loaded.at.get() / 1_000_000;
        page.gauge("tollgate_envoy_config_loaded_timestamp_seconds", help, one(at));
        let help = "When the files were found wanting; 0 if they are in force.";
        let failed_at = loaded.failed_at.map_or(0, |at| at.get() / 1_000_000);
        page.gauge("tollgate_envoy_config_failed_timestamp_seconds", help, one(failed_at));
        let help = "Sets of files that could not be used.";
        page.counter("tollgate_envoy_config_failures_total", help, one(loaded.failures));
    }

    /// Reads the folder again, and returns what is in it if that is new and good.
    pub(super) fn reload_if_changed(&self, now: Micros) -> Option<EnvoyConfig> {
        let texts = self.read();
        if self.lock().seen == texts {
            return None;
        }
        self.take_up(texts, now)
    }

    /// Reads the folder again, and returns what is in it if that is good.
    pub(super) fn reload(&self, now: Micros) -> Option<EnvoyConfig> {
        self.take_up(self.read(), now)
    }

    fn read(&self) -> Result<Texts, String> {
        read(&self.folder).map_err(|errors| errors.to_string())
    }

    fn take_up(&self, texts: Result<Texts, String>, now: Micros) -> Option<EnvoyConfig> {
        let parsed = match &texts {
            Ok(texts) => EnvoyConfig::parse(texts).map_err(|errors| errors.to_string()),
            Err(error) => Err(error.clone()),
        };
        let mut state = self.lock();
        state.seen = texts;
        match &parsed {
            Ok(_) => {
                let (version, failures) = (state.loaded.version + 1, state.loaded.failures);
                state.loaded = Loaded { version, at: now, failures, ..Loaded::default() };
            }
            Err(error) => {
                state.loaded.failures += 1;
                state.loaded.error = Some(error.clone());
                state.loaded.failed_at = Some(now);
            }
        }
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
