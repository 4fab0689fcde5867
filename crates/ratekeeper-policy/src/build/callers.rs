//! Builds identities and tiers.

use std::collections::HashMap;

use ipnet::IpNet;

use super::report_unknown;
use super::values::{boolean, end_to_end_header, integer, json_path, name, network};
use crate::client_ip::{ClientIp, ForwardedBy};
use crate::identity::{Identity, Source, WhenMissing};
use crate::policy::{Sources, Tiers};
use crate::problems::Problems;
use crate::yaml::Node;

/// The built-in identities.
const IP: &str = "ip";
const HOST: &str = "host";

/// Maximum number of identities; each request has a slot for every one.
const IDENTITIES_MAX: usize = 64;

/// Maximum number of tiers; each limit has a slot for every one.
const TIERS_MAX: usize = 100;

pub(super) struct Callers {
    pub(super) identities: Vec<Identity>,
    pub(super) client_ip: Option<ClientIp>,
    pub(super) tiers: Option<Tiers>,
}

impl Callers {
    pub(super) fn read(root: &Node, _: &dyn Sources, problems: &mut Problems) -> Self {
        let mut callers = Self { identities: Vec::new(), client_ip: None, tiers: None };
        let entries = root.get("identify").map_or(&[][..], Node::entries);
        if let Some((key, _)) = entries.get(IDENTITIES_MAX) {
            problems.report(key.span, format!("a policy has at most {IDENTITIES_MAX} identities"));
        }
        let entries = &entries[..entries.len().min(IDENTITIES_MAX)];
        let names: Vec<&str> = entries.iter().filter_map(|(key, _)| key.text()).collect();
        let built_in: Vec<&str> =
            [IP, HOST].into_iter().filter(|name| !names.contains(name)).collect();
        let names: Vec<&str> = names.iter().chain(&built_in).copied().collect();
        for (key, value) in entries {
            let has_token = root.get("jwt").is_some();
            callers.identity(key, value, &names, has_token, problems);
        }
        for name in built_in {
            let source = if name == IP { Source::ClientIp } else { Source::Host };
            let missing = WhenMissing::Anonymous;
            callers.identities.push(Identity { name: name.into(), source, missing });
        }
        callers.report_nesting(entries, problems);
        callers.tiers = root.get("tiers").map(|node| callers.read_tiers(node, problems));
        callers
    }

    fn identity(
        &mut self,
        key: &Node,
        value: &Node,
        names: &[&str],
        has_token: bool,
        problems: &mut Problems,
    ) {
        let own = name(key, "an identity", problems).unwrap_or_default();
        let source = self.source(value, names, problems).unwrap_or(Source::Custom);
        if own == IP && !matches!(source, Source::ClientIp) {
            problems.report(
                key.span,
                "\"ip\" is the client's address; give this identity another name",
            );
        }
        if matches!(source, Source::Claim(_)) {
            #[cfg(not(feature = "jwt"))]
            problems.report(key.span, "tokens need the feature \"jwt\" of this library");
            if !has_token {
                let why =
                    "without a \"jwt\" section to verify tokens, this identity is always missing";
                problems.warn(key.span, why);
            }
        }
        if let (Source::AllOf(_), Some(missing)) = (&source, value.get("missing")) {
            let why =
                "\"missing\" of an \"all_of\" is that of each of its identities; set it there";
            problems.report(missing.span, why);
        }
        let missing = match value.get("missing").and_then(Node::text) {
            Some("anonymous") => WhenMissing::Anonymous,
            Some("deny") => WhenMissing::Deny,
            _ => WhenMissing::Ip,
        };
        self.identities.push(Identity { name: own.to_string(), source, missing });
    }

