//! Which limits that requests bring have been looked at, with 0 hits.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::resolve::Descriptor;

/// How many kinds of descriptors have a flag of their own. Further ones share one.
const KINDS_MAX: usize = 1_024;

/// Flags of limits that requests bring, by the domain and the keys of their descriptors' entries.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestLooks(Arc<Mutex<HashMap<String, Arc<AtomicBool>>>>);

impl RequestLooks {
    /// Returns the flag of a descriptor.
    pub(super) fn of(&self, domain: &str, descriptor: &impl Descriptor) -> Arc<AtomicBool> {
        let mut kind = domain.to_string();
        for (key, _) in descriptor.entries() {
            kind.push('\0'); // not in a valid key
            kind.push_str(key);
        }
        let mut flags = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if flags.len() >= KINDS_MAX && !flags.contains_key(&kind) {
            kind.clear();
        }
        Arc::clone(flags.entry(kind).or_default())
    }
}
