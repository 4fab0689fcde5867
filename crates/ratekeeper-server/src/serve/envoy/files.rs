//! The folder with the files, looked at now and then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ratekeeper::files::{FILE_BYTES_MAX, LoadError, read_text};
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors};
use ratekeeper::{LoadStatus, Micros, PolicyErrors};

use crate::metrics::{Page, one};
use crate::reload::When;

/// How many entries the folder may have, and how much its files together.
const ENTRIES_MAX: usize = 10_000;
const ALL_BYTES_MAX: u64 = 16 << 20;

/// The names and texts of files, sorted by name.
type Texts = Vec<(String, String)>;

/// A folder of files, and what has become of them.
pub(super) struct EnvoyFiles {
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    seen: Result<Texts, String>,
    loaded: LoadStatus,
}

/// What was read, and what it says.
pub(crate) struct Fresh {
    texts: Result<Texts, String>,
    parsed: Result<EnvoyConfig, String>,
}

impl EnvoyFiles {
    /// Reads the folder for the first time.
    pub(super) fn open(folder: &Path, now: Micros) -> Result<(Self, EnvoyConfig), EnvoyErrors> {
        let texts = read(folder).map_err(|errors| EnvoyErrors::from(*errors))?;
        let config = EnvoyConfig::parse(&texts)?;
        let mut loaded = LoadStatus::default();
        loaded.record_success(now);
        let state = Mutex::new(State { seen: Ok(texts), loaded });
        Ok((Self { folder: folder.to_path_buf(), state }, config))
    }

    /// When the files in force were read, and what was wrong with the last that are not.
    pub(super) fn loaded(&self) -> LoadStatus {
        self.lock().loaded.clone()
    }

    pub(super) fn tell_metrics(&self, page: &mut Page) {
        let loaded = self.loaded();
        let help = "Whether the files as they are now are in force.";
        page.gauge("ratekeeper_envoy_config_ok", help, one(u8::from(loaded.last_error.is_none())));
        let help = "When the files in force were read.";
        let at = loaded.loaded_at.get() / 1_000_000;
        page.gauge("ratekeeper_envoy_config_loaded_timestamp_seconds", help, one(at));
        let help = "When the files were found wanting; 0 if they are in force.";
        let failed_at = loaded.failed_at.map_or(0, |at| at.get() / 1_000_000);
        page.gauge("ratekeeper_envoy_config_failed_timestamp_seconds", help, one(failed_at));
        let help = "Sets of files that could not be used.";
        page.counter("ratekeeper_envoy_config_failures_total", help, one(loaded.failures));
    }

    /// Reads the folder again; `None` if nothing has changed and it need not be read. May block.
    pub(super) fn read(&self, when: When) -> Option<Fresh> {
        let texts = read(&self.folder).map_err(|errors| errors.to_string());
        if when == When::Changed && self.lock().seen == texts {
            return None;
        }
        let parsed = match &texts {
            Ok(texts) => EnvoyConfig::parse(texts).map_err(|errors| errors.to_string()),
            Err(error) => Err(error.clone()),
        };
        Some(Fresh { texts, parsed })
    }

    /// Notes that the folder could not be read in time.
    pub(super) fn reject(&self, error: &LoadError, is_first: bool, now: Micros) {
        let error = format!("{}: {error}", self.folder.display());
        if is_first {
            tracing::error!("the limits stay as they were:\n{error}");
        }
        self.lock().loaded.record_failure(error, now);
    }

    /// Takes note of what was read, and returns it if it is good.
    pub(super) fn take_up(&self, fresh: Fresh, now: Micros) -> Option<EnvoyConfig> {
        let Fresh { texts, parsed } = fresh;
        let mut state = self.lock();
        state.seen = texts;
        match &parsed {
            Ok(_) => state.loaded.record_success(now),
            Err(error) => state.loaded.record_failure(error.clone(), now),
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
    let (mut texts, mut bytes) = (Texts::new(), 0);
    for (index, entry) in entries.enumerate() {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        if index >= ENTRIES_MAX {
            return Err(unreadable(folder, &format!("it has more than {ENTRIES_MAX} entries")));
        }
        if !is_config(&path) {
            continue;
        }
        let text = read_text(&path, FILE_BYTES_MAX).map_err(|error| unreadable(&path, &error))?;
        bytes += text.len() as u64;
        if bytes > ALL_BYTES_MAX {
            let why = format!("its files have more than {} MiB together", ALL_BYTES_MAX >> 20);
            return Err(unreadable(folder, &why));
        }
        texts.push((path.display().to_string(), text));
    }
    texts.sort();
    Ok(texts)
}

fn is_config(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_yaml = path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    // A link that leads nowhere is one that is being replaced.
    let is_there = || fs::metadata(path).is_ok_and(|about| !about.is_dir());
    is_yaml && !is_hidden && is_there()
}