    fn source(&mut self, value: &Node, names: &[&str], problems: &mut Problems) -> Option<Source> {
        let text = |node: &Node| node.text().map(str::to_string);
        let mut ids = |node: &Node| -> Vec<usize> {
            node.items().iter().filter_map(|node| find(node, names, problems)).collect()
        };
        if let Some(node) = value.get("first_of") {
            return Some(Source::FirstOf(ids(node)));
        }
        if let Some(node) = value.get("all_of") {
            return Some(Source::AllOf(ids(node)));
        }
        if let Some(node) = value.get("header") {
            let name = end_to_end_header(node, problems)?;
            warn_of_addresses(node, &name, problems);
            return Some(Source::Header(name));
        }
        if let Some(node) = value.get("request_json") {
            return json_path(node, problems).map(Source::RequestJson);
        }
        if let Some(node) = value.get("client_ip") {
            self.read_client_ip(node, problems);
            return Some(Source::ClientIp);
        }
        for field in ["custom", "host"] {
            if let Some(node) = value.get(field).filter(|node| boolean(node) == Some(false)) {
                problems.report(node.span, "omit this field instead of setting it to false");
            }
        }
        if value.get("host").is_some() {
            return Some(Source::Host);
        }
        let cookie = || value.get("cookie").and_then(text).map(Source::Cookie);
        let query = || value.get("query").and_then(text).map(Source::Query);
        let claim = || value.get("jwt_claim").and_then(text).map(Source::Claim);
        let constant =
            || value.get("constant").and_then(text).map(|text| Source::Constant(text.into()));
        let segment = || {
            let n = value.get("path_segment").and_then(integer)?;
            usize::try_from(n).ok().map(Source::PathSegment)
        };
        cookie().or_else(query).or_else(claim).or_else(constant).or_else(segment)
    }

    fn read_client_ip(&mut self, node: &Node, problems: &mut Problems) {
        if self.client_ip.is_some() {
            return problems
                .report(node.span, "there is already an identity with client_ip; use that one");
        }
        if boolean(node) == Some(false) {
            problems.report(node.span, "omit this field instead of setting it to false");
        }
        let proxies = node.get("trusted_proxies").map_or(&[][..], Node::items);
        let proxies = proxies.iter().filter_map(|node| proxy(node, problems)).collect();
        let forwarded_by = match node.get("forwarded_by").and_then(Node::text) {
            Some("forwarded") => ForwardedBy::Forwarded,
            Some("x-real-ip") => ForwardedBy::XRealIp,
            _ => ForwardedBy::XForwardedFor,
        };
        let prefix = |name: &str, otherwise: u8| {
            let n = node.get(name).and_then(integer);
            n.and_then(|n| u8::try_from(n).ok()).unwrap_or(otherwise)
        };
        let client_ip = ClientIp::new(proxies).with_source(forwarded_by);
        let client_ip =
            client_ip.with_prefixes(prefix("ipv4_prefix", 32), prefix("ipv6_prefix", 64));
        self.client_ip =
            client_ip.map_err(|error| problems.report(node.span, error.to_string())).ok();
    }

    /// Reports `first_of` and `all_of` that refer to each other, which could be cyclic.
    fn report_nesting(&self, entries: &[(Node, Node)], problems: &mut Problems) {
        for (id, (key, _)) in entries.iter().enumerate() {
            let is_plain = |id: &usize| {
                !matches!(self.identities[*id].source, Source::AllOf(_) | Source::FirstOf(_))
            };
            if let Source::FirstOf(ids) | Source::AllOf(ids) = &self.identities[id].source
                && !ids.iter().all(is_plain)
            {
                let why = "first_of and all_of cannot contain a first_of or all_of";
                problems.report(key.span, why);
            }
        }
    }

    /// Returns the identities that a limit counts by, with `all_of` expanded.
    pub(super) fn per(&self, node: Option<&Node>, problems: &mut Problems) -> Vec<usize> {
        let names: Vec<_> = self.names().collect();
        let nodes = node.map_or(&[][..], Node::items);
        let ids = nodes.iter().filter_map(|node| find(node, &names, problems));
        let parts = |id: usize| match &self.identities[id].source {
            Source::AllOf(ids) => ids.clone(),
            _ => vec![id],
        };
        ids.flat_map(parts).collect()
    }

