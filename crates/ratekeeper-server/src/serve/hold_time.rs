//! How long callers may hold a reservation or a permit.

use std::time::Duration;

/// How long it is held by default.
pub(crate) const HOLD_DEFAULT: Duration = Duration::from_secs(60);
/// The longest time that it is held. It bounds how many of them a shared store keeps.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(3_600);

/// Returns the time that a caller wants in milliseconds; `None` if it is not valid.
pub(crate) fn hold_time(valid_ms: Option<u64>) -> Option<Duration> {
    let time = valid_ms.map_or(HOLD_DEFAULT, Duration::from_millis);
    (!time.is_zero() && time <= HOLD_MAX).then_some(time)
}
