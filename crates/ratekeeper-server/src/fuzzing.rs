//! The parsers of untrusted input as functions of bytes, for fuzzers: none may panic or exceed its memory
//! bounds. `fuzz/` calls them with input of libFuzzer, `tests/hostile.rs` with mutations of valid examples.

use std::sync::LazyLock;

use ratekeeper::policy::envoy::{EnvoyConfig, RequestDescriptor};
use ratekeeper::policy::jwt::{JwtKey, JwtVerifier};
use ratekeeper::policy::path::{Glob, PathIndex, PathPattern, normalize};
use ratekeeper::policy::usage::{UsageFormat, UsageMeter};
use ratekeeper::policy::{NoSources, RequestAttributes};
use ratekeeper::{ALGORITHMS, Limit, ManualClock, Micros, Policy, PolicyLimiter, Rate};

pub use crate::serve::fuzzing::{descriptors, http_api, resp};

/// A name and a function of bytes.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets, by the names of their seeds.
pub const TARGETS: &[FuzzTarget] = &[
    ("descriptors", descriptors),
    ("envoy_files", envoy_files),
    ("http_api", http_api),
    ("policies", policies),
    ("rates", rates),
    ("requests", requests),
    ("resp", resp),
    ("tokens", tokens),
    ("usage", usage),
];

/// The time of all requests.
const NOW_SECS: u64 = 1_800_000_000;

/// Creates a limiter without limits, at a constant time.
pub(crate) fn limiter() -> PolicyLimiter {
    let clock = ManualClock::at(Micros::new(NOW_SECS * 1_000_000));
    let policy = Policy::parse("none", "version: 1\nlimits: []\n", &NoSources);
    PolicyLimiter::with_clock(policy.expect("a policy"), clock).expect("a limiter")
}

/// Parses rates and durations. A rate that is formatted parses to the same rate.
pub fn rates(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = ratekeeper_core::parse_duration(&text);
    match text.parse::<Rate>() {
        Ok(rate) => {
            assert_eq!(rate.to_string().parse(), Ok(rate));
            for algorithm in ALGORITHMS {
                let _ = Limit::new(rate, *algorithm);
            }
        }
        Err(error) => assert!(text.get(error.span()).is_some(), "{error}"),
    }
}

/// Parses policy files, and resolves requests with valid ones.
pub fn policies(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Policy::parse("policy.yaml", &text, &NoSources) {
        Ok(policy) => {
            let _ = policy.resolve(&RequestAttributes::new("GET", "/checkout/1"));
            let _ = policy.explain(&RequestAttributes::new("POST", "/"));
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
    let _ = Policy::one_line(&text);
}

/// Parses files of envoyproxy/ratelimit, and resolves descriptors with valid ones.
pub fn envoy_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match EnvoyConfig::parse(&[("limits.yaml".into(), text)]) {
        Ok(config) => {
            let descriptors = [
                RequestDescriptor::new([("key", "value")]),
                RequestDescriptor::new([("user", ""), ("a", "b")]),
            ];
            for domain in config.domains() {
                let _ = config.resolve(domain, &descriptors);
            }
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}

const POLICY: &str = "
version: 1
jwt: { secret: a secret that nobody would ever guess }
identify:
  user: { jwt_claim: sub }
  key: { header: x-api-key }
  ip: { client_ip: { trusted_proxies: [10.0.0.0/8] } }
exempt: [{ path: /healthz }, { ip: 10.9.0.0/16 }]
limits:
  - { name: checkout, match: { method: POST, path: [/checkout, /checkout/**] }, per: ip, rate: 5/s }
  - { name: api, per: key, rate: 10/s, match: { not: { path: /public/** } } }
  - { name: admin, match: { host: '*.example', path: /admin/** }, per: user, rate: 1/s }
";

/// Resolves requests: a line with a method and a target, then headers.
pub fn requests(bytes: &[u8]) {
    static POLICY_OF_REQUESTS: LazyLock<Policy> =
        LazyLock::new(|| Policy::parse("policy", POLICY, &NoSources).expect("a policy"));
    let text = String::from_utf8_lossy(bytes);
    let (line, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let once = normalize(path);
    // An escape is decoded once, which may produce another.
    assert!(once.contains('%') || normalize(&once) == once, "{once}");
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_string()))
    };
    let headers: Vec<_> = rest.lines().filter_map(pair).collect();
    let host = headers.iter().find(|(name, _)| name == "host").map(|(_, host)| host.as_str());
    let request = RequestAttributes {
        host,
        query: Some(query),
        headers: &headers,
        peer: Some([10, 0, 0, 1].into()),
        unix_secs: NOW_SECS,
        ..RequestAttributes::new(method, path)
    };
    let _ = POLICY_OF_REQUESTS.resolve(&request);
    let _ = POLICY_OF_REQUESTS.explain(&request);
    if let Ok(pattern) = PathPattern::parse(path) {
        let (mut index, mut is_found) = (PathIndex::new(), false);
        index.insert(&pattern, ());
        index.for_each_match(&once, |()| is_found = true);
        // A long segment may match without a search, but no match is missed.
        assert!(is_found || !pattern.matches(&once), "{path}");
    }
    let glob = Glob::new(path);
    assert!(!glob.matches(query.as_bytes()) || glob.matches_ignoring_case(query.as_bytes()));
}

/// Reads the usage of a response body: the same, however it is cut into pieces. The first byte says how.
pub fn usage(bytes: &[u8]) {
    let Some((size, body)) = bytes.split_first() else { return };
    let field = "usage.total_tokens".parse().expect("a field");
    for format in [UsageFormat::OpenAi, UsageFormat::Anthropic, UsageFormat::Json(field)] {
        for content_type in [&b"text/event-stream"[..], b"application/json"] {
            let read = |size: usize| {
                let mut meter = UsageMeter::new(format.clone(), Some(content_type));
                body.chunks(size).for_each(|piece| meter.feed(piece));
                meter.finish(true)
            };
            assert_eq!(read(usize::from(*size).max(1)), read(usize::MAX), "{format}");
        }
    }
}

/// Verifies tokens, and parses keys.
pub fn tokens(bytes: &[u8]) {
    static VERIFIER: LazyLock<JwtVerifier> = LazyLock::new(|| {
        let key = JwtKey::secret(b"a secret that nobody would ever guess").expect("a key");
        JwtVerifier::new(vec![key]).expect("a verifier")
    });
    let text = String::from_utf8_lossy(bytes);
    let _ = VERIFIER.verify(&text, NOW_SECS);
    let _ = JwtKey::pem(&text);
    if let Ok(verifier) = JwtKey::jwks(&text).and_then(|key| JwtVerifier::new(vec![key])) {
        let _ = verifier.verify("e30.e30.", NOW_SECS);
    }
}
