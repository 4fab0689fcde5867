//! A limit in one line: how much, and counted by what.

use crate::policy::Policy;
use crate::rule::{Amount, Bounds, LimitRule};

impl LimitRule {
    /// Returns the amounts that it allows: one for all requests, or one for each tier that is limited, in the order of
    /// the tiers. Shares of priority classes and guarantees are left out.
    pub fn amounts(&self) -> impl Iterator<Item = &Amount> {
        let bounds = match &self.bounds {
            Bounds::Same(bound) => std::slice::from_ref(bound).iter().map(Some).collect(),
            Bounds::PerTier(bounds) => bounds.iter().map(Option::as_ref).collect::<Vec<_>>(),
        };
        bounds.into_iter().flatten().map(|bound| &bound.amount)
    }
}

impl Policy {
    /// Returns a limit in words: its amounts and what it counts by. `None` if there is no limit of that name.
    ///
    /// ```
    /// use ratekeeper_policy::Policy;
    ///
    /// let policy = Policy::one_line("100/minute per ip")?;
    /// let name = policy.limits()[0].name();
    /// assert_eq!(policy.describe_limit(name).unwrap(), "token_bucket 100/m per ip");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn describe_limit(&self, name: &str) -> Option<String> {
        let rule = self.limits.iter().find(|rule| rule.name() == name)?;
        let per: Vec<_> = rule.per.iter().map(|id| self.identities[*id].name.as_str()).collect();
        let per =
            if per.is_empty() { String::new() } else { format!(" per {}", per.join(" and ")) };
        Some(format!("{}{per}", self.amounts_text(rule)))
    }

    fn amounts_text(&self, rule: &LimitRule) -> String {
        let tiers = self.tiers.iter().flat_map(|tiers| &tiers.names);
        match &rule.bounds {
            Bounds::Same(bound) => bound.amount.to_string(),
            Bounds::PerTier(bounds) => {
                let texts = tiers.zip(bounds).map(|(tier, bound)| match bound {
                    Some(bound) => format!("{tier}: {}", bound.amount),
                    None => format!("{tier}: unlimited"),
                });
                texts.collect::<Vec<_>>().join(", ")
            }
        }
    }
}
