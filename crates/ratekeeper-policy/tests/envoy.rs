//! Files of envoyproxy/ratelimit: valid ones are accepted, invalid ones are rejected with recorded errors, and requests
//! find their limits.
//!
//! To accept what has changed: `SNAPSHOTS=overwrite cargo test -p ratekeeper-policy --test envoy`.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use ratekeeper_policy::envoy::{
    DescriptorLimit, DescriptorQuota, EnvoyConfig, EnvoyErrors, RequestDescriptor, SharedDomains,
    Unit,
};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy").join(folder);
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "yaml"));
    files.sort();
    files
}

fn parse_file(file: &Path) -> Result<EnvoyConfig, EnvoyErrors> {
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    EnvoyConfig::parse(&[(name, fs::read_to_string(file).unwrap())])
}

fn parse(text: &str) -> EnvoyConfig {
    let parsed = EnvoyConfig::parse(&[("limits.yaml".into(), text.into())]);
    parsed.unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn good_files_are_read() {
    for file in files("valid") {
        if let Err(errors) = parse_file(&file) {
            panic!("{errors}");
        }
    }
}

#[test]
fn bad_files_are_explained() {
    for file in files("invalid") {
        let shown = match parse_file(&file) {
            Ok(_) => panic!("{} is valid", file.display()),
            Err(errors) => format!("{errors}\n"),
        };
        let snapshot = file.with_extension("errors");
        if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
            fs::write(&snapshot, &shown).unwrap();
        }
        let expected = fs::read_to_string(&snapshot).unwrap_or_default();
        assert_eq!(shown, expected, "{}", snapshot.display());
    }
}

#[test]
fn one_invalid_file_rejects_the_set_and_all_are_reported() {
    let set = [("a.yaml", "domain: a"), ("b.yaml", "domain: a"), ("c.yaml", "dom: c")];
    let set = set.map(|(name, text)| (name.to_string(), text.to_string()));
    let shown = EnvoyConfig::parse(&set).unwrap_err().to_string();
    assert!(shown.contains("b.yaml:1:9: the domain is already in a.yaml"), "{shown}");
    assert!(shown.contains("c.yaml:1:1: unknown field \"dom\""), "{shown}");
}

fn parse_both(shared: SharedDomains, one: &str, other: &str) -> Result<EnvoyConfig, EnvoyErrors> {
    let files = [("a.yaml", one), ("b.yaml", other)];
    let files = files.map(|(name, text)| (name.to_string(), format!("domain: d\n{text}")));
    EnvoyConfig::parse_with(&files, shared)
}

#[test]
fn files_of_one_domain_can_be_merged() {
    let key = |key: &str, count: u32| {
        format!("descriptors: [{{ key: {key}, rate_limit: {{ rate: {count}/s }} }}]")
    };
    let config = parse_both(SharedDomains::Merge, &key("key1", 10), &key("key2", 20)).unwrap();
    check(&config, "key1=a", "fixed_window 10/s [key1=a]");
    check(&config, "key2=a", "fixed_window 20/s [key2=a]");
    let twice = parse_both(SharedDomains::Merge, &key("key1", 10), &key("key1", 20)).unwrap_err();
    assert!(twice.to_string().contains("b.yaml:2:15: \"key1\" is here twice"), "{twice}");
    let rejected = parse_both(SharedDomains::Reject, &key("key1", 10), &key("key2", 20));
    assert!(rejected.unwrap_err().to_string().contains("MERGE_DOMAIN_CONFIG"));
}

#[test]
fn limits_of_two_domains_with_one_name_are_distinct() {
    let file = |domain: &str| {
        let text = "descriptors: [{ key: k, rate_limit: { name: same, rate: 1/s } }]";
        (domain.to_string(), format!("domain: {domain}\n{text}"))
    };
    let config = EnvoyConfig::parse(&[file("one"), file("two")]).unwrap();
    let ids =
        config.limits().iter().map(|limit| (limit.domain(), limit.label())).collect::<Vec<_>>();
    assert_eq!(ids, [("one", "same"), ("two", "same")]);
    config.limits()[0].note_look();
    let mut next = EnvoyConfig::parse(&[file("one"), file("two")]).unwrap();
    next.inherit_looks(&config);
    let looked_at: Vec<_> = next.limits().iter().map(|limit| limit.takes_reports()).collect();
    assert_eq!(looked_at, [true, false]);
}

