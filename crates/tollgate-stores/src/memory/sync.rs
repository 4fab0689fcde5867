//! The atomics of the table, exchanged for a model checker's when that runs.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, fence};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, fence};

/// Zeroed pairs of words that take no memory until they are touched.
#[cfg(not(loom))]
pub(super) fn zeroed(len: usize) -> Box<[[AtomicU64; 2]]> {
    bytemuck::zeroed_slice_box(len)
}

#[cfg(loom)]
pub(super) fn zeroed(len: usize) -> Box<[[AtomicU64; 2]]> {
    (0..len).map(|_| [0, 0].map(AtomicU64::new)).collect()
}

/// Waits a moment for another thread; the longer it has been, the more politely.
#[cfg(not(loom))]
pub(super) fn pause(rounds: u32) {
    if rounds < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

#[cfg(loom)]
pub(super) fn pause(_rounds: u32) {
    loom::thread::yield_now();
}
