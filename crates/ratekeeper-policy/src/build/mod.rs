//! Builds a policy from its YAML tree. The schema was checked before, so values that violate it are
//! skipped silently; fields that contradict each other are reported.

mod amounts;
mod callers;
mod conditions;
mod costs;
mod dependencies;
mod limits;
mod protection;
mod response;
pub(crate) mod values;
mod warnings;

pub(crate) use conditions::is_standard_method;

use crate::client_ip::ClientIp;
use crate::index::{Index, SEARCHES_MAX, searches_of};
use crate::json_fields::{JsonPaths, PATHS_MAX};
use crate::policy::{Policy, Sources, StoreSettings};
use crate::problems::{Problems, quoted};
use crate::read_headers::{ReadHeaders, read_fields};
use crate::rule::LimitAction;
use crate::suggest::closest;
use crate::yaml::Node;

use callers::Callers;
use values::{boolean, duration, failure_mode, integer};

const SCHEMES: [&str; 12] = [
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+sentinel",
    "valkeys+sentinel",
    "valkey+cluster",
    "valkeys+cluster",
];

pub(crate) fn policy(root: &Node, sources: &dyn Sources, problems: &mut Problems) -> Policy {
    let callers = Callers::read(root, sources, problems);
    let priorities = conditions::priorities(root, &callers, problems);
    let shedding = protection::shedding(root, &priorities, &callers, problems);
    let store = store(root, sources, problems);
    let exempt = root.get("exempt").map_or(&[][..], Node::items);
    let exempt: Vec<_> =
        exempt.iter().map(|node| conditions::condition(node, &callers, problems)).collect();
    let written = limits::limits(root, &callers, &priorities.names, store.on_failure, problems);
    let dependencies = dependencies::dependencies(root, &callers, &written, problems);
    // Warnings assume that each limit is as it is written, which it is not after an error.
    if problems.is_empty() {
        warnings::warn(root, &written, &exempt, &callers, problems);
    }
    let limits: Vec<_> = written.into_iter().map(|limit| limit.rule).collect();
    let index = Index::new(&limits);
    let of_dependencies = dependencies.iter().filter_map(|dependency| dependency.on.as_ref());
    let conditions = exempt.iter().chain(priorities.conditions.iter().map(|(_, on)| on));
    let conditions = conditions.chain(of_dependencies);
    let searches = index.searches_max(&limits) + conditions.map(searches_of).sum::<usize>();
    check_searches(root, searches, problems);
    let Callers { identities, client_ip, tiers, .. } = callers;
    let policy = Policy {
        store,
        client_ip: client_ip.unwrap_or_else(|| ClientIp::new(Vec::new())),
        #[cfg(feature = "jwt")]
        tokens: crate::token::Tokens::read(root.get("jwt"), sources, problems),
        identities,
        tiers,
        classes: priorities.names,
        priorities: priorities.conditions,
        other_class: priorities.other,
        shedding,
        dependencies,
        exempt,
        index,
        serves_stale: limits
            .iter()
            .any(|limit| matches!(limit.when_limited, LimitAction::ServeStale(_))),
        limits,
        response_settings: response::response_settings(root.get("responses"), problems),
        refusals: response::refusal_settings(root.get("refusals")),
        file: problems.file().into(),
        warnings: Vec::new(),
        read_headers: ReadHeaders::default(),
        request_json: JsonPaths::default(),
    };
    let request_json = request_json(root, &policy, problems);
    let policy = Policy { request_json, ..policy };
    Policy { read_headers: ReadHeaders::of(&policy), ..policy }
}

/// Returns the fields of request bodies that a policy reads.
fn request_json(root: &Node, policy: &Policy, problems: &mut Problems) -> JsonPaths {
    let paths = read_fields(policy);
    if paths.len() > PATHS_MAX {
        let why = format!("a policy reads at most {PATHS_MAX} fields of request bodies");
        problems.report(root.span, why);
        return JsonPaths::default();
    }
    JsonPaths::new(paths)
}

