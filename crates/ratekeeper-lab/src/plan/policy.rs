//! A plan as a policy file.

use std::fmt::Write;

use ratekeeper_core::Rate;

use super::{CapacityPlan, Class, Division, Step};

/// How a plan becomes a policy.
#[derive(Clone, Debug)]
pub struct PolicyOptions<'o> {
    /// Whether classes are guaranteed their rates out of one limit, and may use what others leave.
    pub guarantee: bool,
    /// The header that names the class of a request.
    pub class_header: &'o str,
    /// The header that names the user of a request.
    pub user_header: &'o str,
    /// The command that made the plan.
    pub command: &'o str,
}

impl Division {
    /// Returns the plan as a policy file, with the steps as comments.
    ///
    /// With several classes, a header says which one a request belongs to; a proxy in front has to set it.
    #[must_use]
    pub fn to_policy(&self, plan: &CapacityPlan, options: &PolicyOptions<'_>) -> String {
        let mut text = format!("# Made by: {}\n", options.command.replace(['\n', '\r'], " "));
        plan.steps().iter().for_each(|step| comment(&mut text, step));
        text += "version: 1\n";
        text += &self.identities(options);
        text += "limits:\n";
        if options.guarantee && self.has_classes() {
            text += &self.guaranteed(plan);
        } else {
            self.classes().iter().for_each(|class| text += &self.limit(class));
        }
        if let Some(rate) = self.per_user {
            writeln!(text, "  - {{ name: user, per: user, rate: {rate} }}").expect(STRING);
        }
        text
    }

    fn has_classes(&self) -> bool {
        self.classes().len() > 1
    }

    fn identities(&self, options: &PolicyOptions<'_>) -> String {
        let mut text = String::new();
        if self.has_classes() || self.per_user.is_some() {
            text += "# Your proxy has to set these headers: a client that can choose them chooses its limits.\n";
            text += "identify:\n";
        }
        if self.has_classes() {
            writeln!(text, "  class: {{ header: {} }}", options.class_header).expect(STRING);
        }
        if self.per_user.is_some() {
            writeln!(text, "  user: {{ header: {} }}", options.user_header).expect(STRING);
        }
        if self.has_classes() {
            let names: Vec<_> = self.classes().iter().map(|class| quoted(class.name())).collect();
            let default = quoted(self.default_class().name());
            let names = names.join(", ");
            writeln!(text, "tiers: {{ of: class, names: [{names}], default: {default} }}")
                .expect(STRING);
        }
        text
    }

    fn limit(&self, class: &Class) -> String {
        let (name, rate) = (class.name(), bucket(class.rate(), class.burst()));
        match self.has_classes() {
            true => {
                let name = quoted(name);
                format!("  - {{ name: {name}, match: {{ tier: {name} }}, rate: {rate} }}\n")
            }
            false => format!("  - {{ name: {name}, rate: {rate} }}\n"),
        }
    }

    fn guaranteed(&self, plan: &CapacityPlan) -> String {
        let guaranteed: Vec<_> = self.classes().iter().filter(|class| !class.is_rest()).collect();
        // Each guarantee has a burst of at least 1.
        let burst = self.burst.max(guaranteed.len() as u64);
        let total = bucket(plan.rate(), burst);
        let rate = |class: &&Class| {
            format!("{}: {}", quoted(class.name()), bucket(class.rate(), class.burst()))
        };
        let rates: Vec<_> = guaranteed.iter().map(rate).collect();
        format!("  - {{ name: all, rate: {total}, guarantees: {{ {} }} }}\n", rates.join(", "))
    }
}

const STRING: &str = "a string takes all";

fn comment(text: &mut String, step: &Step) {
    writeln!(text, "# {}: {} = {}", step.name, step.formula, step.result).expect(STRING);
}

fn bucket(rate: Rate, burst: u64) -> String {
    let period = rate.to_string();
    let period = period.split(" burst ").next().unwrap_or_default();
    format!("{period} burst {burst}")
}

/// In quotes, a name such as "no" or "1" is text.
fn quoted(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&name.to_ascii_lowercase().as_str());
    if is_plain { name.to_string() } else { format!("\"{name}\"") }
}