/// Returns what is charged for `k=1` by a limit with this number.
fn with_number(number: &str) -> Result<String, EnvoyErrors> {
    let text = format!(
        "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ unit: hour, requests_per_unit: {number} }} }}]"
    );
    let config = EnvoyConfig::parse(&[("limits.yaml".into(), text)])?;
    Ok(resolved(&config, "d", "k=1"))
}

#[test]
fn numbers_are_read_as_envoyproxy_ratelimit_does() {
    for (number, count) in
        [("10", 10), ("010", 8), ("0o10", 8), ("0x10", 16), ("0b11", 3), ("1_000", 1000), ("+5", 5)]
    {
        let expected = format!("fixed_window {count}/h [k=1]");
        assert_eq!(with_number(number).unwrap(), expected, "{number}");
    }
    // As quoted numbers are unambiguous otherwise, only a leading 0 is an error in them.
    assert_eq!(with_number("'10'").unwrap(), "fixed_window 10/h [k=1]");
    for number in ["08", "'010'", "1.5", "1e3", "-1", "0x", "ten", "5_000_000_000"] {
        assert!(with_number(number).is_err(), "{number}");
    }
    let error = with_number("08").unwrap_err().to_string();
    assert!(error.contains("a leading 0 means octal; write 8"), "{error}");
}

#[test]
fn booleans_and_nulls_are_read_as_envoyproxy_ratelimit_does() {
    for (word, mode) in [
        ("yes", " shadow"),
        ("On", " shadow"),
        ("y", " shadow"),
        ("TRUE", " shadow"),
        ("no", ""),
        ("off", ""),
        ("False", ""),
    ] {
        let config = parse(&format!(
            "domain: d\ndescriptors: [{{ key: k, value: Null, shadow_mode: {word}, rate_limit: {{ rate: 1/s }} }}]"
        ));
        check(&config, "k=1", &format!("fixed_window 1/s{mode} [k=1]"));
    }
    // Text stays as it is written.
    let config =
        parse("domain: 010\ndescriptors: [{ key: on, value: yes, rate_limit: { rate: 1/s } }]");
    assert_eq!(resolved(&config, "010", "on=yes on=true"), "fixed_window 1/s [on=yes], -");
}

#[test]
fn merge_keys_are_applied() {
    let config = parse(
        "
domain: d
descriptors:
  - &base
    key: a
    shadow_mode: yes
    rate_limit: &limit { unit: minute, requests_per_unit: 5 }
  - { <<: *base, key: b }
  - key: c
    rate_limit: { <<: *limit, unit: hour }
  - key: e
    rate_limit: { <<: [{ unit: day }, *limit] }
",
    );
    check(&config, "a=1", "fixed_window 5/m shadow [a=1]");
    check(&config, "b=1", "fixed_window 5/m shadow [b=1]");
    check(&config, "c=1", "fixed_window 5/h [c=1]");
    check(&config, "e=1", "fixed_window 5/d [e=1]");
}

#[test]
fn metadata_belongs_to_the_limits_of_its_descriptor() {
    let config = parse(
        "
domain: d
descriptors:
  - key: k
    rate_limit: { rate: 1/s }
    metadata: { service: { name: service_1, replicas: 010, canary: no }, tags: [a, '1'] }
",
    );
    let expected = serde_json::json!({
        "service": { "name": "service_1", "replicas": 8, "canary": false },
        "tags": ["a", "1"],
    });
    assert_eq!(config.limits()[0].metadata(), expected.as_object());
}

#[test]
fn every_file_in_the_documentation_is_valid() {
    let docs = include_str!("../../../docs/envoy.md");
    let blocks = docs.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    // The others are for Envoy itself.
    let blocks = blocks.filter(|block| block.starts_with("domain:"));
    assert_eq!(blocks.map(|block| parse(block).limits().len()).collect::<Vec<_>>(), [2, 3, 2]);
}