    /// Returns the identities that are the user; the address of the client if absent.
    pub(super) fn user(&self, node: Option<&Node>, problems: &mut Problems) -> Vec<usize> {
        match node {
            Some(_) => self.per(node, problems),
            None => self.names().position(|name| name == IP).into_iter().collect(),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.identities.iter().map(|identity| identity.name.as_str())
    }

    fn read_tiers(&self, node: &Node, problems: &mut Problems) -> Tiers {
        let names: Vec<_> = self.names().collect();
        // If it is missing or unknown, 0 lets the other checks go on.
        let of = node.get("of").and_then(|node| find(node, &names, problems)).unwrap_or(0);
        if let Some(node) = node.get("of")
            && matches!(self.identities[of].source, Source::AllOf(_))
        {
            problems.report(node.span, "a tier is determined by one identity, not by an all_of");
        }
        let mut tiers = Tiers { of, names: Vec::new(), by_value: HashMap::new(), default: 0 };
        for node in node.get("names").map_or(&[][..], Node::items) {
            let Some(tier) = name(node, "a tier", problems) else { continue };
            let id = tiers.id(tier);
            self.add_member(&mut tiers, tier, id);
            if tiers.names.len() > TIERS_MAX {
                problems.report(node.span, format!("a policy has at most {TIERS_MAX} tiers"));
                break;
            }
        }
        for (key, value) in node.get("members").map_or(&[][..], Node::entries) {
            let (Some(member), Some(tier)) = (key.text(), name(value, "a tier", problems)) else {
                continue;
            };
            let id = tiers.id(tier);
            self.add_member(&mut tiers, member, id);
            if tiers.names.len() > TIERS_MAX {
                problems.report(value.span, format!("a policy has at most {TIERS_MAX} tiers"));
                break;
            }
        }
        if let Some(default) = node.get("default").and_then(|node| name(node, "a tier", problems)) {
            tiers.default = tiers.id(default);
        }
        tiers
    }

    /// Maps the canonical form of a value to a tier.
    fn add_member(&self, tiers: &mut Tiers, value: &str, tier: usize) {
        let of = match &self.identities[tiers.of].source {
            Source::FirstOf(ids) => ids.as_slice(),
            _ => std::slice::from_ref(&tiers.of),
        };
        for id in of {
            // An unknown name was reported before.
            let Some(identity) = self.identities.get(*id) else { continue };
            tiers.by_value.insert(identity.source.canonical(value).into_owned(), tier);
        }
    }

    /// Returns the index of a tier.
    pub(super) fn tier(&self, node: &Node, problems: &mut Problems) -> Option<usize> {
        let names = self.tiers.as_ref().map_or(&[][..], |tiers| &tiers.names);
        let found = names.iter().position(|name| Some(name.as_str()) == node.text());
        if found.is_none() {
            report_unknown(node, "tier", names.iter().map(String::as_str), problems);
        }
        found
    }
}

impl Tiers {
    fn id(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_string());
            self.names.len() - 1
        })
    }
}

/// Warns about headers with addresses, which a client can forge unless `client_ip` reads them.
fn warn_of_addresses(node: &Node, name: &str, problems: &mut Problems) {
    if ["x-forwarded-for", "forwarded", "x-real-ip"].contains(&name) {
        let why = format!(
            "clients can forge {name}; use client_ip with trusted_proxies, which reads it safely"
        );
        problems.warn(node.span, why);
    }
}

fn proxy(node: &Node, problems: &mut Problems) -> Option<IpNet> {
    let network = network(node, problems)?;
    if network.prefix_len() == 0 {
        let why = "this trusts every address, so that clients can forge theirs; list the proxies";
        problems.report(node.span, why);
    }
    Some(network)
}

fn find(node: &Node, names: &[&str], problems: &mut Problems) -> Option<usize> {
    let found = names.iter().position(|name| Some(*name) == node.text());
    if found.is_none() {
        report_unknown(node, super::IDENTITY, names.iter().copied(), problems);
    }
    found
}
