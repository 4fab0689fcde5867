//! When a limit counts as nearly used up. That is only reported.

use std::str::FromStr;

use tollgate::Decision;

/// From which share of a limit on, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NearLimit(u64);

const WHOLE: u64 = 1_000_000;

/// As envoyproxy/ratelimit has it.
impl Default for NearLimit {
    fn default() -> Self {
        Self(800_000)
    }
}

impl FromStr for NearLimit {
    type Err = String;

    fn from_str(ratio: &str) -> Result<Self, String> {
        let share = ratio.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        let share: f64 = share.ok_or_else(|| {
            format!("NEAR_LIMIT_RATIO is \"{ratio}\"; it is a number from 0 to 1")
        })?;
        Ok(Self((share * WHOLE as f64).round() as u64))
    }
}

impl NearLimit {
    /// Has one that was let pass used more than that?
    pub(crate) fn is_near(self, decision: &Decision) -> bool {
        let used = decision.limit().saturating_sub(decision.remaining());
        let near = u128::from(decision.limit()) * u128::from(self.0) / u128::from(WHOLE);
        decision.allowed() && u128::from(used) > near
    }
}
