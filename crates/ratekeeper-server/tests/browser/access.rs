//! The console for everyone: small screens, both colour schemes, no mouse, names for screen readers.

use ratekeeper_testkit::{Browser, TAB, wait_until};
use serde_json::{Value, json};

use crate::support::{POLICY, assert_clean, file, open, send, serve};

/// Each page, and what it shows when it is complete.
const PAGES: [(&str, &str); 7] = [
    ("overview", "figure svg .axis"),
    ("limits", ".pair tbody"),
    ("limits/search", "figure svg .axis"),
    ("refusals", "tbody"),
    ("keys/ann", "tbody"),
    ("protection", "h2"),
    ("try", "form"),
];

/// Returns the texts whose contrast with what is behind them is too low: under 4.5, or 3 for large ones.
const LOW_CONTRAST: &str = "
const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const texts = [...document.querySelectorAll('body *')].filter((node) => node.checkVisibility() && node.getClientRects().length
  && !node.closest('svg') && (node.matches('input, select, textarea') || [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())));
return texts.map((node) => {
  const style = getComputedStyle(node);
  const [a, b] = [light(rgb(style.color)), light(behind(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  return ratio < (isLarge ? 3 : 4.5) ? `${node.outerHTML.slice(0, 120)} ${ratio.toFixed(2)}` : null;
}).filter(Boolean)";

/// Returns what is used and has no name.
const UNNAMED: &str = "
return [...document.querySelectorAll('a, button, input, select, textarea, svg[tabindex], [role=group], [role=img], dialog')]
  .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length || e.title))
  .map((e) => e.outerHTML)";

/// Returns the place of what has the focus, and whether that is seen.
const FOCUSED: &str = "
const node = document.activeElement;
const style = getComputedStyle(node);
const box = node.getBoundingClientRect();
const all = [...document.querySelectorAll('*')];
return { index: all.indexOf(node), html: node.outerHTML.slice(0, 120),
  isSeen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 && box.width > 0 && box.left >= 0 }";

/// Returns how many elements the Tab key should reach.
const REACHABLE: &str = "
return [...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex=\"0\"]')]
  .filter((e) => e.checkVisibility() && !e.disabled).length";

fn show(browser: &Browser, server: &ratekeeper_testkit::Server, page: &str) {
    open(browser, server, page);
    browser.wait_for("#connection", "live");
}

#[test]
fn every_page_is_readable_on_a_phone_in_light_and_dark() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, "ann", "/search", 40);
    let browser = Browser::start();
    browser.resize(320, 800);
    for scheme in ["dark", "light"] {
        browser.prefer("prefers-color-scheme", scheme);
        for (page, complete) in PAGES {
            show(&browser, &server, page);
            wait_until(page, || browser.count(complete) > 0);
            let width = "return document.documentElement.scrollWidth";
            wait_until(&format!("{page}: nothing is wider than the page"), || {
                browser.run(width, &[]) == 320
            });
            assert_eq!(browser.run(LOW_CONTRAST, &[]), json!([]), "{page} in {scheme}");
            assert_eq!(browser.run(UNNAMED, &[]), json!([]), "{page}: what is used has a name");
            let name = page.replace('/', "-");
            browser.screenshot(&format!("console-phone-{scheme}-{name}"));
        }
    }
    assert_clean(&browser, &server);
    browser.run("document.querySelector('h1').style.color = '#ccc'", &[]);
    assert_ne!(browser.run(LOW_CONTRAST, &[]), json!([]), "the check finds low contrast");
}

#[test]
fn the_tab_key_reaches_everything_and_shows_where_it_is() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    let browser = Browser::start();
    // Pages whose elements do not change with time.
    for page in ["keys", "try", "protection"] {
        // A page that is loaded afresh has no focus.
        browser.open("about:blank");
        show(&browser, &server, page);
        let expected = browser.run(REACHABLE, &[]).as_u64().unwrap();
        let mut reached: Vec<Value> = Vec::new();
        browser.press(TAB);
        loop {
            let focused = browser.run(FOCUSED, &[]);
            if focused["html"].as_str().unwrap().starts_with("<body")
                || reached.contains(&focused["index"])
            {
                break;
            }
            assert_eq!(focused["isSeen"], true, "{page}: {focused}");
            reached.push(focused["index"].clone());
            browser.press(TAB);
        }
        assert_eq!(reached.len() as u64, expected, "{page}");
    }
    assert_clean(&browser, &server);
}

#[test]
fn nothing_moves_for_those_who_prefer_that() {
    let policy = file(POLICY);
    let server = serve(&policy, &[]);
    send(&server, "ann", "/search", 40);
    let browser = Browser::start();
    browser.prefer("prefers-reduced-motion", "reduce");
    for (page, complete) in PAGES {
        show(&browser, &server, page);
        wait_until(page, || browser.count(complete) > 0);
        let moving = "return document.getAnimations().length";
        assert_eq!(browser.run(moving, &[]), json!(0), "{page}");
    }
}
