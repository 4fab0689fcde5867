//! The console of a running server.

use std::io::Write;

use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::{Browser, Listener, Server, ServerBuilder, wait_until};
use serde_json::json;
use tempfile::NamedTempFile;

const POLICY: &str = "\
version: 1
identify:
  user: { header: x-user }
limits:
  - { name: search, per: user, match: { path: /search }, rate: 5/hour }
  - { name: trial, per: user, rate: 3/hour, mode: shadow }
";

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn serve(policy: &NamedTempFile, more: &[&str]) -> Server {
    ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"))
        .listen(&[Listener::Http, Listener::Admin])
        .args([policy.path().to_str().unwrap()])
        .args(more.iter().copied())
        .start()
}

/// Asks the server about so many requests of a user.
fn send(server: &Server, user: &str, path: &str, times: u32) {
    let mut client = Client::connect(server.http());
    let request =
        json!({ "request": { "method": "GET", "path": path, "headers": { "x-user": user } } });
    let body = request.to_string();
    for _ in 0..times {
        let response = client.request(&format!(
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert!([200, 429].contains(&response.status()), "{}", response.body);
    }
}

fn open(browser: &Browser, server: &Server, page: &str) {
    browser.open(&format!("http://{}/#/{page}", server.admin()));
}

/// The console wrote no error and requested nothing from elsewhere.
fn assert_clean(browser: &Browser, server: &Server) {
    assert_eq!(browser.problems(), [""; 0]);
    let own = format!("http://{}/", server.admin());
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with(&own)), "{requests:?}");
}

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
    browser.wait_for("tbody tr:nth-child(1)", "refuses\t0 of 5\tin ");
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
fn the_console_works_on_a_phone_by_keyboard_and_in_the_dark() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, "ann", "/search", 40);
    let browser = Browser::start();
    browser.resize(320, 800);
    browser.prefer("prefers-color-scheme", "dark");
    for page in ["overview", "limits", "limits/search", "keys/ann"] {
        open(&browser, &server, page);
        browser.wait_for("#connection", "live");
        let script = "return document.documentElement.scrollWidth";
        wait_until("nothing is wider than the page", || browser.run(script, &[]) == 320);
        let unnamed = "return [...document.querySelectorAll('a, button, input, select, svg[tabindex], [role=group]')]\
            .filter((e) => !(e.textContent || e.getAttribute('aria-label') || e.labels?.length || e.title))\
            .map((e) => e.outerHTML)";
        assert_eq!(
            browser.run(unnamed, &[]),
            json!([]),
            "{page}: everything that is used has a name"
        );
    }
    browser.screenshot("console-phone-dark");
    assert_clean(&browser, &server);
}

#[test]
fn ten_pages_follow_at_once() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let viewers: Vec<_> = (0..10)
        .map(|_| {
            let mut viewer = Client::connect(server.admin());
            viewer.send("GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(viewer.0.head().status(), 200);
            viewer
        })
        .collect();
    send(&server, "ann", "/search", 8);
    for mut viewer in viewers {
        let shows = "\"denied\":3,";
        wait_until("a viewer is sent the refusals", || {
            String::from_utf8(viewer.0.chunk().unwrap()).unwrap().contains(shows)
        });
    }
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
