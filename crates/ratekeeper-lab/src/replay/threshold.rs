//! Conditions under which a replay fails, for a pipeline: `refused > 0.5%`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ratekeeper_policy::Policy;

use super::logs::Logs;
use super::replay_logs::{ReplayOptions, replay};
use super::result::{LimitResult, ReplayResult};

/// A condition on a number of requests.
///
/// ```
/// use ratekeeper_lab::replay::Threshold;
///
/// assert_eq!("refused>0.5%".parse::<Threshold>()?.to_string(), "refused > 0.5%");
/// assert!("api.refused >= 100".parse::<Threshold>().is_ok());
/// let error = "refuse > 1".parse::<Threshold>().unwrap_err();
/// assert!(error.to_string().contains("unknown number \"refuse\""));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threshold {
    limit: Option<String>,
    metric: Metric,
    is_inclusive: bool,
    /// A number of requests, or millionths of them.
    value: u64,
    is_percent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Refused,
    Delayed,
    Shadow,
    NewlyRefused,
    NoLongerRefused,
    Skipped,
    KeysRefused,
}

const METRICS: [(&str, Metric); 7] = [
    ("refused", Metric::Refused),
    ("delayed", Metric::Delayed),
    ("shadow", Metric::Shadow),
    ("newly_refused", Metric::NewlyRefused),
    ("no_longer_refused", Metric::NoLongerRefused),
    ("skipped", Metric::Skipped),
    ("keys_refused", Metric::KeysRefused),
];

/// Why a text is no condition, or does not apply to a replay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdError {
    /// It has no comparison.
    #[error(
        "expected a number, > or >= and a value, such as \"refused > 0.5%\" or \"api.refused >= 100\""
    )]
    Comparison,
    /// There is no such number.
    #[error(
        "unknown number {0:?}; use refused, delayed, shadow, keys_refused, skipped, newly_refused or no_longer_refused, \
         or LIMIT.refused for one limit"
    )]
    Metric(String),
    /// The value is not a number.
    #[error("the value {0:?} is not a number or a percentage such as 0.5%")]
    Value(String),
    /// There is no such limit.
    #[error("the policy has no limit {0:?}")]
    Limit(String),
    /// It needs a second policy.
    #[error("{0} compares two policies; add --compare")]
    Compare(&'static str),
    /// It is not known for one limit, or only for one.
    #[error("{0} is a number of {1}")]
    Scope(&'static str, &'static str),
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let (name, rest) = text.split_once('>').ok_or(ThresholdError::Comparison)?;
        let (is_inclusive, value) = match rest.strip_prefix('=') {
            Some(value) => (true, value.trim()),
            None => (false, rest.trim()),
        };
        let (limit, name) = match name.trim().rsplit_once('.') {
            Some((limit, name)) => (Some(limit.to_string()), name),
            None => (None, name.trim()),
        };
        let metric = METRICS.iter().find(|(known, _)| *known == name);
        let metric = metric.ok_or_else(|| ThresholdError::Metric(name.to_string()))?.1;
        let invalid = || ThresholdError::Value(value.to_string());
        let (value, is_percent) = match value.strip_suffix('%') {
            Some(percent) => (millionths(percent.trim()).ok_or_else(invalid)?, true),
            None => (value.replace('_', "").parse().map_err(|_| invalid())?, false),
        };
        Ok(Self { limit, metric, is_inclusive, value, is_percent })
    }
}

/// Returns a percentage in millionths: `0.5` is 5000.
fn millionths(percent: &str) -> Option<u64> {
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || fraction.len() > 4 {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|whole| *whole <= 100)?;
    format!("{whole}{fraction:0<4}").parse().ok()
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(limit) = &self.limit {
            write!(f, "{limit}.")?;
        }
        write!(f, "{} {} ", self.metric.name(), if self.is_inclusive { ">=" } else { ">" })?;
        if !self.is_percent {
            return write!(f, "{}", self.value);
        }
        let (whole, fraction) = (self.value / 10_000, format!("{:04}", self.value % 10_000));
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            fraction => write!(f, "{whole}.{fraction}%"),
        }
    }
}

impl Metric {
    fn name(self) -> &'static str {
        METRICS.iter().find(|(_, metric)| *metric == self).map_or("", |(name, _)| name)
    }
}

