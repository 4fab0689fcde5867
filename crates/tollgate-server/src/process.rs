//! What a process that serves asks of the system.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Each connection is a file, and the usual limit of 1024 is for programs with a few.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}
