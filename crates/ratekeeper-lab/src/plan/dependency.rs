//! What a service calls for each request.

use std::str::FromStr;

use ratekeeper_core::Rate;

use super::{PlanError, Ratio, Step, plain_rate};

/// A dependency with a rate of its own, such as `inventory=300/s,amplification=2`: each request calls it so many
/// times, once if not stated.
///
/// ```
/// use ratekeeper_lab::plan::Dependency;
///
/// let inventory: Dependency = "inventory=300/s,amplification=2".parse()?;
/// assert_eq!(inventory.name(), "inventory");
/// # Ok::<(), ratekeeper_lab::plan::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    name: String,
    rate: Rate,
    amplification: Ratio,
}

impl Dependency {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how many requests per second its rate is enough for.
    pub(super) fn ceiling(&self) -> Ratio {
        Ratio::per_second(self.rate).over(self.amplification)
    }

    pub(super) fn step(&self) -> Step {
        let formula = match self.amplification == Ratio::whole(1) {
            true => format!("{} / 1 call per request", self.rate),
            false => format!("{} / {} calls per request", self.rate, self.amplification),
        };
        Step::new(&format!("ceiling of {}", self.name), formula, format!("{}/s", self.ceiling()))
    }
}

impl FromStr for Dependency {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let (name, rest) = text.split_once('=').ok_or(PlanError::Dependency)?;
        let (rate, amplification) = match rest.split_once(',') {
            None => (rest, Ratio::whole(1)),
            Some((rate, field)) => (rate, amplification(field)?),
        };
        if name.trim().is_empty() {
            return Err(PlanError::Dependency);
        }
        Ok(Self { name: name.trim().to_string(), rate: plain_rate(rate)?, amplification })
    }
}

fn amplification(field: &str) -> Result<Ratio, PlanError> {
    let value = match field.split_once('=') {
        Some((name, value)) if name.trim() == "amplification" => Ratio::decimal(value.trim()),
        _ => return Err(PlanError::Dependency),
    };
    let in_range = |value: &Ratio| !value.is_zero() && *value <= Ratio::whole(1_000_000);
    value.filter(in_range).ok_or(PlanError::Amplification)
}
