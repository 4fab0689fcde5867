//! A policy from its tree. The shape was checked before: what is not of it is left out here without
//! another word, and what only makes no sense together is told.

mod answers;
mod callers;
mod conditions;
mod limits;
pub(crate) mod values;

use crate::client_ip::ClientIp;
use crate::index::Index;
use crate::policy::{Policy, Sources, StoreSettings};
use crate::problems::Problems;
use crate::rule::WhenLimited;
use crate::suggest::closest;
use crate::yaml::Node;

use callers::Callers;
use values::{boolean, duration, integer, when_down};

pub(crate) fn policy(root: &Node, sources: &dyn Sources, problems: &mut Problems) -> Policy {
    let callers = Callers::read(root, sources, problems);
    let (classes, priorities) = conditions::priorities(root, &callers, problems);
    let store = store(root, sources, problems);
    let exempt = root.get("exempt").map_or(&[][..], Node::items);
    let exempt =
        exempt.iter().map(|node| conditions::condition(node, &callers, problems)).collect();
    let limits = limits::limits(root, &callers, &classes, store.when_down, problems);
    let Callers { identities, client_ip, tiers, .. } = callers;
    Policy {
        store,
        client_ip: client_ip.unwrap_or_else(|| ClientIp::new(Vec::new())),
        #[cfg(feature = "jwt")]
        tokens: crate::token::Tokens::read(root.get("jwt"), sources, problems),
        identities,
        tiers,
        classes,
        priorities,
        exempt,
        index: Index::new(&limits),
        serves_stale: limits
            .iter()
            .any(|limit| matches!(limit.when_limited, WhenLimited::ServeStale(_))),
        limits,
        answers: answers::answers(root.get("answers"), problems),
    }
}

fn store(root: &Node, sources: &dyn Sources, problems: &mut Problems) -> StoreSettings {
    let node = root.get("store");
    let get = |name: &str| node.and_then(|node| node.get(name));
    let url = get("url").and_then(|node| address(node, sources, problems));
    StoreSettings {
        url: url.filter(|url| url != "memory"),
        prefix: get("prefix").and_then(Node::text).map(Into::into),
        deadline: get("deadline").and_then(|node| duration(node, problems)),
        when_down: get("when_down").and_then(when_down).unwrap_or_default(),
        leased: get("leased").and_then(boolean).unwrap_or(false),
        keys_max: get("keys_max").and_then(integer).and_then(|n| usize::try_from(n).ok()),
    }
}

/// An address, with `${NAME}` filled in: passwords do not belong in a file.
fn address(node: &Node, sources: &dyn Sources, problems: &mut Problems) -> Option<String> {
    let text = node.text()?;
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            problems.report(node.span, "\"${\" is not closed with \"}\"");
            return None;
        };
        let Some(value) = sources.variable(name) else {
            problems.report(node.span, format!("the environment variable {name} is not set"));
            return None;
        };
        filled.extend([before, &value]);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// Complains about a name that is none of those that are known.
fn report_unknown<'a>(
    node: &Node,
    what: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    problems: &mut Problems,
) {
    let name = node.text().unwrap_or_default();
    let message = match closest(name, known.clone()) {
        Some(near) => format!("unknown {what} \"{name}\"; did you mean \"{near}\"?"),
        None => {
            let known = known.take(20).collect::<Vec<_>>();
            match known.is_empty() {
                true => format!("unknown {what} \"{name}\"; none is defined"),
                false => format!("unknown {what} \"{name}\"; there are {}", known.join(", ")),
            }
        }
    };
    problems.report(node.span, message);
}
