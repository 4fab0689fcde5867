//! The logs that the command line names.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::progress::{Counted, Progress};
use crate::failure::Failure;

/// A log, by its name.
pub(super) type Input = (String, Counted<Box<dyn Read + Send>>);

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log {}", .path.display())]
struct OpenError {
    path: PathBuf,
    source: io::Error,
}

pub(super) fn open_all(paths: &[PathBuf], progress: &Progress) -> Result<Vec<Input>, Failure> {
    if paths.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
        return Err(Failure::input("standard input can be read only once; give - once"));
    }
    paths.iter().map(|path| open(path, progress)).collect()
}

fn open(path: &Path, progress: &Progress) -> Result<Input, Failure> {
    if path.as_os_str() == "-" {
        return Ok(("standard input".to_string(), progress.counted(Box::new(io::stdin()))));
    }
    let failure = |source: io::Error| {
        let is_missing = source.kind() == io::ErrorKind::NotFound;
        let error = OpenError { path: path.to_path_buf(), source };
        if is_missing { Failure::input(error) } else { Failure::io(error) }
    };
    let file = File::open(path).map_err(failure)?;
    if file.metadata().is_ok_and(|of| of.is_dir()) {
        return Err(failure(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    Ok((path.display().to_string(), progress.counted(Box::new(file))))
}
