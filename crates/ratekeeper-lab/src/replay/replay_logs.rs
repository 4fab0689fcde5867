//! The replay: every request of the logs, decided by one policy or by two.

use std::sync::Arc;

use ratekeeper_policy::Policy;

use super::decide::Run;
use super::logs::Logs;
use super::request::Variants;
use super::result::{Changes, PolicyResult, ReplayResult, limit_changes};

/// How a replay is done.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// For how many keys of each limit there is memory.
    pub keys_max: usize,
    /// How many of the keys that were refused most are listed.
    pub listed: usize,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { keys_max: 1_000_000, listed: 10 }
    }
}

impl ReplayOptions {
    /// Sets for how many keys of each limit there is memory.
    #[must_use]
    pub fn with_keys_max(self, keys_max: usize) -> Self {
        Self { keys_max, ..self }
    }

    /// Sets how many of the keys that were refused most are listed.
    #[must_use]
    pub fn with_listed(self, listed: usize) -> Self {
        Self { listed, ..self }
    }
}

/// Decides every request of the logs by a policy, and by another one to compare.
///
/// ```
/// use std::sync::Arc;
/// use ratekeeper_lab::replay::{Logs, ReadOptions, ReplayOptions, replay};
/// use ratekeeper_policy::Policy;
///
/// let line = "192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 17\n";
/// let log = std::io::Cursor::new(line.repeat(3));
/// let policy = Arc::new(Policy::one_line("2/minute per ip")?);
/// let logs = Logs::open([("access.log", log)], ReadOptions::default(), &[&policy])?;
/// let result = replay(logs, &policy, None, ReplayOptions::default());
/// assert_eq!((result.policies[0].admitted, result.policies[0].refused), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn replay(
    logs: Logs,
    policy: &Arc<Policy>,
    other: Option<&Arc<Policy>>,
    options: ReplayOptions,
) -> ReplayResult {
    let policies: Vec<&Arc<Policy>> = [policy].into_iter().chain(other).collect();
    let notes = logs.notes(policies.iter().map(|policy| &***policy));
    let variants: Vec<_> =
        policies.iter().map(|policy| Variants::new(Arc::clone(policy))).collect();
    let mut runs: Vec<_> = variants.iter().map(|of| Run::new(of, options.keys_max)).collect();
    let mut changes = Changes::default();
    let read = logs.each_of(&variants, |request| {
        let first = runs[0].decide(request, 0);
        let Some(second) = runs.get_mut(1).map(|run| run.decide(request, 1)) else { return };
        match (first.by, second.by) {
            (None, Some((rule, slot))) => {
                changes.newly_refused += 1;
                runs[1].stats[rule].change(slot);
            }
            (Some((rule, slot)), None) => {
                changes.no_longer_refused += 1;
                runs[0].stats[rule].change(slot);
            }
            _ => {}
        }
    });
    let changes = other.map(|other| Changes {
        newly_refused_by: limit_changes(&runs[1], other, options.listed),
        no_longer_refused_by: limit_changes(&runs[0], policy, options.listed),
        ..changes
    });
    let results = runs.into_iter().zip(&policies);
    let policies =
        results.map(|(run, policy)| PolicyResult::of(run, policy, &read, options.listed)).collect();
    ReplayResult { read, notes, policies, changes }
}
