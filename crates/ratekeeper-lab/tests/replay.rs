//! Replays of logs: what they charge, and what they report.

use std::io::Cursor;
use std::sync::Arc;

use ratekeeper_lab::replay::{Logs, ReadOptions, ReplayOptions, ReplayResult, replay};
use ratekeeper_policy::{NoSources, Policy};

fn replayed(log: &str, policy: &str) -> ReplayResult {
    let policy = Arc::new(Policy::parse("policy.yaml", policy, &NoSources).unwrap());
    let inputs = [("access.log", Cursor::new(log.to_string()))];
    let logs = Logs::open(inputs, ReadOptions::default(), &[&policy]).unwrap();
    replay(logs, &policy, None, ReplayOptions::default())
}

/// A log of requests that begin every second and take half of one, with these fields.
fn json_log(requests: &[&str]) -> String {
    let line = |(second, fields): (usize, &&str)| {
        format!(
            "{{\"time_iso8601\":\"2026-10-10T13:55:{second:02}Z\",\"remote_addr\":\"192.0.2.1\",\
             \"request\":\"POST /v1/chat HTTP/1.1\",\"status\":200,\"request_time\":0.5,{fields}}}\n"
        )
    };
    requests.iter().enumerate().map(line).collect()
}

#[test]
fn usage_in_the_log_is_charged_when_the_response_ends() {
    let policy = "
version: 1
limits:
  - name: tokens
    per: ip
    rate: 1000/hour
    cost: { usage: openai, estimate: { default: 100 } }
    overdraft: true
";
    let log = json_log(&[
        r#""prompt_tokens":700,"completion_tokens":250"#,
        // 50 are left: it overdraws the limit by its usage, and the next is refused.
        r#""prompt_tokens":10,"completion_tokens":300"#,
        r#""prompt_tokens":1,"completion_tokens":1"#,
    ]);
    let result = replayed(&log, policy);
    assert_eq!(result.notes, Vec::<String>::new());
    assert_eq!((result.policies[0].admitted, result.policies[0].refused), (2, 1));
    let estimated = replayed(&json_log(&[r#""a":1"#; 3]), policy);
    assert!(estimated.notes[0].contains("the usage in response bodies"), "{:?}", estimated.notes);
    assert_eq!((estimated.policies[0].admitted, estimated.policies[0].refused), (3, 0));
}

#[test]
fn a_cost_in_a_response_header_is_charged_when_the_response_ends() {
    let policy = "
version: 1
limits:
  - { name: work, per: ip, rate: 10/hour, cost: { response_header: x-cost, default: 1, max: 100 } }
";
    let admitted = |costs: &[&str]| replayed(&json_log(costs), policy).policies[0].admitted;
    assert_eq!(admitted(&[r#""sent_http_x_cost":"9""#; 3]), 2, "9, and the default of the second");
    assert_eq!(admitted(&[r#""sent_http_x_cost":"1""#; 12]), 10);
    assert_eq!(admitted(&[r#""sent_http_x_cost":"0""#; 12]), 12);
}