/// A descriptor as one word: `key=value,key=value`, and `!5/minute` for a limit of its own.
fn descriptor(word: &str) -> RequestDescriptor {
    let (entries, limit) = word.split_once('!').map_or((word, None), |(e, l)| (e, Some(l)));
    let entries = entries.split(',').filter_map(|entry| entry.split_once('='));
    let descriptor = RequestDescriptor::new(entries);
    let Some((count, unit)) = limit.and_then(|limit| limit.split_once('/')) else {
        return descriptor;
    };
    descriptor.limited_to(count.parse().unwrap(), Unit::named(unit).unwrap())
}

fn show_limit(limit: &DescriptorLimit) -> String {
    let amount = match limit.quota() {
        DescriptorQuota::Rate(limit) => limit.to_string(),
        DescriptorQuota::Unlimited => "unlimited".into(),
        DescriptorQuota::DenyAll(_) => "nothing".into(),
    };
    let name = if limit.name().is_empty() { String::new() } else { format!("{} ", limit.name()) };
    let shadow = if limit.is_shadow() { " shadow" } else { "" };
    let quota = if limit.is_quota() { " quota" } else { "" };
    format!("{name}{amount}{shadow}{quota}")
}

/// What the descriptors of a request are charged to.
fn resolved(config: &EnvoyConfig, domain: &str, request: &str) -> String {
    let descriptors: Vec<_> = request.split(' ').map(descriptor).collect();
    let found = config.resolve(domain, &descriptors);
    let show = |matched: &Option<_>| {
        let Some(matched): &Option<ratekeeper_policy::envoy::MatchedLimits<'_>> = matched else {
            return "-".to_string();
        };
        let limits: Vec<_> = matched.limits().iter().map(|limit| show_limit(limit)).collect();
        format!("{} [{}]", limits.join(" + "), matched.key())
    };
    found.iter().map(show).collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn check(config: &EnvoyConfig, request: &str, expected: &str) {
    assert_eq!(resolved(config, "d", request), expected, "{request}");
}

#[test]
fn the_most_exact_descriptor_counts() {
    let config = parse(
        "
domain: d
descriptors:
  - { key: path, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: path, value: /a/*, rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: path, value: /a/*/c, rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: path, value: '*.png', rate_limit: { unit: second, requests_per_unit: 4 } }
  - { key: path, value: /a/b, rate_limit: { unit: second, requests_per_unit: 5 } }
  - { key: kind, value: api, rate_limit: { unit: second, requests_per_unit: 6 } }
",
    );
    check(&config, "path=/", "fixed_window 1/s [path=/]");
    check(&config, "path=", "fixed_window 1/s [path=]");
    check(&config, "path=/a/b", "fixed_window 5/s [path=/a/b]");
    check(&config, "path=/a/", "fixed_window 2/s [path=/a/]");
    // Wildcards are tried in the order of the file.
    check(&config, "path=/a/b/c", "fixed_window 2/s [path=/a/b/c]");
    check(&config, "path=/a/x.png", "fixed_window 2/s [path=/a/x.png]");
    check(&config, "path=/x.png", "fixed_window 4/s [path=/x.png]");
    check(&config, "path=/a", "fixed_window 1/s [path=/a]");
    check(&config, "kind=api", "fixed_window 6/s [kind=api]");
    check(&config, "kind=web", "-");
    check(&config, "other=api", "-");
    check(
        &config,
        "path=/ kind=web path=/",
        "fixed_window 1/s [path=/], -, fixed_window 1/s [path=/]",
    );
    assert_eq!(resolved(&config, "other", "path=/"), "-");
}

#[test]
fn a_limit_counts_at_the_full_depth_only() {
    let config = parse(
        "
domain: d
descriptors:
  - key: a
    rate_limit: { unit: minute, requests_per_unit: 1 }
    descriptors:
      - key: b
        value: x
        descriptors:
          - { key: c, rate_limit: { unit: hour, requests_per_unit: 3 } }
      - key: b
        rate_limit: { unit: minute, requests_per_unit: 2 }
",
    );
    check(&config, "a=1", "fixed_window 1/m [a=1]");
    check(&config, "a=1,b=2", "fixed_window 2/m [a=1;b=2]");
    check(&config, "a=1,b=x,c=3", "fixed_window 3/h [a=1;b=x;c=3]");
    // The exact value is not left again for one that would have a limit.
    check(&config, "a=1,b=x", "-");
    check(&config, "a=1,b=2,c=3", "-");
    check(&config, "a=1,z=2", "-");
    check(&config, "b=2", "-");
    check(&config, "b=2,a=1", "-");
}

