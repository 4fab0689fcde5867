//! The nodes that share a store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the nodes of the fleet, by which a limit is divided while the store is unavailable.
pub(super) struct Membership {
    /// The name under which this node announces itself.
    node: String,
    /// A number set by the program; the nodes are not counted then.
    fixed: OnceLock<u32>,
    counted: AtomicU32,
}

impl Membership {
    pub(super) fn new() -> Self {
        let node = format!("{}-{:016x}", std::process::id(), fastrand::u64(..));
        Self { node, fixed: OnceLock::new(), counted: AtomicU32::new(1) }
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn nodes(&self) -> u32 {
        let counted = || self.counted.load(Ordering::Relaxed);
        self.fixed.get().copied().unwrap_or_else(counted).max(1)
    }

    pub(super) fn fix(&self, nodes: u32) {
        let _ = self.fixed.set(nodes.max(1));
    }

    pub(super) fn set_counted(&self, nodes: u32) {
        self.counted.store(nodes.max(1), Ordering::Relaxed);
    }
}