impl Threshold {
    /// Returns the count and what it is a part of, if the condition holds: the policy that is compared with counts, if there
    /// is one.
    ///
    /// # Errors
    ///
    /// If there is no such limit, or no second policy.
    pub fn exceeded_by(&self, result: &ReplayResult) -> Result<Option<(u64, u64)>, ThresholdError> {
        let (count, of) = match &self.limit {
            Some(name) => self.of_limit(result, name)?,
            None => self.of_all(result)?,
        };
        let is_more =
            |count: u128, value: u128| count > value || self.is_inclusive && count == value;
        let is_exceeded = match self.is_percent {
            true => is_more(u128::from(count) * 1_000_000, u128::from(self.value) * u128::from(of)),
            false => is_more(u128::from(count), u128::from(self.value)),
        };
        Ok(is_exceeded.then_some((count, of)))
    }

    /// Checks that the condition can be judged for these policies, before a log is read.
    ///
    /// # Errors
    ///
    /// As [`exceeded_by`](Self::exceeded_by).
    pub fn check(
        &self,
        policy: &Arc<Policy>,
        other: Option<&Arc<Policy>>,
    ) -> Result<(), ThresholdError> {
        let result = replay(Logs::none(), policy, other, ReplayOptions::default().with_keys_max(1));
        self.exceeded_by(&result).map(drop)
    }

    fn of_limit(&self, result: &ReplayResult, name: &str) -> Result<(u64, u64), ThresholdError> {
        let limit = result.policies.last().and_then(|policy| policy.limit(name));
        let limit: &LimitResult = limit.ok_or_else(|| ThresholdError::Limit(name.to_string()))?;
        let count = match self.metric {
            Metric::Refused => limit.counts.refused,
            Metric::Delayed => limit.counts.delayed,
            Metric::Shadow => limit.counts.shadow_refused,
            Metric::KeysRefused => return Ok((limit.keys_refused, limit.keys)),
            Metric::NewlyRefused => {
                let changes =
                    result.changes.as_ref().ok_or(ThresholdError::Compare(self.metric.name()))?;
                let of_limit = changes.newly_refused_by.iter().find(|change| change.limit == name);
                of_limit.map_or(0, |change| change.requests)
            }
            metric => return Err(ThresholdError::Scope(metric.name(), "all limits together")),
        };
        Ok((count, limit.counts.requests))
    }

    fn of_all(&self, result: &ReplayResult) -> Result<(u64, u64), ThresholdError> {
        let changes = || result.changes.as_ref().ok_or(ThresholdError::Compare(self.metric.name()));
        let policy = result.policies.last();
        let count = match self.metric {
            Metric::Refused => policy.map_or(0, |policy| policy.refused),
            Metric::Delayed => policy.map_or(0, |policy| policy.delayed),
            Metric::Shadow => policy.map_or(0, |policy| policy.shadow_refused),
            Metric::NewlyRefused => changes()?.newly_refused,
            Metric::NoLongerRefused => changes()?.no_longer_refused,
            Metric::Skipped => return Ok((result.read.skipped, result.read.lines)),
            Metric::KeysRefused => {
                return Err(ThresholdError::Scope("keys_refused", "one limit: LIMIT.keys_refused"));
            }
        };
        Ok((count, result.read.requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_as_it_is_written() {
        for text in ["refused > 0", "refused >= 17", "a.b.keys_refused > 0.05%", "skipped > 100%"] {
            assert_eq!(text.parse::<Threshold>().unwrap().to_string(), text);
        }
        assert_eq!("refused>1_000".parse::<Threshold>().unwrap().to_string(), "refused > 1000");
    }

    #[test]
    fn a_condition_is_checked_before_a_log_is_read() {
        let policy = Arc::new(Policy::one_line("10/s per ip").unwrap());
        let name = policy.limits()[0].name();
        let check =
            |condition: &str, other| condition.parse::<Threshold>().unwrap().check(&policy, other);
        assert_eq!(check(&format!("{name}.refused > 1"), None), Ok(()));
        assert_eq!(check("api.refused > 1", None), Err(ThresholdError::Limit("api".into())));
        assert_eq!(check("newly_refused > 1", None), Err(ThresholdError::Compare("newly_refused")));
        assert_eq!(check("newly_refused > 1", Some(&policy)), Ok(()));
    }

    #[test]
    fn what_is_no_condition_is_an_error() {
        let error = |text: &str| text.parse::<Threshold>().unwrap_err();
        assert_eq!(error("refused"), ThresholdError::Comparison);
        assert_eq!(error("refused < 1"), ThresholdError::Comparison);
        assert_eq!(error("a.lost > 1"), ThresholdError::Metric("lost".into()));
        for value in ["", "x", "1.5", "-1", "101%", "0.00001%", ".5%", "%"] {
            let value_error = ThresholdError::Value(value.to_string());
            assert_eq!(error(&format!("refused > {value}")), value_error);
        }
    }
}
