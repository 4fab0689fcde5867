//! Reads the files of envoyproxy/ratelimit in a folder: every file, whatever its extension, also in
//! subfolders.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};

use ratekeeper::PolicyErrors;
use ratekeeper::files::{FILE_BYTES_MAX, FileStamps, read_text};
use ratekeeper::policy::envoy::{EnvoyConfig, EnvoyErrors, SharedDomains};

/// The most entries of the folder and its subfolders.
const ENTRIES_MAX: usize = 10_000;
/// The most levels of folders. A link to a folder above would add levels without end.
const DEPTH_MAX: usize = 8;
/// The most bytes of all files together.
const ALL_BYTES_MAX: u64 = 16 << 20;

/// A folder with files of envoyproxy/ratelimit, and how they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigFolder {
    pub(crate) path: PathBuf,
    pub(crate) hidden: HiddenFiles,
    pub(crate) shared_domains: SharedDomains,
}

/// What becomes of files whose names begin with a dot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HiddenFiles {
    #[default]
    Skip,
    /// They are read, except for those that begin with two dots: what Kubernetes puts beside the links to
    /// it, such as `..data`, would be read twice.
    Read,
}

impl HiddenFiles {
    fn skips(self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b"..") || (self == Self::Skip && name.starts_with(b"."))
    }
}

impl Display for ConfigFolder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl ConfigFolder {
    /// Returns a folder whose hidden files are skipped, and whose files have a domain each.
    pub(crate) fn new(path: &Path) -> Self {
        let (hidden, shared_domains) = (HiddenFiles::default(), SharedDomains::default());
        Self { path: path.to_path_buf(), hidden, shared_domains }
    }

    /// Reads the limits, and returns the stamps of the folders and files from before that. May block.
    pub(super) fn read(&self) -> (Result<EnvoyConfig, EnvoyErrors>, FileStamps) {
        let mut reader = Reader { hidden: self.hidden, ..Reader::default() };
        let read = reader.add_folder(&self.path, 1).map_err(|errors| EnvoyErrors::from(*errors));
        let Reader { mut texts, stamps, .. } = reader;
        texts.sort();
        (read.and_then(|()| EnvoyConfig::parse_with(&texts, self.shared_domains)), stamps)
    }
}

#[derive(Default)]
struct Reader {
    hidden: HiddenFiles,
    /// The names and texts of files.
    texts: Vec<(String, String)>,
    stamps: FileStamps,
    entries: usize,
    bytes: u64,
}

type ReadResult = Result<(), Box<PolicyErrors>>;

fn unreadable(path: &Path, why: impl Display) -> Box<PolicyErrors> {
    Box::new(PolicyErrors::unreadable(&path.display().to_string(), why))
}

impl Reader {
    fn add_folder(&mut self, folder: &Path, depth: usize) -> ReadResult {
        if depth > DEPTH_MAX {
            let why = format!(
                "folders are nested more than {DEPTH_MAX} deep; is it a link to one above?"
            );
            return Err(unreadable(folder, why));
        }
        // Files that are added or removed change the stamp of the folder.
        self.stamps.add(folder);
        for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
            let path = entry.map_err(|error| unreadable(folder, error))?.path();
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(unreadable(
                    folder,
                    format!("there are more than {ENTRIES_MAX} entries"),
                ));
            }
            if !self.hidden.skips(&path) {
                self.add(&path, depth)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, depth: usize) -> ReadResult {
        // Of what a link leads to. One that leads nowhere is being replaced.
        let Ok(about) = fs::metadata(path) else {
            self.stamps.add(path);
            return Ok(());
        };
        if about.is_dir() {
            return self.add_folder(path, depth + 1);
        }
        self.stamps.add(path);
        let text = read_text(path, FILE_BYTES_MAX).map_err(|error| unreadable(path, error))?;
        self.bytes += text.len() as u64;
        if self.bytes > ALL_BYTES_MAX {
            let why = format!("all files have more than {} MiB together", ALL_BYTES_MAX >> 20);
            return Err(unreadable(path, why));
        }
        self.texts.push((path.display().to_string(), text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(folder: &Path, name: &str, domain: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let limit = "{ unit: hour, requests_per_unit: 1 }";
        let text = format!("domain: {domain}\ndescriptors: [{{ key: k, rate_limit: {limit} }}]");
        fs::write(path, text).unwrap();
    }

    fn domains(folder: &ConfigFolder) -> Vec<String> {
        let (config, _) = folder.read();
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        config.domains().into_iter().map(str::to_string).collect()
    }

    #[test]
    fn files_with_any_extension_and_in_subfolders_are_read() {
        let root = tempfile::tempdir().unwrap();
        let names = ["a.yaml", "b.yml", "c.conf", "d", "team/e.yaml", "team/web/f.yaml"];
        for (name, domain) in names.into_iter().zip(["a", "b", "c", "d", "e", "f"]) {
            write(root.path(), name, domain);
        }
        assert_eq!(domains(&ConfigFolder::new(root.path())), ["a", "b", "c", "d", "e", "f"]);
        fs::write(root.path().join("README"), "Limits of the shop: do not touch.").unwrap();
        let error = ConfigFolder::new(root.path()).read().0.unwrap_err().to_string();
        assert!(error.contains("README:1:"), "{error}");
    }

    /// As the kubelet mounts a ConfigMap: links to `..data`, which is replaced as a whole.
    #[test]
    fn a_mounted_config_map_is_read_once() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "..2026_01/basic.yaml", "basic");
        write(root.path(), "..2026_01/team/more.yaml", "more");
        symlink("..2026_01", root.path().join("..data")).unwrap();
        symlink("..data/basic.yaml", root.path().join("basic.yaml")).unwrap();
        symlink("..data/team", root.path().join("team")).unwrap();
        for hidden in [HiddenFiles::Skip, HiddenFiles::Read] {
            let folder = ConfigFolder { hidden, ..ConfigFolder::new(root.path()) };
            assert_eq!(domains(&folder), ["basic", "more"]);
        }
        let (_, before) = ConfigFolder::new(root.path()).read();
        write(root.path(), "..2026_02/basic.yaml", "newer");
        symlink("..2026_02", root.path().join("..data_tmp")).unwrap();
        fs::rename(root.path().join("..data_tmp"), root.path().join("..data")).unwrap();
        assert!(before.have_changed());
        // `team` leads nowhere now.
        assert_eq!(domains(&ConfigFolder::new(root.path())), ["newer"]);
    }

    #[test]
    fn hidden_files_are_read_only_if_configured() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), ".hidden.yaml", "hidden");
        write(root.path(), "shown.yaml", "shown");
        let folder = ConfigFolder::new(root.path());
        assert_eq!(domains(&folder), ["shown"]);
        let folder = ConfigFolder { hidden: HiddenFiles::Read, ..folder };
        assert_eq!(domains(&folder), ["hidden", "shown"]);
    }

    #[test]
    fn a_link_to_a_folder_above_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a.yaml", "a");
        symlink(root.path(), root.path().join("again")).unwrap();
        let error = ConfigFolder::new(root.path()).read().0.unwrap_err().to_string();
        assert!(error.contains("nested more than 8 deep"), "{error}");
    }
}