/// Reports a policy whose patterns would let a hostile request take too much CPU time.
fn check_searches(root: &Node, searches: usize, problems: &mut Problems) {
    if searches <= SEARCHES_MAX {
        return;
    }
    let why = format!(
        "one request could be searched for {searches} patterns with text between two \"*\", such as \
         \"*a*\"; at most {SEARCHES_MAX}. Let them begin or end with text of their own, or be in limits \
         for different paths, hosts or methods"
    );
    problems.report(root.get("limits").unwrap_or(root).span, why);
}

fn store(root: &Node, sources: &dyn Sources, problems: &mut Problems) -> StoreSettings {
    let node = root.get("store");
    let get = |name: &str| node.and_then(|node| node.get(name));
    let url = get("url").and_then(|node| address(node, sources, problems));
    StoreSettings {
        url: url.filter(|url| url != "memory"),
        prefix: get("prefix").and_then(Node::text).map(Into::into),
        deadline: get("deadline").and_then(|node| duration(node, problems)),
        on_failure: get("on_failure").and_then(failure_mode).unwrap_or_default(),
        leased: get("leased").and_then(boolean).unwrap_or(false),
        keys_max: get("keys_max").and_then(integer).and_then(|n| usize::try_from(n).ok()),
    }
}

/// Returns the address of the store, with `${NAME}` replaced by environment variables.
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
            let name = quoted(name);
            problems.report(node.span, format!("the environment variable {name} is not set"));
            return None;
        };
        filled.extend([before, &value]);
        rest = after;
    }
    filled.push_str(rest);
    check_scheme(node, &filled, problems);
    Some(filled)
}

/// Checks the scheme of an address. The store checks the rest.
fn check_scheme(node: &Node, address: &str, problems: &mut Problems) {
    let scheme = address.split_once("://").map_or(address, |(scheme, _)| scheme);
    let is_address = address.contains("://");
    if address == "memory" || is_address && SCHEMES.contains(&scheme) {
        return;
    }
    let near = closest(scheme, SCHEMES.into_iter().chain(["memory"]));
    let message = match near {
        Some(near) if is_address => format!("unknown store; did you mean \"{near}://\"?"),
        Some(near) if near != "memory" => format!("an address starts with \"{near}://\""),
        Some(near) => format!("unknown store; did you mean \"{near}\"?"),
        None => "a store is memory, redis://…, rediss://…, redis+sentinel://… or redis+cluster://…"
            .into(),
    };
    problems.report(node.span, message);
}

/// Masks secrets in the lines that errors show, because errors are logged.
pub(crate) fn hide_secrets(root: &Node, problems: &mut Problems) {
    if let Some(secret) = root.get("jwt").and_then(|jwt| jwt.get("secret")) {
        problems.hide(secret.span);
    }
    if let Some(seed) = root.get("shedding").and_then(|shedding| shedding.get("seed")) {
        problems.hide(seed.span);
    }
    let Some(url) = root.get("store").and_then(|store| store.get("url")) else { return };
    let text = url.text().unwrap_or_default();
    if let (Some(start), Some(end)) = (text.find("://"), text.rfind('@')) {
        problems.hide(problems.span_of(url, start + 3..end.max(start + 3)));
    }
}

/// Reports an unknown name.
fn report_unknown<'a>(
    node: &Node,
    what: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    problems: &mut Problems,
) {
    if problems.is_full() {
        return problems.report(node.span, "");
    }
    let name = node.text().unwrap_or_default();
    let named = quoted(name);
    let message = match closest(name, known.clone()) {
        Some(near) => format!("unknown {what} {named}; did you mean \"{near}\"?"),
        None => {
            let known = known.take(20).map(quoted).collect::<Vec<_>>();
            match known.is_empty() {
                true => format!("unknown {what} {named}; none is defined"),
                false => {
                    let hint = if what == IDENTITY { IDENTITY_HINT } else { "" };
                    format!("unknown {what} {named}; known are {}{hint}", known.join(", "))
                }
            }
        }
    };
    problems.report(node.span, message);
}

/// What an identity is called in messages.
const IDENTITY: &str = "identity";
const IDENTITY_HINT: &str =
    "; to count by a header, define it first: identify: { key: { header: x-api-key } }";
