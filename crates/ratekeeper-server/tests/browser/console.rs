//! The console of a running server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::{Browser, Server, wait_until};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::support::{POLICY, assert_clean, file, open, send, serve};

#[test]
fn pages_show_what_was_decided() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let browser = Browser::start();
    open(&browser, &server, "overview");
    browser.wait_for("#connection", "live");
    browser.wait_for("main", "Nothing needs attention.");
    send(&server, "ann", "/search", 40);
    browser.wait_for(".attention", "search refused 87% of its requests in the last minute.");
    assert!(browser.count("figure.chart svg .axis") >= 2);
    browser.screenshot("console-overview");

    open(&browser, &server, "limits");
    browser.wait_for("tbody th", "search");
    browser.wait_for("tr:nth-child(1) td:last-child", "35");
    assert!(browser.text("main tbody tr:nth-child(1)").contains("token_bucket 5/h per user"));
    browser.wait_for(".pair", "ann");
    browser.screenshot("console-limits");

    open(&browser, &server, "limits/search");
    browser.wait_for("h1", "search");
    browser.wait_for("figcaption", "Decisions of limits");
    browser.screenshot("console-limit");
    assert_clean(&browser, &server);
}

#[test]
fn a_rejected_policy_comes_first_with_its_line_and_column() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let browser = Browser::start();
    open(&browser, &server, "overview");
    browser.wait_for("main", "Nothing needs attention.");
    std::fs::write(policy.path(), POLICY.replace("5/hour", "5/fortnight")).unwrap();
    browser.wait_for(".attention .error", "The policy file was rejected");
    browser.wait_for(".attention .error pre", ":5:");
    browser.screenshot("console-rejected-policy");
    std::fs::write(policy.path(), POLICY).unwrap();
    browser.wait_for("main", "Nothing needs attention.");
    assert_clean(&browser, &server);
}

#[test]
fn a_key_is_looked_up_and_reset() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, "ann", "/search", 6);
    let browser = Browser::start();
    open(&browser, &server, "keys");
    browser.fill("#key", "user=ann");
    browser.click("form button");
    browser.wait_for("tbody tr:nth-child(1)", "user=ann\ttoken_bucket 5/h\trefuses\t0 of 5\tin ");
    browser.screenshot("console-key");
    browser.click(".reset-key");
    browser.wait_for("dialog", "Forget all usage of the key user=ann in the limit search?");
    browser.click("dialog button:last-child");
    browser.wait_for("tbody tr:nth-child(1)", "refuses");
    browser.click(".reset-key");
    browser.click("dialog .danger");
    browser.wait_for("tbody tr:nth-child(1)", "not used");
    assert_clean(&browser, &server);
}

#[test]
fn a_token_is_needed_and_one_for_reading_shows_no_keys() {
    let (policy, full, read) = (file(POLICY), file("omega\n"), file("alpha\n"));
    let path = |file: &NamedTempFile| file.path().to_str().unwrap().to_string();
    let server =
        serve(&policy, &["--admin-tokens", &path(&full), "--admin-read-tokens", &path(&read)]);
    send(&server, "secret-user", "/search", 6);
    let browser = Browser::start();
    open(&browser, &server, "limits");
    browser.wait_for("h1", "Admin token");
    browser.fill("#token", "wrong");
    browser.click("form button");
    browser.wait_for(".error", "A valid token is needed.");
    browser.screenshot("console-token");
    browser.fill("#token", "alpha");
    browser.click("form button");
    browser.wait_for("tbody th", "search");
    browser.wait_for(".pair", "this token may not see keys or change anything");
    assert!(!browser.text("main").contains("secret-user"));

    open(&browser, &server, "overview");
    browser.open(&format!("http://{}/", server.admin()));
    browser.wait_for("h1", "Admin token");
    browser.fill("#token", "omega");
    browser.click("form button");
    browser.run("location.hash = '#/limits'", &[]);
    browser.wait_for(".pair", "secret-user");
    let statuses = |problem: &String| problem.contains("401") || problem.contains("403");
    assert!(browser.problems().iter().all(statuses));
}

