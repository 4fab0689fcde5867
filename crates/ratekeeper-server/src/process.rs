//! What a process that serves asks of the system.

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::accept::Room;

/// File descriptors for what is neither a connection of a client nor to an upstream: those to a store, files
/// that are being read.
const RESERVE: usize = 128;
/// The most connections of the admin listener.
const ADMIN_MAX: usize = 512;
/// What a worker has open before it has a connection: its listener and what its runtime needs.
const OF_WORKER: usize = 5;

/// Each connection is a file, and the usual limit of 1024 is for programs with a few.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

/// Who may have how many file descriptors, so that those who run the server are answered when others have
/// used up theirs.
pub(crate) struct Descriptors {
    /// For connections of clients and to upstreams.
    pub(crate) connections: Arc<Room>,
    /// For connections of the admin listener.
    pub(crate) admin_max: usize,
}

impl Descriptors {
    pub(crate) fn new(workers: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (connections, admin_max) = shares(limit, workers);
        Self { connections: Arc::new(Room::new(connections)), admin_max }
    }
}

/// The shares of connections and of the admin listener.
fn shares(limit: usize, workers: usize) -> (usize, usize) {
    let wanted = workers.saturating_mul(OF_WORKER).saturating_add(RESERVE + ADMIN_MAX);
    let reserve = wanted.min(limit / 2);
    (limit - reserve, ADMIN_MAX.min(reserve / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_kept_but_never_more_than_half() {
        assert_eq!(shares(20_000, 80), (20_000 - 1_040, 512));
        assert_eq!(shares(20_000, 4), (20_000 - 660, 330));
        assert_eq!(shares(256, 4), (128, 64));
        assert_eq!(shares(usize::MAX, 4), (usize::MAX - 660, 330));
    }
}
