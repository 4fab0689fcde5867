//! The permits that requests of this node hold, counted by limit and key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of which limit and key a permit is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PermitsOf {
    pub(super) limit: Arc<str>,
    pub(super) key: Arc<[u8]>,
}

/// Only keys of which a permit is held, so there are never more than permits.
#[derive(Default)]
pub(super) struct NodePermits(Mutex<HashMap<PermitsOf, InFlight>>);

#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    permits: u64,
    /// Those of them that the store does not know.
    unreported: u64,
}

/// Whether the store knows of a permit that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Done,
    Due,
}

/// A permit that a request of this node holds. Dropped, it is counted no longer.
pub(super) struct NodePermit {
    all: Arc<NodePermits>,
    of: PermitsOf,
    /// Changes under the lock of the table; `None` once it is released.
    report: Mutex<Option<Report>>,
}

impl NodePermits {
    /// Counts a permit that the store has granted.
    pub(super) fn add(self: &Arc<Self>, of: PermitsOf) -> NodePermit {
        self.lock().entry(of.clone()).or_default().permits += 1;
        self.permit(of, Report::Done)
    }

    /// Counts a permit that the store does not know, if this node holds fewer than `max`.
    pub(super) fn add_within(self: &Arc<Self>, max: u64, of: PermitsOf) -> Option<NodePermit> {
        let mut keys = self.lock();
        let held = keys.get(&of).copied().unwrap_or_default();
        if held.permits >= max {
            return None;
        }
        let InFlight { permits, unreported } = held;
        keys.insert(of.clone(), InFlight { permits: permits + 1, unreported: unreported + 1 });
        drop(keys);
        Some(self.permit(of, Report::Due))
    }

    /// Returns how many permits are held that the store does not know.
    pub(super) fn unreported(&self, of: &PermitsOf) -> u64 {
        self.lock().get(of).map_or(0, |held| held.unreported)
    }

    fn permit(self: &Arc<Self>, of: PermitsOf, report: Report) -> NodePermit {
        NodePermit { all: self.clone(), of, report: Mutex::new(Some(report)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PermitsOf, InFlight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodePermit {
    pub(super) fn of(&self) -> &PermitsOf {
        &self.of
    }

    pub(super) fn is_reported(&self) -> bool {
        *self.report() == Some(Report::Done)
    }

    /// Notes whether the store knows of it. Once it is released that does not matter.
    pub(super) fn set_report(&self, next: Report) {
        let mut keys = self.all.lock();
        let mut report = self.report();
        let Some((before, held)) = (*report).zip(keys.get_mut(&self.of)) else { return };
        held.unreported += u64::from(next == Report::Due);
        held.unreported -= u64::from(before == Report::Due);
        *report = Some(next);
    }

    /// Makes room for another request, once.
    pub(super) fn release(&self) {
        let mut keys = self.all.lock();
        let Some((before, held)) = self.report().take().zip(keys.get_mut(&self.of)) else {
            return;
        };
        held.permits -= 1;
        held.unreported -= u64::from(before == Report::Due);
        if held.permits == 0 {
            keys.remove(&self.of);
        }
    }

    fn report(&self) -> MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NodePermit {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: &[u8]) -> PermitsOf {
        PermitsOf { limit: "jobs".into(), key: key.into() }
    }

    #[test]
    fn permits_of_the_store_count_towards_the_share_of_the_node() {
        let all = Arc::new(NodePermits::default());
        let by_store = all.add(of(b"k"));
        assert!(all.add_within(1, of(b"k")).is_none());
        assert!(all.add_within(1, of(b"other")).is_some());
        let here = all.add_within(2, of(b"k")).expect("one of two is free");
        assert!(all.add_within(2, of(b"k")).is_none());
        drop(by_store);
        assert!(all.add_within(2, of(b"k")).is_some());
        drop(here);
        assert!(all.lock().is_empty(), "keys without permits are not remembered");
    }

    #[test]
    fn a_permit_is_unreported_until_it_is_reported_or_released() {
        let all = Arc::new(NodePermits::default());
        let (one, two) = (all.add_within(9, of(b"k")).unwrap(), all.add(of(b"k")));
        assert_eq!(all.unreported(&of(b"k")), 1);
        one.set_report(Report::Done);
        two.set_report(Report::Due);
        two.set_report(Report::Due);
        assert_eq!((all.unreported(&of(b"k")), two.is_reported()), (1, false));
        two.release();
        two.release();
        two.set_report(Report::Due);
        assert_eq!(all.unreported(&of(b"k")), 0);
        drop((one, two));
        assert!(all.lock().is_empty());
    }
}
