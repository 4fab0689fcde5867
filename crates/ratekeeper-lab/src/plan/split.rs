//! Divides a rate between classes of callers.

use std::str::FromStr;

use ratekeeper_core::Rate;
use serde::Serialize;

use super::{CapacityPlan, PlanError, Ratio, Share, plain_rate};

/// Which part of the rate each class gets, such as `partner=200/s,public=rest`.
///
/// ```
/// use ratekeeper_lab::plan::{Capacity, Split};
///
/// let plan = Capacity::new(10, 40, 800_000, "70%".parse()?)?.plan()?;
/// let division = "partner=200/s,public=rest".parse::<Split>()?.divide(&plan, None, None)?;
/// let rates: Vec<_> = division.classes().iter().map(|class| class.rate().to_string()).collect();
/// assert_eq!(rates, ["200/s", "150/s"]);
///
/// let error = "partner=400/s".parse::<Split>()?.divide(&plan, None, None).unwrap_err();
/// assert_eq!(error.to_string(), "the classes add up to 400/s, 50/s more than the safe rate of 350/s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split(Vec<(String, Part)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Rate(Rate),
    Share(Share),
    Rest,
}

/// The name of the class that gets what no other was given.
const OTHERS: &str = "others";
/// The most classes of a split.
const CLASSES_MAX: usize = 50;

impl FromStr for Split {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let classes: Vec<_> = text.split(',').map(class).collect::<Result<_, _>>()?;
        for (i, (name, _)) in classes.iter().enumerate() {
            if classes[..i].iter().any(|(earlier, _)| earlier == name) {
                return Err(PlanError::ClassTwice(name.clone()));
            }
        }
        if classes.iter().filter(|(_, part)| *part == Part::Rest).count() > 1 {
            return Err(PlanError::TwoRests);
        }
        if classes.len() > CLASSES_MAX {
            return Err(PlanError::Classes(CLASSES_MAX));
        }
        Ok(Self(classes))
    }
}

fn class(text: &str) -> Result<(String, Part), PlanError> {
    let (name, part) = text.split_once('=').ok_or_else(|| PlanError::Class(text.to_string()))?;
    let (name, part) = (name.trim(), part.trim());
    // The characters of a tier's name.
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(PlanError::Class(text.to_string()));
    }
    let part = match part {
        "rest" => Part::Rest,
        part if part.ends_with('%') => Part::Share(part.parse()?),
        part => Part::Rate(plain_rate(part)?),
    };
    Ok((name.to_string(), part))
}

/// A rate that is divided between classes.
#[derive(Clone, Debug)]
pub struct Division {
    classes: Vec<Class>,
    pub(super) per_user: Option<Rate>,
    pub(super) burst: u64,
}

/// A class and its part of the rate.
#[derive(Clone, Debug)]
pub struct Class {
    name: String,
    rate: Rate,
    burst: u64,
    is_rest: bool,
    /// How many users fit at their full rate.
    users: Option<u64>,
}

impl Split {
    /// Divides the safe rate of a plan. A rate per user has to fit into each class. The burst, the largest that
    /// fits if absent, is divided as the rate is.
    ///
    /// # Errors
    /// If the classes add up to more than the safe rate, nothing is left for the rest, or the rate per user
    /// is larger than that of a class.
    pub fn divide(
        &self,
        plan: &CapacityPlan,
        per_user: Option<Rate>,
        burst: Option<u64>,
    ) -> Result<Division, PlanError> {
        let safe = Ratio::per_second(plan.safe);
        let stated = |part: &Part| match part {
            Part::Rate(rate) => Some(Ratio::per_second(*rate)),
            Part::Share(share) => Some(share.of(safe)),
            Part::Rest => None,
        };
        let sum = self.0.iter().filter_map(|(_, part)| stated(part));
        let sum = sum.fold(Ratio::ZERO, Ratio::plus);
        if sum > safe {
            let over = sum.minus(safe).to_string();
            return Err(PlanError::TooMuch { sum: sum.to_string(), over, safe: plan.safe });
        }
        let left = safe.minus(sum);
        let burst = burst.unwrap_or(plan.burst_max);
        let class = |name: &str, part: &Part| {
            let amount = stated(part).unwrap_or(left);
            let exact = if let Part::Rate(rate) = part { Some(*rate) } else { None };
            let rate = exact.or_else(|| amount.to_rate());
            let rate = rate.ok_or_else(|| PlanError::NothingLeft(name.to_string()))?;
            let of_burst = Ratio::whole(burst).times(amount).over(safe).floor().max(1);
            let users = users(name, rate, per_user)?;
            let is_rest = *part == Part::Rest;
            Ok(Class { name: name.to_string(), rate, burst: of_burst, is_rest, users })
        };
        let mut classes: Vec<_> = self
            .0
            .iter()
            .map(|(name, part)| class(name, part))
            .collect::<Result<_, PlanError>>()?;
        let has_rest = self.0.iter().any(|(_, part)| *part == Part::Rest);
        if !has_rest && !left.is_zero() && left.to_rate().is_some() {
            classes.push(class(OTHERS, &Part::Rest)?);
        }
        Ok(Division { classes, per_user, burst })
    }
}

fn users(class: &str, rate: Rate, per_user: Option<Rate>) -> Result<Option<u64>, PlanError> {
    let Some(per_user) = per_user else { return Ok(None) };
    let (of_class, of_user) = (Ratio::per_second(rate), Ratio::per_second(per_user));
    match of_user > of_class {
        true => Err(PlanError::PerUser {
            per_user,
            class: class.to_string(),
            rate,
            over: of_user.minus(of_class).to_string(),
        }),
        false => Ok(Some(of_class.over(of_user).floor())),
    }
}

impl Division {
    /// Returns the whole rate as one class.
    ///
    /// # Errors
    /// If the rate per user is larger.
    pub fn undivided(
        plan: &CapacityPlan,
        per_user: Option<Rate>,
        burst: Option<u64>,
    ) -> Result<Self, PlanError> {
        let users = users("the plan", plan.safe, per_user)?;
        let burst = burst.unwrap_or(plan.burst_max);
        let class = Class { name: "all".into(), rate: plan.safe, burst, is_rest: true, users };
        Ok(Self { classes: vec![class], per_user, burst })
    }

    /// Returns the classes.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Returns the class of callers that are in no other.
    pub(super) fn default_class(&self) -> &Class {
        let rest = self.classes.iter().find(|class| class.is_rest);
        rest.or(self.classes.last()).expect("a split has a class")
    }
}

impl Class {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns its part of the burst.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns how many users fit at their full rate, if there is a rate per user.
    #[must_use]
    pub fn users(&self) -> Option<u64> {
        self.users
    }

    pub(super) fn is_rest(&self) -> bool {
        self.is_rest
    }
}

/// A class, for programs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClassNumbers {
    name: String,
    rate: String,
    burst: u64,
    users_at_full_rate: Option<u64>,
}

impl From<&Class> for ClassNumbers {
    fn from(class: &Class) -> Self {
        let Class { name, rate, burst, users, .. } = class.clone();
        Self { name, rate: rate.to_string(), burst, users_at_full_rate: users }
    }
}
