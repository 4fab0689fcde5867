//! The atomics of the table, exchanged for a model checker's when that runs.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Waits a moment for another thread: spins first, then yields.
#[cfg(not(loom))]
pub(super) fn pause(rounds: u32) {
    if rounds < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

#[cfg(loom)]
pub(super) fn pause(_rounds: u32) {
    loom::thread::yield_now();
}
