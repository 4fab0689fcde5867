//! Parsing any text terminates quickly with a policy or with printable errors.

mod support;

use proptest::prelude::*;
use ratekeeper_policy::{NoSources, Policy, PolicyErrors};
use support::errors;

const SMALL: &str = "version: 1\nlimits:\n  - name: a\n    rate: 5/s\n";

fn parse(text: &str) -> Result<Policy, PolicyErrors> {
    Policy::parse("p.yaml", text, &NoSources)
}

/// Returns the errors, whose length is bounded.
fn parse_errors(text: &str) -> String {
    let shown = parse(text).map_or_else(|errors| errors.to_string(), |_| "ok".into());
    assert!(shown.len() < 60_000, "{} bytes", shown.len());
    shown
}

#[test]
fn encodings_and_line_ends_of_editors_are_accepted() {
    for text in [
        SMALL.to_string(),
        format!("\u{feff}{SMALL}"),
        SMALL.replace('\n', "\r\n"),
        format!("---\n{SMALL}...\n"),
        format!("# a comment\n{SMALL}"),
        "{ version: 1, limits: [ { name: a, rate: 5/s } ] }".to_string(),
        "{\"version\": 1, \"limits\": [{\"name\": \"a\", \"rate\": \"5/s\"}]}".to_string(),
    ] {
        assert_eq!(parse_errors(&text), "ok", "{text}");
    }
}

#[test]
fn positions_are_right_for_all_line_ends() {
    let wrong = SMALL.replace("rate: 5/s", "rate: 5/x");
    for text in [wrong.clone(), format!("\u{feff}{wrong}"), wrong.replace('\n', "\r\n")] {
        let shown = parse_errors(&text);
        assert!(shown.starts_with("p.yaml:4:13: unknown period \"x\""), "{shown}");
        assert!(shown.ends_with("4 |     rate: 5/x\n  |             ^"), "{shown}");
    }
}

#[test]
fn an_invalid_document_has_one_error() {
    let check = |text: &str, part: &str| {
        let shown = parse_errors(text);
        assert!(shown.contains(part), "{text:?}: {shown}");
        assert_eq!(shown.matches("p.yaml:").count(), 1, "{text:?}: {shown}");
    };
    check("", "the file is empty");
    check("# nothing\n", "the file is empty");
    check("[]", "expected a policy");
    check("- a\n- b\n", "expected a policy");
    check("just text", "expected a policy");
    check("~", "a value is missing");
    check("version: 1\nlimits: [\n", "p.yaml:2:9: this \"[\" is not closed with \"]\"");
    check("version: 1\n\tlimits: []\n", "p.yaml:2:1: this line is indented with a tab");
    check("version: 1\nlimits: []\n---\nversion: 1\n", "one document");
    check("version: 1\nlimits: []\n? [a, b]\n: c\n", "a name must be text");
    check("version: 1\nlimits: []\n: c\n", "unknown field \"\"");
    check("version: 1\nlimits: []\nlimits: []\n", "\"limits\" is here twice, first in line 2");
    check("version: 1\nlimits: *missing\n", "begins with * must be quoted");
    check("version: 1\nlimits: !<a [] \n", "this is not YAML");
    check("version: 1\nlimits: &a [ *a ]\n", "this alias contains itself");
    check("version: 2\nlimits: []\n", "expected 1, found \"2\"");
}

const BLOCKS: &str = "version: 1
identify:
  user:
    header: x-user
exempt:
  - path: /healthz
limits:
  - name: search
    match:
      method: GET
      path: /search
    rate: 5/s
    per:
      - user
      - ip
  - name: all
    rate: 100/minute
responses:
  body: json
";

/// Changes one line of `BLOCKS`.
fn with_line(number: usize, change: impl Fn(&str) -> String) -> String {
    let line = |(n, line): (usize, &str)| if n == number { change(line) } else { line.into() };
    BLOCKS.lines().enumerate().map(line).map(|line| line + "\n").collect()
}

/// Returns the mistakes that people make in one line.
fn mistakes(line: &str) -> Vec<String> {
    let content = line.trim_start();
    let indent = line.len() - content.len();
    let mut mistakes = vec![
        format!("{}\t{content}", &line[..indent]),
        format!("\t{content}"),
        line.replacen(':', "", 1),
        line.replacen(": ", ":", 1),
        line.replacen("- ", "-", 1),
        line.replacen("- ", "  ", 1),
        line.replacen("- ", "", 1),
    ];
    mistakes.extend((0..indent + 5).map(|spaces| " ".repeat(spaces) + content));
    mistakes
}

