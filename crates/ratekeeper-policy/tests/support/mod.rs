//! Short notation for requests and policies.
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub(crate) mod generate;

use ratekeeper_policy::{AppliedLimit, Headers, NoSources, Policy, RequestAttributes, Resolution};

/// Parses a policy, without its version.
pub(crate) fn policy(text: &str) -> Policy {
    match Policy::parse("policy.yaml", &format!("version: 1\n{text}"), &NoSources) {
        Ok(policy) => policy,
        Err(errors) => panic!("{errors}"),
    }
}

/// Returns the errors of a policy.
pub(crate) fn errors(text: &str) -> String {
    let parsed = Policy::parse("policy.yaml", &format!("version: 1\n{text}"), &NoSources);
    parsed.expect_err("the policy is invalid").to_string()
}

/// Headers as bytes, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(pub(crate) Vec<(String, Vec<u8>)>);

impl Headers for Lines {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        let named = self.0.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.for_each(|(_, value)| show(value));
    }
}

/// A request as one line: `POST /path?query host=… peer=… name:value name:value`, with + for a blank.
#[derive(Clone, Debug)]
pub(crate) struct TestRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) peer: Option<std::net::IpAddr>,
    pub(crate) headers: Lines,
    pub(crate) unix_secs: u64,
}

pub(crate) fn request(line: &str) -> TestRequest {
    let mut words = line.split(' ');
    let method = words.next().unwrap().to_string();
    let target = words.next().unwrap();
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let mut request = TestRequest {
        method,
        path: path.into(),
        query: query.map(Into::into),
        host: None,
        peer: Some([192, 0, 2, 1].into()),
        headers: Lines::default(),
        unix_secs: 1_800_000_000,
    };
    for word in words {
        match (word.split_once('='), word.split_once(':')) {
            (Some(("host", host)), _) => request.host = Some(host.into()),
            (Some(("peer", peer)), _) => request.peer = peer.parse().ok(),
            (_, Some((name, value))) => {
                request.headers.0.push((name.into(), value.replace('+', " ").into_bytes()));
            }
            _ => panic!("what is {word}?"),
        }
    }
    request
}

impl TestRequest {
    pub(crate) fn of<T>(&self, act: impl FnOnce(&RequestAttributes<'_>) -> T) -> T {
        act(&RequestAttributes {
            host: self.host.as_deref(),
            query: self.query.as_deref(),
            headers: &self.headers,
            peer: self.peer,
            unix_secs: self.unix_secs,
            ..RequestAttributes::new(&self.method, &self.path)
        })
    }
}

/// What a request is charged to: `name key` for each, with what is out of the ordinary.
pub(crate) fn resolved(policy: &Policy, request: &str) -> String {
    self::request(request).of(|request| show(&policy.resolve(request)))
}

pub(crate) fn show(resolution: &Resolution<'_>) -> String {
    match resolution {
        Resolution::Exempt(n) => format!("exempt {n}"),
        Resolution::MissingIdentity { rule, missing } => {
            format!("rejected by {}: {} {}", rule.name(), missing.identity, missing.why)
        }
        Resolution::Charged(applied) => applied.iter().map(show_one).collect::<Vec<_>>().join(", "),
    }
}

pub(crate) fn show_one(one: &AppliedLimit) -> String {
    let share = if one.is_share() { " share" } else { "" };
    let cost =
        if one.cost.get() == 1 { String::new() } else { format!(" cost {}", one.cost.get()) };
    let shadow = if one.is_enforced { "" } else { " shadow" };
    format!("{}{share} {}{cost}{shadow}", one.rule.name(), one.key)
}

#[track_caller]
pub(crate) fn check(policy: &Policy, request: &str, expected: &str) {
    assert_eq!(resolved(policy, request), expected, "{request}");
}
