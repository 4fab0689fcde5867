//! The pages of the console that show refusals and protection, and that try things out.

use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::upstream::{Backend, respond};
use ratekeeper_testkit::{Browser, Listener, ServerBuilder};
use serde_json::json;

use crate::support::{POLICY, assert_clean, file, open, send, serve};

#[test]
fn a_refusal_is_listed_and_explained_and_decided_again() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let browser = Browser::start();
    open(&browser, &server, "refusals");
    browser.wait_for("main", "Nothing that matches.");
    send(&server, "ann", "/search", 6);
    send(&server, "<b>bob</b>", "/", 4);
    browser.wait_for("tbody", "refused\tuser=ann\thttp");
    browser.wait_for("tbody", "would be refused\tuser=<b>bob</b>\thttp");
    assert_eq!(browser.count("main b"), 0);
    browser.screenshot("console-refusals");
    browser.fill("#key", "ann");
    browser.run("document.querySelector('#outcome').value = 'denied'", &[]);
    browser.run("document.querySelector('#outcome').dispatchEvent(new Event('change'))", &[]);
    browser.wait_for("main [role=status]", "1 of 1 that match.");
    browser.fill("#limit", "trial");
    browser.wait_for("main", "Nothing that matches.");
    browser.run("document.querySelector('#limit').value = ''", &[]);
    browser.run("document.querySelector('#limit').dispatchEvent(new Event('input'))", &[]);
    browser.wait_for("tbody tr", "search");

    browser.click("tbody td:last-child a");
    browser.wait_for("tbody", "bit for bit");
    assert!(browser.text("tbody").contains(&format!("{}:5", policy.path().display())));
    browser.fill("#rate", "50/hour");
    browser.click("form button");
    browser.wait_for("tbody", "With 50/h");
    browser.screenshot("console-refusal");
    assert_clean(&browser, &server);
}

const PROTECTED: &str = "\
version: 1
priorities:
  - { class: checkout, match: { path: /checkout } }
  - { class: users }
  - { class: batch, match: { path: /batch/** } }
shedding: { queue_time: 50ms }
dependencies:
  inventory: { match: { path: /stock }, breaker: { consecutive_failures: 3, wait: 1h, probes: 1 } }
limits:
  - { name: service, concurrency: { adaptive: { min: 5, initial: 20, max: 100 }, queue: { max: 100, wait: 500ms } } }
";

#[test]
fn protection_shows_permits_classes_breakers_and_upstreams() {
    let backend = Backend::start(move |head, wire| {
        _ = wire.try_body(&head);
        match head.target() == "/stock" {
            true => wire.try_send("HTTP/1.1 500 Failing\r\nContent-Length: 0\r\n\r\n").is_ok(),
            false => respond(wire, "hello"),
        }
    });
    let policy = file(PROTECTED);
    let gateway = ServerBuilder::gateway(env!("CARGO_BIN_EXE_ratekeeper"))
        .listen(&[Listener::Gateway, Listener::Admin])
        .args(["--upstream", &backend.url(), policy.path().to_str().unwrap()])
        .start();
    let mut client = Client::connect(gateway.gateway());
    (0..10).for_each(|_| assert_eq!(client.get("/").status(), 200));
    (0..3).for_each(|_| assert_eq!(client.get("/stock").status(), 500));
    assert_eq!(client.get("/stock").status(), 503);
    let browser = Browser::start();
    open(&browser, &gateway, "protection");
    browser.wait_for("[aria-label=Upstreams] tbody", &format!("{}\tup", backend.address()));
    browser.wait_for("[aria-label='Limits with permits'] tbody", "service\tadaptive");
    browser.wait_for("[aria-label='Load shedding'] tbody", "users\tadmits all");
    browser.wait_for("[aria-label='Load shedding'] tbody", "batch\tadmits all");
    browser.wait_for("[aria-label=Dependencies] tbody", "inventory\topen\t1");
    browser.screenshot("console-protection");
    open(&browser, &gateway, "overview");
    browser.wait_for(".attention .warning", "The circuit breaker of inventory is open");
    assert_clean(&browser, &gateway);
}

#[test]
fn a_request_is_explained_without_charging_it() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, "ann", "/search", 2);
    let browser = Browser::start();
    open(&browser, &server, "try");
    browser.fill("#path", "/search?q=1");
    browser.fill("#headers", "X-User: ann");
    for _ in 0..2 {
        browser.click("#explain button");
        browser.wait_for("#explain .verdict", "Would be allowed.");
        browser
            .wait_for("#explain [aria-label=Applies] tbody", "user=ann\tenforced\t1\t3 of 5\tnow");
    }
    browser.fill("#path", "/");
    browser.click("#explain button");
    browser.wait_for("#explain [aria-label='Does not apply'] tbody", "search");
    browser.fill("#headers", "no colon");
    browser.click("#explain button");
    browser.wait_for("#explain .error", "Expected \"NAME: VALUE\", not \"no colon\".");
    send(&server, "ann", "/search", 4);
    browser.fill("#path", "/search");
    browser.fill("#headers", "x-user: ann");
    browser.click("#explain button");
    browser.wait_for("#explain .verdict", "Would be refused by search.");
    browser.screenshot("console-try");
    assert_clean(&browser, &server);
}

#[test]
fn a_limit_is_simulated_against_traffic() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let browser = Browser::start();
    open(&browser, &server, "try");
    browser.fill("#rate", "10/s");
    browser.run("document.querySelector('#algorithm').value = 'all'", &[]);
    browser.click("#simulate button");
    let title = "10/s with every algorithm: boundary traffic, 100 requests in 10s";
    browser.wait_for("#simulate h3", title);
    browser.wait_for("#simulate tbody", "sliding_log");
    assert!(browser.count("#simulate figure svg .axis") >= 2);
    browser.screenshot("console-simulate");
    browser.fill("#rate", "10/fortnight");
    browser.click("#simulate form button");
    browser.wait_for("#simulate .error", "unknown period \"fortnight\"");
    assert_eq!(browser.problems().len(), 1, "the rejected request");
}

#[test]
fn a_key_is_found_by_its_value_and_reset_by_its_whole_name() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, "ann", "/search", 6);
    let post = |path: &str, body: serde_json::Value| {
        let body = body.to_string();
        let response = Client::connect(server.admin()).request(&format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        (response.status(), response.body)
    };
    let (_, whole) = post("/v1/keys", json!({ "key": "user=ann" }));
    let (_, value) = post("/v1/keys", json!({ "key": "ann" }));
    let limits =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["limits"].take();
    for (whole, value) in
        limits(&whole).as_array().unwrap().iter().zip(limits(&value).as_array().unwrap())
    {
        assert_eq!((&whole["key"], &whole["remaining"]), (&value["key"], &value["remaining"]));
    }
    let browser = Browser::start();
    open(&browser, &server, "keys/ann");
    browser.wait_for("tbody tr:nth-child(1)", "search\tuser=ann\ttoken_bucket 5/h\trefuses");
    browser.wait_for("[aria-label='Latest refusals'] tbody", "search\trefused\tuser=ann");
    assert_eq!(post("/v1/keys/reset", json!({ "key": "ann", "limit": "search" })).0, 200);
    browser.click("form button");
    browser.wait_for("tbody tr:nth-child(1)", "not used");
    assert_clean(&browser, &server);
}
