//! Counters of what a client waited for, retried and was refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a request waited for, or was refused by.
///
/// ```
/// use ratekeeper::client::WaitReason;
///
/// assert_eq!(WaitReason::Paused.to_string(), "paused");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitReason {
    /// A rate limit of the policy.
    RateLimit,
    /// A limit of the policy on requests in flight.
    Concurrency,
    /// The server refused a request that shares the quota, and said when to come back.
    Paused,
    /// What the server said remains of its quota.
    ServerQuota,
    /// After a pause, requests are sent spread out.
    Recovery,
    /// Other requests that share the quota waited before.
    Queue,
}

const REASONS: [WaitReason; 6] = [
    WaitReason::RateLimit,
    WaitReason::Concurrency,
    WaitReason::Paused,
    WaitReason::ServerQuota,
    WaitReason::Recovery,
    WaitReason::Queue,
];

impl WaitReason {
    /// Returns its name, for a label of a metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::Concurrency => "concurrency",
            Self::Paused => "paused",
            Self::ServerQuota => "server_quota",
            Self::Recovery => "recovery",
            Self::Queue => "queue",
        }
    }
}

impl std::fmt::Display for WaitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How often requests waited for one reason, and how long in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// How often.
    pub count: u64,
    /// How long in total.
    pub time: Duration,
}

/// Counters of an [`Outbound`](super::Outbound), from [`Outbound::stats`](super::Outbound::stats).
///
/// ```
/// use ratekeeper::client::{Outbound, WaitReason};
///
/// let outbound = Outbound::new("100/s per host")?;
/// let stats = outbound.stats();
/// assert_eq!(stats.attempts, 0);
/// for (reason, waits) in &stats.waits {
///     println!("outbound_waits_total{{reason=\"{reason}\"}} {}", waits.count);
/// }
/// # Ok::<(), ratekeeper::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboundStats {
    /// Requests.
    pub requests: u64,
    /// Attempts that were sent, the first of each request included.
    pub attempts: u64,
    /// Retries, also those that a limit then refused here.
    pub retries: u64,
    /// Attempts that the server refused.
    pub refused: u64,
    /// Attempts that failed without a response.
    pub failed: u64,
    /// Requests that were not sent because a limit refused them here, or because the wait was too long.
    pub refused_locally: u64,
    /// Requests that were not sent because the server has refused most of them lately.
    pub throttled: u64,
    /// Retries that were not made because the retry budget was spent.
    pub budget_spent: u64,
    /// Pauses that a refusal of the server began.
    pub pauses: u64,
    /// Pauses that another process has shared.
    pub pauses_shared: u64,
    /// What was waited for.
    pub waits: Vec<(WaitReason, WaitStats)>,
}

impl OutboundStats {
    /// Returns how often and how long requests waited for this reason.
    ///
    /// ```
    /// use ratekeeper::client::{Outbound, WaitReason};
    ///
    /// let outbound = Outbound::new("100/s per host")?;
    /// assert_eq!(outbound.stats().waits_for(WaitReason::RateLimit).count, 0);
    /// # Ok::<(), ratekeeper::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn waits_for(&self, reason: WaitReason) -> WaitStats {
        let waits = self.waits.iter().find(|(other, _)| *other == reason);
        waits.map_or_else(WaitStats::default, |(_, waits)| *waits)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: AtomicU64,
    pub(super) attempts: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) refused_locally: AtomicU64,
    pub(super) throttled: AtomicU64,
    pub(super) budget_spent: AtomicU64,
    pub(super) pauses: AtomicU64,
    pub(super) pauses_shared: AtomicU64,
    /// Count and microseconds, by [`WaitReason`].
    waits: [(AtomicU64, AtomicU64); REASONS.len()],
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn waited(&self, reason: WaitReason, time: Duration) {
        let (waits, micros) = &self.waits[reason as usize];
        count(waits);
        micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> OutboundStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let waits = |reason: WaitReason| {
            let (waits, micros) = &self.waits[reason as usize];
            let time = Duration::from_micros(read(micros));
            (reason, WaitStats { count: read(waits), time })
        };
        OutboundStats {
            requests: read(&self.requests),
            attempts: read(&self.attempts),
            retries: read(&self.retries),
            refused: read(&self.refused),
            failed: read(&self.failed),
            refused_locally: read(&self.refused_locally),
            throttled: read(&self.throttled),
            budget_spent: read(&self.budget_spent),
            pauses: read(&self.pauses),
            pauses_shared: read(&self.pauses_shared),
            waits: REASONS.map(waits).to_vec(),
        }
    }
}
