//! How many connections, requests and file descriptors may be in use at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors for everything but connections of clients and to upstreams: connections to a store,
/// files that are being read.
const RESERVED: usize = 128;
/// The most connections of the admin listener.
const ADMIN_MAX: usize = 512;
/// What a worker has open before its first connection: its listener and its runtime.
const PER_WORKER: usize = 5;

/// Bounds how many of something are in use at a time: requests, connections, file descriptors.
pub(crate) struct InFlightLimit {
    max: usize,
    in_use: AtomicUsize,
}

/// One of an [`InFlightLimit`], released when it is dropped.
pub(crate) struct InFlightPermit<'l>(&'l InFlightLimit);

/// The same, for owners that outlive a borrow of the limit.
pub(crate) struct OwnedInFlightPermit(Arc<InFlightLimit>);

impl InFlightLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, in_use: AtomicUsize::new(0) }
    }

    pub(crate) fn try_acquire(&self) -> Option<InFlightPermit<'_>> {
        let in_use = self.in_use.fetch_add(1, Ordering::Relaxed);
        let permit = InFlightPermit(self);
        (in_use < self.max).then_some(permit)
    }

    pub(crate) fn try_acquire_owned(self: &Arc<Self>) -> Option<OwnedInFlightPermit> {
        let in_use = self.in_use.fetch_add(1, Ordering::Relaxed);
        let permit = OwnedInFlightPermit(Arc::clone(self));
        (in_use < self.max).then_some(permit)
    }

    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

impl Drop for InFlightPermit<'_> {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for OwnedInFlightPermit {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bounds the open connections of a listener, and counts all it has had.
pub(crate) struct ConnectionLimit {
    open: Arc<InFlightLimit>,
    accepted: AtomicU64,
    over_limit: AtomicU64,
    without_descriptor: AtomicU64,
}

impl ConnectionLimit {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let count = || AtomicU64::new(0);
        let open = Arc::new(InFlightLimit::new(max));
        let (accepted, over_limit, without_descriptor) = (count(), count(), count());
        Arc::new(Self { open, accepted, over_limit, without_descriptor })
    }

    /// Returns a permit for one more connection, or counts it as rejected.
    pub(super) fn try_acquire(&self) -> Option<OwnedInFlightPermit> {
        let permit = self.open.try_acquire_owned();
        let counter = if permit.is_some() { &self.accepted } else { &self.over_limit };
        counter.fetch_add(1, Ordering::Relaxed);
        permit
    }

    pub(super) fn count_without_descriptor(&self) {
        self.without_descriptor.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> usize {
        self.open.max
    }

    pub(crate) fn open(&self) -> usize {
        self.open.in_use()
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections that were rejected, for either reason.
    pub(crate) fn rejected(&self) -> u64 {
        self.over_limit() + self.without_descriptor()
    }

    /// Connections that were rejected because too many were open.
    pub(crate) fn over_limit(&self) -> u64 {
        self.over_limit.load(Ordering::Relaxed)
    }

    /// Connections that were rejected because the process was out of file descriptors.
    pub(crate) fn without_descriptor(&self) -> u64 {
        self.without_descriptor.load(Ordering::Relaxed)
    }
}

/// How the process's file descriptors are shared out, so that the admin listener still responds when
/// clients have used up theirs.
pub(crate) struct FileDescriptors {
    /// For connections of clients and to upstreams.
    pub(crate) connections: Arc<InFlightLimit>,
    /// For connections of the admin listener.
    pub(crate) admin_max: usize,
}

impl FileDescriptors {
    pub(crate) fn new(workers: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (connections, admin_max) = shares(limit, workers);
        Self { connections: Arc::new(InFlightLimit::new(connections)), admin_max }
    }
}

/// Returns the shares of connections and of the admin listener.
fn shares(limit: usize, workers: usize) -> (usize, usize) {
    let wanted = workers.saturating_mul(PER_WORKER).saturating_add(RESERVED + ADMIN_MAX);
    let reserve = wanted.min(limit / 2);
    (limit - reserve, ADMIN_MAX.min(reserve / 2))
}

/// Raises the soft limit on open files to the hard limit: each connection is a file, and the usual limit
/// of 1024 is for programs with a few.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
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

    #[test]
    fn connections_beyond_the_limit_are_counted_and_a_closed_one_makes_room() {
        let limit = ConnectionLimit::new(1);
        let first = limit.try_acquire();
        assert!(first.is_some() && limit.try_acquire().is_none());
        assert_eq!((limit.open(), limit.accepted(), limit.rejected()), (1, 1, 1));
        drop(first);
        assert!(limit.try_acquire().is_some());
    }
}
