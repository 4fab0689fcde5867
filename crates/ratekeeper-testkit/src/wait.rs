//! Waiting on a condition, with a bound.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for anything before it fails.
pub const TIMEOUT: Duration = Duration::from_secs(20);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls `condition` until it holds.
///
/// # Panics
///
/// After [`TIMEOUT`], with `what` was waited for.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "timed out after {TIMEOUT:?}: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}
