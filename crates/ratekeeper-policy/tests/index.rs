//! The index finds what a scan over all limits finds, and examines few others.

mod support;

use proptest::prelude::*;
use ratekeeper_policy::{LimitOutcome, Policy};
use support::generate::{limits, requests};
use support::{TestRequest, policy, show, show_one};

/// What every limit says for itself, one after the other.
fn scanned(policy: &Policy, request: &TestRequest) -> String {
    request.of(|request| {
        let explained = policy.explain(request).limits.into_iter();
        let applied = explained.filter_map(|verdict| match verdict.outcome {
            LimitOutcome::Applies(applied) => Some(applied),
            _ => None,
        });
        applied.flatten().map(|one| show_one(&one)).collect::<Vec<_>>().join(", ")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_finds_what_a_scan_finds(text in limits(), requests in prop::collection::vec(requests(), 20)) {
        let policy = policy(&text);
        for request in requests {
            let found = request.of(|request| show(&policy.resolve(request)));
            prop_assert_eq!(found, scanned(&policy, &request), "{:?}\n{}", request, text);
        }
    }
}

#[test]
fn limits_on_other_paths_hosts_and_headers_are_not_examined() {
    let mut text = "limits:\n".to_string();
    for n in 0..250 {
        text += &format!(
            "  - {{ name: p{n}, rate: 1/s, match: {{ method: GET, path: '/p{n}/{{id}}' }} }}\n"
        );
        text +=
            &format!("  - {{ name: h{n}, rate: 1/s, match: {{ host: h{n}.test, path: /** }} }}\n");
        text += &format!(
            "  - {{ name: x{n}, rate: 1/s, match: {{ method: GET, header: {{ x-key: k{n} }} }} }}\n"
        );
        text += &format!("  - {{ name: g{n}, rate: 1/s, match: {{ path: '/g/*-{n}' }} }}\n");
    }
    let policy = policy(&text);
    let examined = |line: &str| support::request(line).of(|request| policy.candidates(request));
    assert_eq!(examined("GET /"), [] as [&str; 0]);
    assert_eq!(examined("GET /p7/x host=H9.test:80 x-key:k3"), ["x3", "p7", "h9"]);
    assert_eq!(examined("GET /g/a-24"), ["g24"]);
}