#[test]
fn a_limit_replaces_others_of_the_same_request() {
    let config = parse(
        "
domain: d
descriptors:
  - { key: any, rate_limit: { name: any, unit: second, requests_per_unit: 1 } }
  - key: vip
    rate_limit: { name: vip, unit: second, requests_per_unit: 9, replaces: [{ name: any }] }
  - key: two
    rate_limits: [{ name: any, rate: 2/s }, { name: more, rate: 3/minute }]
",
    );
    check(&config, "any=1", "any fixed_window 1/s [any=1]");
    check(&config, "any=1 vip=1", "-, vip fixed_window 9/s [vip=1]");
    check(&config, "vip=1 any=1", "vip fixed_window 9/s [vip=1], -");
    check(&config, "vip=1 two=1", "vip fixed_window 9/s [vip=1], more fixed_window 3/m [two=1]");
}

#[test]
fn there_are_all_kinds_of_amounts() {
    let config = parse(
        "
domain: d
descriptors:
  - { key: free, rate_limit: { unlimited: true } }
  - { key: closed, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: Year, requests_per_unit: 1 } }
  - { key: quota, quota_mode: true, rate_limit: { unit: WEEK, requests_per_unit: 1 } }
  - { key: burst, rate_limit: { period: 10s, requests_per_unit: 5, burst: 7 } }
  - { key: log, rate_limit: { unit: month, requests_per_unit: 5, algorithm: sliding_log } }
  - { key: rate, rate_limit: { rate: 100/minute burst 20, algorithm: leaky_bucket } }
  - { key: two, rate_limits: [{ rate: 1/s }, { rate: 10/minute, name: second }] }
  - { key: shared, value: a*, share_threshold: true, rate_limit: { rate: 1/s } }
",
    );
    check(&config, "free=1", "unlimited [free=1]");
    check(&config, "closed=1", "nothing [closed=1]");
    check(&config, "shadow=1", "fixed_window 1/year shadow [shadow=1]");
    check(&config, "quota=1", "fixed_window 1/week quota [quota=1]");
    check(&config, "burst=1", "token_bucket 5/10s burst 7 [burst=1]");
    check(&config, "log=1", "sliding_log 5/month [log=1]");
    check(&config, "rate=1", "leaky_bucket 100/m burst 20 [rate=1]");
    check(&config, "two=1", "fixed_window 1/s + second fixed_window 10/m [two=1]");
    check(
        &config,
        "shared=ab shared=ac",
        "fixed_window 1/s [shared~a*], fixed_window 1/s [shared~a*]",
    );
    check(&config, "shared=b", "-");
}

#[test]
fn a_unit_in_a_time_zone_is_one_of_the_calendar() {
    let config = parse(
        "
domain: d
descriptors:
  - { key: day, rate_limit: { unit: DAY, requests_per_unit: 5, time_zone: europe/berlin } }
  - { key: month, rate_limit: { unit: month, requests_per_unit: 5, first_day: 15 } }
  - { key: both, rate_limit: { unit: month, requests_per_unit: 5, time_zone: UTC, first_day: 31 } }
  - { key: closed, rate_limit: { unit: week, requests_per_unit: 0, time_zone: Asia/Tokyo } }
  - { key: rate, rate_limit: { rate: 5/calendar week in Asia/Tokyo } }
",
    );
    check(&config, "day=1", "fixed_window 5/calendar day in Europe/Berlin [day=1]");
    check(&config, "month=1", "fixed_window 5/calendar month from day 15 [month=1]");
    check(&config, "both=1", "fixed_window 5/calendar month from day 31 [both=1]");
    check(&config, "closed=1", "nothing [closed=1]");
    check(&config, "rate=1", "fixed_window 5/calendar week in Asia/Tokyo [rate=1]");
    let units = ["day", "month", "closed", "rate"].map(|key| {
        let found = config.resolve("d", &[descriptor(&format!("{key}=1"))]);
        found[0].as_ref().unwrap().limits()[0].unit()
    });
    assert_eq!(units, [Unit::Day, Unit::Month, Unit::Week, Unit::Week].map(Some));
}

