//! From concurrency and latency to a rate, by Little's law.

use ratekeeper_core::Rate;
use serde::Serialize;

use super::{Dependency, PlanError, Ratio, Step};
use crate::text::span_text;

/// The name of the step that is the result.
pub(super) const SAFE_RATE: &str = "safe rate";

/// What a service has: the input of a plan.
///
/// ```
/// use ratekeeper_lab::plan::{Capacity, Share};
///
/// let plan = Capacity::new(10, 40, 800_000, "70%".parse::<Share>()?)?.plan()?;
/// assert_eq!(plan.concurrency(), 400);
/// assert_eq!(plan.ceiling_text(), "500/s");
/// assert_eq!(plan.rate(), "350/s".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Capacity {
    pods: u32,
    concurrency: u32,
    latency_us: u64,
    margin: Share,
    dependencies: Vec<Dependency>,
}

/// A share of a whole, in percent: more than 0, at most 100.
///
/// ```
/// use ratekeeper_lab::plan::Share;
///
/// assert_eq!("70%".parse::<Share>()?.to_string(), "70%");
/// assert!("170%".parse::<Share>().is_err());
/// # Ok::<(), ratekeeper_lab::plan::PlanError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(Ratio);

impl Share {
    /// Returns the share as a fraction of 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        self.0.as_f64()
    }

    pub(super) fn of(self, whole: Ratio) -> Ratio {
        self.0.times(whole)
    }
}

impl std::str::FromStr for Share {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let percent = text.strip_suffix('%').and_then(|number| Ratio::decimal(number.trim_end()));
        let is_valid = |percent: &Ratio| !percent.is_zero() && *percent <= Ratio::whole(100);
        let percent = percent.filter(is_valid).ok_or(PlanError::Share)?;
        Ok(Self(percent.over(Ratio::whole(100))))
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.0.times(Ratio::whole(100)))
    }
}

/// The rate that a service can safely be offered, and how it was found.
#[derive(Clone, Debug)]
pub struct CapacityPlan {
    pub(super) pods: u32,
    pub(super) concurrency: u64,
    pub(super) per_pod: u32,
    pub(super) latency_us: u64,
    pub(super) own_ceiling: Ratio,
    pub(super) ceiling: Ratio,
    pub(super) safe: Rate,
    pub(super) weakest: Option<Dependency>,
    pub(super) burst_max: u64,
    steps: Vec<Step>,
}

impl Capacity {
    /// Returns the capacity of `pods`, each with so many requests in flight that take `latency_us`. Of the
    /// ceiling, the plan uses a share, the margin.
    ///
    /// # Errors
    /// If a number is 0, or above a million pods, a million requests per pod or a day of latency.
    pub fn new(
        pods: u32,
        concurrency: u32,
        latency_us: u64,
        margin: Share,
    ) -> Result<Self, PlanError> {
        const COUNT_MAX: u32 = 1_000_000;
        const LATENCY_MAX_US: u64 = 86_400_000_000;
        let is_count = |n: u32| (1..=COUNT_MAX).contains(&n);
        if !is_count(pods) || !is_count(concurrency) {
            return Err(PlanError::Count);
        }
        if !(1..=LATENCY_MAX_US).contains(&latency_us) {
            return Err(PlanError::Latency);
        }
        Ok(Self { pods, concurrency, latency_us, margin, dependencies: Vec::new() })
    }

    /// Adds a dependency that every request calls.
    #[must_use]
    pub fn with_dependency(mut self, dependency: Dependency) -> Self {
        self.dependencies.push(dependency);
        self
    }

    /// Computes the plan.
    ///
    /// # Errors
    /// If the safe rate is below one request a day, or above 4,294,967,295 a second.
    pub fn plan(&self) -> Result<CapacityPlan, PlanError> {
        let concurrency = u64::from(self.pods) * u64::from(self.concurrency);
        let total = Ratio::whole(concurrency);
        let latency = Ratio::seconds(self.latency_us);
        let own_ceiling = total.over(latency);
        let by_ceiling = self.dependencies.iter().min_by_key(|dependency| dependency.ceiling());
        let weakest = by_ceiling.filter(|dependency| dependency.ceiling() < own_ceiling).cloned();
        let ceiling = weakest.as_ref().map_or(own_ceiling, Dependency::ceiling);
        let safe = self.margin.of(ceiling).to_rate().ok_or(PlanError::Rate)?;
        let in_flight = Ratio::per_second(safe).times(latency);
        let burst_max = total.minus(in_flight).floor();
        // A dependency has no room for more than its own rate allows in a second.
        let dependency_max = match &weakest {
            Some(_) => ceiling.minus(Ratio::per_second(safe)).floor(),
            None => u64::MAX,
        };
        let mut plan = CapacityPlan {
            pods: self.pods,
            concurrency,
            per_pod: self.concurrency,
            latency_us: self.latency_us,
            own_ceiling,
            ceiling,
            safe,
            weakest,
            burst_max: burst_max.min(dependency_max).max(1),
            steps: Vec::new(),
        };
        plan.steps = self.steps(&plan, in_flight);
        Ok(plan)
    }

