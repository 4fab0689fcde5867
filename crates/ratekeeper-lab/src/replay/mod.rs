//! Replays access logs through policies in virtual time: what a policy would have done to yesterday's traffic.
//!
//! [`Logs`] reads logs of any known format in the order of time, and [`replay`] decides every request as a limiter would
//! have. The result is exact for the log, whatever the number of threads, in memory that is bounded by the number of keys.

mod decide;
mod demand;
mod document;
mod in_flight;
mod keys;
mod limit_stats;
mod logs;
mod notes;
mod order;
mod pipeline;
mod prepare;
mod replay_logs;
mod request;
mod result;
mod summary;
mod text;
mod threshold;

pub use demand::{Demand, SCALES_SECS};
pub use logs::{Logs, OpenLogError, ReadOptions, ReadProgress};
pub use notes::policy_notes;
pub use replay_logs::{ReplayOptions, replay};
pub use request::{LoggedCharge, LoggedRequest};
pub use result::{
    Changes, KeyResult, LimitChange, LimitCounts, LimitResult, PolicyResult, ReplayResult, Series,
    TierResult,
};
pub use summary::{LogSummary, ReadSummary, SkippedLine};
pub use threshold::{Threshold, ThresholdError};
