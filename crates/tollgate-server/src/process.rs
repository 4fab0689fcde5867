//! What a process that serves asks of the system.

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::accept::Room;

/// File descriptors that no connection of a client or to an upstream may use: the admin listener's, those
/// to a store, files that are being read.
const RESERVE: usize = 128;
/// What a worker has open before it has a connection: its listener and what its runtime needs.
const OF_WORKER: usize = 5;

/// Each connection is a file, and the usual limit of 1024 is for programs with a few.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

/// The file descriptors that connections may use, so that those who run the server are answered when they
/// are used up.
pub(crate) fn descriptors(workers: usize) -> Arc<Room> {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    Arc::new(Room::new(for_connections(limit, workers)))
}

fn for_connections(limit: usize, workers: usize) -> usize {
    let reserve = workers.saturating_mul(OF_WORKER).saturating_add(RESERVE);
    limit - reserve.min(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_kept_but_never_more_than_half() {
        assert_eq!(for_connections(20_000, 4), 20_000 - 128 - 20);
        assert_eq!(for_connections(100, 4), 50);
        assert_eq!(for_connections(usize::MAX, 4), usize::MAX - 148);
    }
}
