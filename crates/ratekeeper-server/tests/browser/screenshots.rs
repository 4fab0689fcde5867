//! Pictures of the console for the documentation, from a server with a minute of traffic.

use ratekeeper_testkit::Browser;
use ratekeeper_testkit::http1::Client;

use crate::support::{file, open, send, serve};

const SHOP: &str = "\
version: 1
identify:
  user: { header: x-user }
limits:
  - { name: search, per: user, match: { path: /search }, rate: 40/s }
  - { name: checkout, per: user, match: { path: /checkout }, rate: 5/minute }
  - { name: fair-use, per: user, rate: 60/s, mode: shadow }
";

/// How long there is traffic.
const SECONDS: u64 = 60;

/// `scripts/screenshots` runs it: it takes a minute.
#[test]
#[ignore = "makes pictures of a minute of traffic; run scripts/screenshots"]
fn pictures_of_a_minute_of_traffic() {
    let policy = file(SHOP);
    let server = serve(&policy, &[]);
    let browser = Browser::start();
    browser.resize(1000, 760);
    open(&browser, &server, "overview");
    let mut seconds = Client::connect(server.admin());
    seconds.send("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(seconds.0.head().status(), 200);
    for second in 0..SECONDS {
        send(&server, "ann", "/search", 20);
        send(&server, "ben", "/search", 15 + (second % 7) as u32 * 3);
        send(&server, "crawler", "/search", if (20..45).contains(&second) { 90 } else { 10 });
        if second % 5 == 0 {
            send(&server, "ann", "/checkout", 1);
        }
        // The server sends its status once a second.
        seconds.0.chunk().expect("a status");
    }
    browser.wait_for("#connection", "live");
    browser.screenshot_of_window("docs-overview");
    open(&browser, &server, "limits");
    browser.wait_for("tbody th", "search");
    browser.wait_for(".pair", "crawler");
    browser.screenshot_of_window("docs-limits");
}
