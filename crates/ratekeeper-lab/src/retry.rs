//! How clients retry: models of what common loops and SDKs do.
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper_control::Micros;
//! use ratekeeper_lab::retry::{Failed, RetryModel};
//!
//! let mut openai = RetryModel::by_name("openai").expect("it is in the list");
//! let refused = Failed { retry_after: Some(Duration::from_secs(3)) };
//! let mut random = || 0;
//! assert_eq!(openai.delay(1, refused, Micros::new(0), &mut random), Some(Duration::from_secs(3)));
//! assert_eq!(openai.delay(3, refused, Micros::new(0), &mut random), None, "two retries");
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use ratekeeper_control::{Backoff, Jitter, Micros, RetryBudget};

const SECOND: Duration = Duration::from_secs(1);

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// What the response asks to wait; `None` if there is no response, or it does not say.
    pub retry_after: Option<Duration>,
}

/// How clients retry, with the state that they share, such as a budget.
#[derive(Debug)]
#[non_exhaustive]
pub enum RetryModel {
    /// Not at all.
    Never,
    /// After the same delay each time.
    Fixed(Duration),
    /// By exponential backoff. `Retry-After` is ignored.
    Exponential(Backoff),
    /// By exponential backoff after `Retry-After`.
    RetryAfterAndExponential(Backoff),
    /// As the OpenAI SDKs do: two retries, after `Retry-After` up to a minute.
    OpenAi,
    /// As the AWS SDKs do in standard mode: two retries, within a bucket of 500 tokens.
    AwsStandard {
        /// The tokens that are left.
        tokens: u32,
    },
    /// At once, as long as a budget with the defaults of tower allows.
    TowerBudget(TowerBudget),
    /// As the client of this project does: after `Retry-After`, by exponential backoff with full jitter, up to
    /// two times within a retry budget.
    Budgeted(Box<RetryBudget>),
}

/// The names of all models, with what they do.
pub const RETRY_MODELS: &[(&str, &str)] = &[
    ("none", "no retries"),
    ("naive", "every 50 ms"),
    ("fixed", "every second"),
    ("exponential", "100 ms, doubling up to 20 s"),
    ("jitter", "the same with full jitter"),
    ("retry-after", "the same with full jitter, after Retry-After"),
    ("openai", "the OpenAI SDKs: two retries, Retry-After up to a minute"),
    ("aws", "the AWS SDKs in standard mode: two retries, a bucket of tokens"),
    ("tower", "at once, within the retry budget of tower"),
    ("budget", "two retries with full jitter after Retry-After, within our retry budget"),
];

