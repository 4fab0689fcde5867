//! Usage that Envoy reports at the end of a response (`apply_on_stream_done`), with the route of
//! `docs/envoy.md` and an upstream that streams.

use std::sync::Barrier;
use std::thread;

use ratekeeper_testkit::{ANY_PORT, Envoy, wait_until};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::client::Client;
use crate::docs::{block, start};
use crate::process::Server;

const FILE: &str = "
domain: shop
descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1000 } }]
";

/// Reads what the response has used, as an external processor of a gateway does.
const USAGE_FILTER: &str = r#"                  - name: envoy.filters.http.lua
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
                      default_source_code:
                        inline_string: |
                          function envoy_on_response(response)
                            local tokens = tonumber(response:headers():get("x-tokens"))
                            response:streamInfo():dynamicMetadata():set("usage", "total_tokens", tokens)
                          end
"#;

/// Returns the documented configuration with the documented route for usage.
fn config() -> String {
    let quick_start = block("admin:");
    let (before, rest) =
        quick_start.split_once("                            rate_limits:").unwrap();
    let (_, after) = rest.split_once("                http_filters:\n").unwrap();
    let indent = " ".repeat(26);
    let route = block("typed_per_filter_config:");
    let route: String = route.lines().map(|line| format!("{indent}{line}\n")).collect();
    format!("{before}{route}                http_filters:\n{USAGE_FILTER}{after}")
}

/// Streams responses of 600 tokens, each in two chunks, once `at_once` requests have arrived.
fn upstream(at_once: usize) -> Backend {
    let all_arrived = Barrier::new(at_once);
    Backend::start(move |head, wire| {
        if wire.try_body(&head).is_err() {
            return false;
        }
        let head = "HTTP/1.1 200 OK\r\nx-tokens: 600\r\ntransfer-encoding: chunked\r\n\r\n";
        let is_sent = wire.try_send(format!("{head}6\r\nevent \r\n")).is_ok();
        all_arrived.wait();
        is_sent && wire.try_send("4\r\ndone\r\n0\r\n\r\n").is_ok()
    })
}

fn get(envoy: &Envoy) -> u16 {
    let request = "GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n";
    Client::connect(envoy.address()).request(request).status()
}

/// Sends hits for the user, and returns what remains.
fn remaining(server: &Server, hits: &Value) -> u64 {
    let mut descriptor = json!({ "entries": [{ "key": "user", "value": "ann" }] });
    descriptor.as_object_mut().unwrap().extend(hits.as_object().unwrap().clone());
    let body = json!({ "domain": "shop", "descriptors": [descriptor] });
    let (_, response) = server.post("/json", &body);
    response["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)
}

fn look() -> Value {
    json!({ "hitsAddend": "0" })
}

#[test]
fn responses_are_served_until_their_usage_exhausts_the_limit() {
    let (app, server) = (upstream(1), Server::start_with(FILE, &["--grpc", ANY_PORT]));
    let envoy = start(&config(), &app, server.address().port());
    for left in [400, 0] {
        assert_eq!(get(&envoy), 200);
        wait_until("the usage is reported", || remaining(&server, &look()) == left);
    }
    for _ in 0..5 {
        assert_eq!(get(&envoy), 429);
    }
    assert_eq!(app.requests(), 2, "of 1000 tokens, responses of 600");
    // Both were charged in full: 200 are owed.
    let refund = json!({ "hitsAddend": "201", "isNegativeHits": true });
    assert_eq!(remaining(&server, &refund), 1);
}

#[test]
fn responses_that_end_together_are_all_charged() {
    let (app, server) = (upstream(5), Server::start_with(FILE, &["--grpc", ANY_PORT]));
    let envoy = start(&config(), &app, server.address().port());
    thread::scope(|scope| {
        let callers: Vec<_> = (0..5).map(|_| scope.spawn(|| get(&envoy))).collect();
        for caller in callers {
            assert_eq!(caller.join().unwrap(), 200, "each looked before any usage was known");
        }
    });
    wait_until("all usage is reported", || {
        envoy.stats("cluster.ratekeeper.upstream_rq_200").contains("upstream_rq_200: 10")
    });
    assert_eq!(get(&envoy), 429);
    // 3000 were charged: 2000 are owed.
    let refund = |hits: u64| json!({ "hitsAddend": hits.to_string(), "isNegativeHits": true });
    assert_eq!(remaining(&server, &refund(2000)), 0);
    assert_eq!(remaining(&server, &refund(1)), 1);
}