#[test]
fn text_of_requests_and_policies_is_never_markup() {
    let markup = "<img src=x onerror=alert(1)>";
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, &format!("{markup}'\"</script><script>alert(2)</script>"), "/search", 40);
    let browser = Browser::start();
    for (page, selector) in [("limits", ".pair"), ("limits/search", ".pair")] {
        open(&browser, &server, page);
        browser.wait_for("#connection", "live");
        browser.wait_for(selector, markup);
        assert_eq!(browser.count("img, [onerror], body script"), 0, "{page}");
    }
    browser.wait_for(".pair", "<script>alert(2)</script>");
    for page in ["limits", "keys", "overview"] {
        open(&browser, &server, &format!("{page}/{markup}"));
        browser.wait_for("#connection", "live");
        assert_eq!(browser.count("img, [onerror], body script"), 0, "{page}");
    }
    // The address has the page's name of a limit that does not exist.
    open(&browser, &server, &format!("limits/{markup}"));
    browser.wait_for("h1", markup);
    assert_clean(&browser, &server);
}

#[test]
fn ten_pages_follow_at_once_while_the_server_is_under_load() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let is_done = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let load = |user: usize| {
            let mut sent = 0;
            while !is_done.load(Ordering::Relaxed) {
                send(&server, &format!("user-{user}"), "/search", 100);
                sent += 100;
            }
            sent
        };
        let load: Vec<_> = (0..4).map(|user| scope.spawn(move || load(user))).collect();
        let viewers = (0..10).map(|_| scope.spawn(|| follow(&server, 4)));
        let viewers: Vec<_> = viewers.collect();
        viewers.into_iter().for_each(|viewer| viewer.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
        load.into_iter().map(|load| load.join().unwrap()).sum::<u64>()
    });
    let status = Client::connect(server.admin()).get("/v1/status").body;
    let search = &serde_json::from_str::<Value>(&status).unwrap()["limits"][0]["total"];
    assert_eq!((&search["allowed"], &search["denied"]), (&json!(20), &json!(sent - 20)));
}

/// Reads events until so many have had refusals that the one before did not have.
fn follow(server: &Server, events: usize) {
    let mut viewer = Client::connect(server.admin());
    viewer.send("GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(viewer.0.head().status(), 200);
    let (mut text, mut denied, mut seen) = (String::new(), 0, 0);
    wait_until("a viewer is sent the refusals", || {
        text += &String::from_utf8(viewer.0.chunk().unwrap()).unwrap();
        while let Some((event, rest)) = text.split_once("\n\n") {
            let status: Value = serde_json::from_str(&event["data: ".len()..]).unwrap();
            let now = status["limits"][0]["total"]["denied"].as_u64().unwrap();
            seen += usize::from(now > denied);
            denied = now;
            text = rest.to_string();
        }
        seen >= events
    });
}

#[test]
fn other_sites_cannot_change_anything() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let (at, body) = (server.admin(), r#"{"key":"ann","limit":"search"}"#);
    let reset = |origin: &str| {
        let request = format!(
            "POST /v1/keys/reset HTTP/1.1\r\nHost: {at}\r\n{origin}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Client::connect(at).request(&request).status()
    };
    assert_eq!(reset("Origin: https://evil.example\r\n"), 403);
    assert_eq!(reset("Origin: null\r\n"), 403);
    assert_eq!(reset(&format!("Origin: http://{at}\r\n")), 200);
    assert_eq!(reset(""), 200, "curl sends no origin");
}

#[test]
fn a_name_of_another_site_that_leads_here_shows_no_keys() {
    let policy = file(POLICY);
    let server = serve(&policy, &["--admin-host", "limits.example"]);
    let get = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}:9091\r\n\r\n");
        Client::connect(server.admin()).request(&request)
    };
    for path in ["/v1/top", "/v1/refusals", "/v1/refusals/1"] {
        let rejected = get(path, "evil.example");
        assert_eq!(rejected.status(), 403, "{path}");
        assert!(rejected.body.contains("--admin-host"), "{}", rejected.body);
        assert_ne!(get(path, "limits.example").status(), 403, "{path}");
        assert_ne!(get(path, "localhost").status(), 403, "{path}");
    }
    assert_eq!(get("/metrics", "evil.example").status(), 200);
}