#[test]
fn mistakes_of_layout_are_not_explained_in_terms_of_the_grammar() {
    assert_eq!(parse_errors(BLOCKS), "ok");
    for number in 0..BLOCKS.lines().count() {
        for changed in mistakes(BLOCKS.lines().nth(number).unwrap()) {
            let text = with_line(number, |_| changed.clone());
            let shown = parse_errors(&text);
            assert!(!shown.contains("not YAML"), "{text}{shown}");
        }
    }
}

#[test]
fn the_line_of_a_mistake_of_layout_is_named() {
    let check = |number: usize, change: &dyn Fn(&str) -> String, part: &str| {
        let shown = parse_errors(&with_line(number - 1, change));
        assert!(shown.contains(&format!("p.yaml:{number}:")) && shown.contains(part), "{shown}");
    };
    let indented = |line: &str| format!(" {line}");
    check(8, &|line| line.replace("  -", "\t-"), "indented with a tab");
    check(12, &|line| line.replace(':', ""), "a colon is missing after \"rate\"");
    check(12, &|line| line.replace(": ", ":"), "a space is missing after \"rate:\"");
    check(12, &indented, "\"rate\" is indented");
    check(12, &|line| line[1..].to_string(), "\"rate\" is indented too little");
    check(16, &indented, "this dash is in column 4");
    check(16, &|line| line.replace("- ", ""), "a dash is missing");
    check(16, &|line| line.replace("- ", "-"), "a space is missing after the dash");
}

#[test]
fn all_problems_are_reported() {
    let errors = errors(
        "limts: []\nlimits:\n  - { match: { pth: / } }\n  - { nam: a, rate: 5/x, concurrency: 0 }\n",
    );
    for part in [
        "did you mean \"limits\"?",
        "needs \"name\": a name, and one of rate, concurrency",
        "did you mean \"path\"?",
        "did you mean \"name\"?",
        "unknown period",
        "not both",
        "from 1 to",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    // Consequences of a misspelling are not reported.
    assert_eq!(errors.matches(" needs ").count(), 1, "{errors}");
}

#[test]
fn secrets_are_not_shown() {
    let errors = errors(
        "jwt: { secret: hunter2, isuer: x }\nstore: { url: 'redis://u:passw0rd@h', dealine: 1s }\nlimits: []",
    );
    assert!(errors.contains("isuer") && errors.contains("dealine"), "{errors}");
    assert!(!errors.contains("hunter2") && !errors.contains("passw0rd"), "{errors}");
}

#[test]
fn secrets_are_not_shown_in_a_file_that_cannot_be_parsed() {
    for text in [
        "jwt:\n  secret hunter2\n  issuer: x\n",
        "jwt:\n  secret: hunter2: x\n",
        "jwt:\n  secret:hunter2\n  issuer: x\n",
        "jwt:\n  issuer: x\n    secret: hunter2\n",
        "jwt:\n\tsecret: hunter2\n",
        "jwt: { secret: hunter2\n",
        "store:\n  prefix: a\n    url: redis://u:hunter2@h\n",
        "store: { url: redis://hunter2@h, prefix: [a }\n",
    ] {
        let shown = errors(text);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

fn lines(n: usize, line: impl Fn(usize) -> String) -> String {
    (0..n).map(line).collect()
}

/// Texts that take long, or much memory, if anything is quadratic in their size.
fn bombs() -> Vec<(&'static str, String)> {
    let laughs = lines(30, |n| match n {
        0 => "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".into(),
        n => format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", ")),
    });
    let deep_alias = lines(200, |n| match n {
        0 => "n0: &n0 { not: { path: / } }\n".into(),
        n => format!("n{n}: &n{n} {}*n{}{}\n", "{ not: ".repeat(30), n - 1, " }".repeat(30)),
    });
    let limits = |of: &str| format!("version: 1\nlimits:\n{of}");
    let long = "x".repeat(400_000);
    vec![
        ("laughs", laughs),
        ("deep aliases", deep_alias),
        (
            "long aliases",
            format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), "*a, ".repeat(90_000)),
        ),
        (
            "many anchors",
            format!(
                "a: [{}]\nb: [{}]\n",
                lines(60_000, |n| format!("&a{n} x, ")),
                lines(60_000, |n| format!("*a{n}, "))
            ),
        ),
        ("deep lists", "[".repeat(300_000)),
        ("deep maps", "{a: ".repeat(200_000)),
        ("deep blocks", lines(3_000, |n| format!("{}a:\n", " ".repeat(n)))),
        ("dashes", "- ".repeat(300_000)),
        ("questions", "? ".repeat(300_000)),
        ("quotes", "\"".repeat(300_001)),
        ("one long word", long.clone()),
        (
            "long names",
            format!(
                "version: 1\nidentify: {{ {long}: {{ header: a }} }}\nlimits: [{{ name: a, rate: 1/s, per: {long}y }}]"
            ),
        ),
        ("unknown fields", lines(60_000, |n| format!("field-{n}: 1\n"))),
        (
            "identities",
            format!(
                "version: 1\nidentify:\n{}limits: []",
                lines(30_000, |n| format!("  i{n}: {{ header: a }}\n"))
            ),
        ),
        (
            "tiers",
            format!(
                "version: 1\ntiers:\n  of: ip\n  default: t\n  members:\n{}limits: []",
                lines(60_000, |n| format!("    k{n}: t{n}\n"))
            ),
        ),
        (
            "classes",
            format!(
                "version: 1\npriorities:\n{}limits: []",
                lines(25_000, |n| format!("  - {{ class: c{n}, match: {{ path: / }} }}\n"))
            ),
        ),
        (
            "paths",
            limits(&format!(
                "  - name: a\n    rate: 1/s\n    match: {{ path: [{}] }}\n",
                lines(90_000, |n| format!("/{n}, "))
            )),
        ),
        (
            "globs",
            limits(&format!(
                "  - name: a\n    rate: 1/s\n    match: {{ path: [{}] }}\n",
                lines(90_000, |n| format!("'/*{n}', "))
            )),
        ),
        (
            "headers",
            limits(&lines(9_000, |n| {
                format!("  - {{ name: l{n}, rate: 1/s, match: {{ header: {{ h{n}: v }} }} }}\n")
            })),
        ),
        ("limits", limits(&lines(25_000, |n| format!("  - {{ name: l{n}, rate: 1/s }}\n")))),
        ("one name", limits(&lines(25_000, |_| "  - { name: l, rate: 1/s }\n".into()))),
        (
            "invalid rates",
            limits(&lines(25_000, |n| format!("  - {{ name: l{n}, rate: {n}/x }}\n"))),
        ),
        (
            "invalid rates in a line",
            format!(
                "version: 1\nlimits: [{}]",
                lines(25_000, |n| format!("{{ name: l{n}, rate: {n}/x }}, "))
            ),
        ),
        (
            "unknown callers",
            limits(&lines(25_000, |n| format!("  - {{ name: l{n}, rate: 1/s, per: p{n} }}\n"))),
        ),
    ]
}