impl RetryModel {
    const NAIVE: Duration = Duration::from_millis(50);
    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(20));
    const BUDGETED_RETRIES: u32 = 2;

    const OPENAI_RETRIES: u32 = 2;
    const OPENAI_RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
    const OPENAI: Backoff =
        Backoff::new(Duration::from_millis(500), Duration::from_secs(8)).with_jitter(Jitter::None);

    const AWS_RETRIES: u32 = 2;
    const AWS_TOKENS_MAX: u32 = 500;
    const AWS_RETRY_COST: u32 = 5;
    const AWS: Backoff = Backoff::new(SECOND, Duration::from_secs(20));

    /// Returns the model of this name in [`RETRY_MODELS`].
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::Never,
            "naive" => Self::Fixed(Self::NAIVE),
            "fixed" => Self::Fixed(SECOND),
            "exponential" => Self::Exponential(Self::BACKOFF.with_jitter(Jitter::None)),
            "jitter" => Self::Exponential(Self::BACKOFF),
            "retry-after" => Self::RetryAfterAndExponential(Self::BACKOFF),
            "openai" => Self::OpenAi,
            "aws" => Self::aws_standard(),
            "tower" => Self::TowerBudget(TowerBudget::default()),
            "budget" => Self::Budgeted(Box::default()),
            _ => return None,
        })
    }

    /// Returns the standard mode of the AWS SDKs, with a full bucket.
    #[must_use]
    pub fn aws_standard() -> Self {
        Self::AwsStandard { tokens: Self::AWS_TOKENS_MAX }
    }

    /// Returns how long to wait before this retry; `None` gives up. The first retry is 1.
    pub fn delay(
        &mut self,
        retry: u32,
        failed: Failed,
        now: Micros,
        random: &mut dyn FnMut() -> u64,
    ) -> Option<Duration> {
        let mut by = |backoff: &Backoff| backoff.delay(retry, Duration::ZERO, random());
        let retry_after = failed.retry_after.unwrap_or_default();
        match self {
            Self::Never => None,
            Self::Fixed(delay) => Some(*delay),
            Self::Exponential(backoff) => Some(by(backoff)),
            Self::RetryAfterAndExponential(backoff) => Some(retry_after + by(backoff)),
            Self::OpenAi if retry > Self::OPENAI_RETRIES => None,
            Self::OpenAi => match failed.retry_after {
                Some(after) if after <= Self::OPENAI_RETRY_AFTER_MAX => Some(after),
                _ => Some(by(&Self::OPENAI).mul_f64(1.0 - 0.25 * fraction(random()))),
            },
            Self::AwsStandard { .. } if retry > Self::AWS_RETRIES => None,
            Self::AwsStandard { tokens } => {
                *tokens = tokens.checked_sub(Self::AWS_RETRY_COST)?;
                Some(by(&Self::AWS))
            }
            Self::TowerBudget(budget) => budget.try_withdraw(now).then_some(Duration::ZERO),
            Self::Budgeted(_) if retry > Self::BUDGETED_RETRIES => None,
            Self::Budgeted(budget) => {
                budget.try_withdraw(now).then(|| retry_after + by(&Self::BACKOFF))
            }
        }
    }

    /// Notes a new request.
    pub fn requested(&mut self, now: Micros) {
        if let Self::Budgeted(budget) = self {
            budget.deposit(now);
        }
    }

    /// Notes that a request was served after so many retries.
    pub fn served(&mut self, retries: u32, now: Micros) {
        match self {
            Self::AwsStandard { tokens } => {
                let refund = if retries == 0 { 1 } else { Self::AWS_RETRY_COST };
                *tokens = (*tokens + refund).min(Self::AWS_TOKENS_MAX);
            }
            Self::TowerBudget(budget) => budget.deposits.push_back(now),
            _ => {}
        }
    }
}

fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// The budget of tower: in 10 seconds, a retry for every five requests that succeed, and 100 more.
#[derive(Debug, Default)]
pub struct TowerBudget {
    deposits: VecDeque<Micros>,
    retries: VecDeque<Micros>,
}

impl TowerBudget {
    const TTL_US: u64 = 10_000_000;
    const RESERVE: usize = 10 * 10;
    const DEPOSITS_PER_RETRY: usize = 5;

    fn try_withdraw(&mut self, now: Micros) -> bool {
        for times in [&mut self.deposits, &mut self.retries] {
            while times.front().is_some_and(|at| at.get() + Self::TTL_US <= now.get()) {
                times.pop_front();
            }
        }
        let earned = Self::RESERVE + self.deposits.len() / Self::DEPOSITS_PER_RETRY;
        let is_admitted = self.retries.len() < earned;
        if is_admitted {
            self.retries.push_back(now);
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_model() {
        for (name, _) in RETRY_MODELS {
            assert!(RetryModel::by_name(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_budget_bounds_retries_by_what_is_requested() {
        let mut random = || 7;
        let mut model = RetryModel::by_name("budget").unwrap();
        let retries = (0..1_000u64).filter(|n| {
            let now = Micros::new(n * 1_000);
            model.requested(now);
            model.delay(1, Failed::default(), now, &mut random).is_some()
        });
        let retries = retries.count();
        assert!((200..=230).contains(&retries), "a fifth, and three per second: {retries}");
    }
}
