//! Reads the files of envoyproxy/ratelimit in a folder.

use std::fs;
use std::path::Path;

use ratekeeper::PolicyErrors;
use ratekeeper::files::{FILE_BYTES_MAX, FileStamps, read_text};
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors};

/// The most entries of the folder.
const ENTRIES_MAX: usize = 10_000;
/// The most bytes of all files together.
const ALL_BYTES_MAX: u64 = 16 << 20;

/// The names and texts of files, sorted by name.
type Texts = Vec<(String, String)>;

/// Reads the limits in a folder, and returns the stamps of the folder and its files from before that. May
/// block.
pub(super) fn read(folder: &Path) -> (Result<EnvoyConfig, EnvoyErrors>, FileStamps) {
    // Files that are added or removed change the stamp of the folder.
    let mut stamps = FileStamps::of([folder]);
    let texts = read_texts(folder, &mut stamps).map_err(|errors| EnvoyErrors::from(*errors));
    (texts.and_then(|texts| EnvoyConfig::parse(&texts)), stamps)
}

fn read_texts(folder: &Path, stamps: &mut FileStamps) -> Result<Texts, Box<PolicyErrors>> {
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
        if !has_config_name(&path) {
            continue;
        }
        stamps.add(&path);
        // A dangling link is being replaced.
        if !fs::metadata(&path).is_ok_and(|about| !about.is_dir()) {
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

fn has_config_name(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_yaml = path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    is_yaml && !is_hidden
}