#[test]
fn parsing_time_and_memory_are_bounded() {
    for (name, text) in bombs() {
        let clock = stopwatch();
        parse_errors(&text);
        let took = clock();
        assert!(took < 20, "{name} took {took} s");
    }
}

/// CPU seconds of this process: other tests run in parallel.
fn stopwatch() -> impl Fn() -> u64 {
    let ticks = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default().to_string();
        let field = |n: usize| after_name.split(' ').nth(n).and_then(|t| t.parse::<u64>().ok());
        field(12).unwrap_or(0) + field(13).unwrap_or(0)
    };
    let start = ticks();
    move || (ticks() - start) / 100
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_is_parsed_or_rejected(text in any::<String>()) {
        parse_errors(&text);
    }

    #[test]
    fn any_mix_of_yaml_tokens_is_parsed_or_rejected(pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..60)) {
        parse_errors(&pieces.concat());
    }

    #[test]
    fn a_valid_file_with_one_mistake_is_parsed_or_rejected(at in 0..EXAMPLE.chars().count(), piece in prop::sample::select(PIECES.to_vec()), cut in 0..4_usize) {
        let before = EXAMPLE.chars().take(at);
        let text: String = before.chain(piece.chars()).chain(EXAMPLE.chars().skip(at + cut)).collect();
        parse_errors(&text);
    }
}

const PIECES: &[&str] = &[
    "version: 1\n",
    "limits:\n",
    "  - ",
    "name: a",
    "rate: 5/s",
    "\n",
    "  ",
    "\t",
    ": ",
    ", ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!str ",
    "|\n",
    ">\n",
    "'",
    "\"",
    "\\",
    "#",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "? ",
    "match: ",
    "path: ",
    "/a",
    "not: ",
    "identify: ",
    "tiers: ",
    "é",
    "\u{feff}",
    "\r",
    "\0",
    "~",
    "null",
    "<<: ",
    "100%",
    "-1",
    "9e99",
];

const EXAMPLE: &str = include_str!("policies/valid/design.yaml");

#[test]
fn a_megabyte_of_garbage_is_rejected() {
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    let text: String = (0..250_000).map(|_| PIECES[random() % PIECES.len()]).collect();
    parse_errors(&text);
    let text: String =
        (0..1_000_000).map(|_| char::from(u8::try_from(random() % 128).unwrap())).collect();
    parse_errors(&text);
}