    fn steps(&self, plan: &CapacityPlan, in_flight: Ratio) -> Vec<Step> {
        let Self { pods, concurrency, latency_us, margin, .. } = self;
        let (total, latency) = (plan.concurrency, span_text(*latency_us));
        let own = format!("{}/s", plan.own_ceiling);
        let mut steps = vec![
            Step::new("total concurrency", format!("{pods} pods × {concurrency}"), total),
            Step::new("ceiling", format!("{total} in flight / {latency}"), own),
        ];
        steps.extend(self.dependencies.iter().map(Dependency::step));
        if let Some(weakest) = &plan.weakest {
            let formula = format!("the lowest: {}", weakest.name());
            steps.push(Step::new("weakest link", formula, plan.ceiling_text()));
        }
        let exact = margin.of(plan.ceiling);
        let formula = format!("{} × {margin}", plan.ceiling_text());
        let is_rounded = exact != Ratio::per_second(plan.safe);
        let formula = if is_rounded { format!("{formula} = {exact}/s") } else { formula };
        steps.push(Step::new(SAFE_RATE, formula, plan.safe));
        let formula = format!("{} × {latency}", plan.safe);
        steps.push(Step::new("safe concurrency", formula, in_flight));
        let room = match &plan.weakest {
            Some(weakest) if plan.burst_max < total.saturating_sub(in_flight.floor()) => {
                format!("{} − {}, for {}", plan.ceiling_text(), plan.safe, weakest.name())
            }
            _ => format!("{total} − {in_flight}"),
        };
        steps.push(Step::new("largest burst", room, plan.burst_max));
        steps
    }
}

impl CapacityPlan {
    /// Returns how many requests can be in flight in all pods together.
    #[must_use]
    pub fn concurrency(&self) -> u64 {
        self.concurrency
    }

    /// Returns the most requests per second that the service and its dependencies can sustain, as text.
    #[must_use]
    pub fn ceiling_text(&self) -> String {
        format!("{}/s", self.ceiling)
    }

    /// Returns the safe rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.safe
    }

    /// Returns the dependency that the ceiling is that of, if the service itself could do more.
    #[must_use]
    pub fn weakest(&self) -> Option<&Dependency> {
        self.weakest.as_ref()
    }

    /// Returns the largest burst that fits on top of the safe rate.
    #[must_use]
    pub fn burst_max(&self) -> u64 {
        self.burst_max
    }

    /// Returns each step, with its formula.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns a warning if a bucket of this size lets more requests in at once than there is space for.
    #[must_use]
    pub fn burst_warning(&self, burst: u64) -> Option<String> {
        if burst <= self.burst_max {
            return None;
        }
        let in_flight = Ratio::per_second(self.safe).times(Ratio::seconds(self.latency_us));
        let most = in_flight.plus(Ratio::whole(burst));
        let room = self.concurrency;
        let why = match (&self.weakest, most > Ratio::whole(room)) {
            (Some(weakest), false) => {
                let offered = Ratio::whole(burst).plus(Ratio::per_second(self.safe));
                format!(
                    "{offered} requests within a second, above the {} that {} can take",
                    self.ceiling_text(),
                    weakest.name()
                )
            }
            _ => format!(
                "{burst} + {in_flight} = {most} requests in flight, above the total concurrency of {room}"
            ),
        };
        let alone = match Ratio::whole(burst) > in_flight {
            true => format!("; alone it exceeds the safe concurrency of {in_flight}"),
            false => String::new(),
        };
        Some(format!(
            "a bucket of {burst} can put {why}{alone}; use a burst of at most {}",
            self.burst_max
        ))
    }
}

/// The numbers of a capacity plan, for programs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CapacityNumbers {
    concurrency: u64,
    ceiling_per_second: f64,
    weakest_link: Option<String>,
    safe_rate: String,
    burst_max: u64,
}

impl From<&CapacityPlan> for CapacityNumbers {
    fn from(plan: &CapacityPlan) -> Self {
        Self {
            concurrency: plan.concurrency,
            ceiling_per_second: plan.ceiling.as_f64(),
            weakest_link: plan.weakest.as_ref().map(|weakest| weakest.name().to_string()),
            safe_rate: plan.safe.to_string(),
            burst_max: plan.burst_max,
        }
    }
}