#[test]
fn a_request_may_bring_its_own_limit() {
    let config = parse("domain: d\ndescriptors: [{ key: a, rate_limit: { rate: 1/s } }]");
    check(&config, "a=1!5/minute", "fixed_window 5/m [a=1]");
    check(&config, "new=1,b=2!5/hour", "fixed_window 5/h [new=1;b=2]");
    check(&config, "a=1!0/hour", "nothing [a=1]");
    assert_eq!(resolved(&config, "elsewhere", "a=1!5/day"), "fixed_window 5/d [a=1]");
}

/// What counts are kept under.
fn scopes(text: &str) -> Vec<(String, String)> {
    let config = parse(text);
    let of = |limit: &&DescriptorLimit| match limit.quota() {
        DescriptorQuota::Rate(rate) => (limit.label().to_string(), rate.name().to_string()),
        _ => panic!("only rates are counted"),
    };
    config.limits().iter().map(of).collect()
}

#[test]
fn counts_carry_over_when_numbers_names_and_neighbours_change() {
    let before = scopes("domain: d\ndescriptors: [{ key: a, rate_limit: { rate: 1/s } }]");
    let after = scopes(
        "
domain: d
descriptors:
  - { key: b, rate_limit: { rate: 3/s } }
  - { key: a, rate_limits: [{ rate: 2/s, name: first }, { rate: 9/h }, { rate: 20/d, name: daily }] }
",
    );
    assert_eq!(before, [("d.a".to_string(), "envoy/d".to_string())]);
    let after: Vec<_> = after.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let expected = [
        ("d.a#2", "envoy/d#2"),
        ("d.b", "envoy/d"),
        ("daily", "envoy/d#daily"),
        ("first", "envoy/d"),
    ];
    assert_eq!(after, expected);
}

fn lines() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "domain",
        "descriptors",
        "key",
        "value",
        "rate_limit",
        "rate_limits",
        "unit",
        "minute",
        "requests_per_unit",
        "unlimited",
        "true",
        "replaces",
        "name",
        "rate",
        "5/s",
        "period",
        "10s",
        "burst",
        "3",
        "0",
        "99999999999",
        "algorithm",
        "token_bucket",
        "shadow_mode",
        "a*",
        "'*'",
        "''",
    ]);
    let marks = prop::sample::select(vec![
        ": ",
        ":\n  ",
        "\n",
        "\n  - ",
        "\n      - ",
        "{ ",
        " }",
        "[",
        "]",
        ", ",
    ]);
    let parts = prop::collection::vec((words, marks), 0..40);
    parts.prop_map(|parts| parts.into_iter().flat_map(|(word, mark)| [word, mark]).collect())
}

proptest! {
    #[test]
    fn any_text_is_read_or_explained(text in ".{0,200}") {
        let _ = EnvoyConfig::parse(&[("x.yaml".into(), text)]);
    }

    #[test]
    fn anything_like_a_file_is_read_or_explained(text in lines()) {
        let text = format!("domain: d\ndescriptors:\n  - {text}");
        if let Err(errors) = EnvoyConfig::parse(&[("x.yaml".into(), text)]) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    #[test]
    fn different_requests_have_different_keys(one in "[ab=;~\\\\]{0,4}", other in "[ab=;~\\\\]{0,4}") {
        let config = parse("domain: d\ndescriptors: [{ key: a, rate_limit: { rate: 1/s } }]");
        let found = config.resolve("d", &[&one, &other].map(|value| RequestDescriptor::new([("a", value.as_str())])));
        let keys: Vec<_> = found.iter().flatten().map(|matched| matched.key()).collect();
        prop_assert_eq!(keys[0] == keys[1], one == other);
    }
}
