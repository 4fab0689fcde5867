//! Reports that commands write as HTML and SVG.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ratekeeper_lab::report::{
    Axis, Chart, Column, Document, Role, Section, Series, Shape, Table, Unit,
};
use ratekeeper_testkit::{ARROW_RIGHT, Browser, ESCAPE};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes what a command prints to a file.
fn report(folder: &TempDir, name: &str, arguments: &[&str]) -> PathBuf {
    let output = Command::new(env!("CARGO_BIN_EXE_ratekeeper")).args(arguments).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    write(folder, name, &output.stdout)
}

fn write(folder: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let file = folder.path().join(name);
    fs::write(&file, content).expect("write a report");
    file
}

/// The report was drawn by its script, said nothing on the console, and requested nothing but itself.
fn assert_self_contained(browser: &Browser) {
    assert_eq!(browser.run("return document.documentElement.dataset.ready", &[]), "true");
    assert_eq!(browser.problems(), [""; 0]);
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with("file://")), "{requests:?}");
}

/// Nothing is wider than the page.
fn assert_fits(browser: &Browser, width: u64) {
    let script =
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]";
    assert_eq!(browser.run(script, &[]), json!([width, width]));
}

#[test]
fn a_report_shows_charts_that_can_be_used_without_a_network() {
    let folder = TempDir::new().unwrap();
    let arguments = ["simulate", "10/s", "--algorithm", "all", "--format", "html"];
    let browser = Browser::start();
    browser.open_file(&report(&folder, "report.html", &arguments));
    assert_self_contained(&browser);
    assert_eq!(browser.count("figure.chart"), 3);
    assert_eq!(browser.count("figure.chart svg"), 3, "the drawings without script are replaced");
    for (selector, text) in [
        ("figure .axis-title", "time"),
        ("figure .axis-title:last-of-type", "requests per 100ms"),
        ("figure .tick", "0"),
        ("footer code", "ratekeeper simulate 10/s --algorithm all --format html"),
        ("td", "fixed_window"),
    ] {
        let script =
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)";
        let texts = browser.run(script, &[selector.into()]);
        assert!(texts.as_array().unwrap().contains(&text.into()), "{selector}: {texts}");
    }
    browser.screenshot("report");
}

#[test]
fn a_replay_and_a_plan_of_a_log_are_reports_too() {
    let folder = TempDir::new().unwrap();
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cmd/replay.in");
    let [log, policy, new] =
        ["access.log", "policy.yaml", "new.yaml"].map(|name| format!("{cases}/{name}"));
    let replay = ["replay", &log, &policy, "--compare", &new, "--format", "html"];
    let plan = ["plan", "--log", &log, "--per", "ip", "--refuse-at-most", "1%", "--format", "html"];
    let browser = Browser::start();
    for (name, arguments, cell, charts) in
        [("replay", &replay[..], "ip=192.0.2.1", 2), ("plan", &plan, "token_bucket", 0)]
    {
        browser.open_file(&report(&folder, &format!("{name}.html"), arguments));
        assert_self_contained(&browser);
        assert_eq!(browser.count("figure.chart svg"), charts);
        assert_eq!(browser.count("figure.chart svg .s-admitted .bar"), charts);
        let script = "return [...document.querySelectorAll('td')].some((e) => e.textContent === arguments[0])";
        assert_eq!(browser.run(script, &[cell.into()]), true, "{name}: {cell}");
        browser.screenshot(name);
        browser.resize(400, 800);
        assert_fits(&browser, 400);
        browser.resize(1200, 900);
    }
}

#[test]
fn a_chart_shows_values_under_the_pointer_and_by_keyboard() {
    let folder = TempDir::new().unwrap();
    let arguments = ["simulate", "10/s", "--format", "html"];
    let browser = Browser::start();
    browser.open_file(&report(&folder, "report.html", &arguments));
    browser.pointer(".stage svg", (0.0, 0.0), None);
    browser.wait_for(".readout", "admitted: ");
    let value = |at: &str| format!("{at}\nadmitted: 0\ndenied: 0");
    browser.keys(".stage svg", &ARROW_RIGHT.repeat(3));
    browser.keys(".stage svg", ESCAPE);
    browser.keys(".stage svg", &ARROW_RIGHT.repeat(3));
    assert_eq!(browser.text(".readout"), value("200ms"));
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn a_chart_is_zoomed_and_its_series_are_hidden() {
    let folder = TempDir::new().unwrap();
    let arguments = ["simulate", "10/s", "--format", "html"];
    let browser = Browser::start();
    browser.open_file(&report(&folder, "report.html", &arguments));
    let ticks = || {
        let script = "return [...document.querySelectorAll('.tick[text-anchor=middle]')].map((e) => e.textContent)";
        browser.run(script, &[]).as_array().unwrap().clone()
    };
    assert!(ticks().contains(&"9s".into()));
    browser.pointer(".stage svg", (-0.2, 0.0), Some((-0.1, 0.0)));
    assert!(!ticks().contains(&"9s".into()), "{:?}", ticks());
    browser.screenshot("report-zoomed");
    browser.click(".reset");
    assert!(ticks().contains(&"9s".into()));

    assert_eq!(browser.count("g.s-denied .bar"), 1);
    browser.click(".series:nth-child(2)");
    assert_eq!(browser.count("g.s-denied .bar"), 0);
    assert_eq!(browser.count(".series[aria-pressed=false]"), 1);

    browser.click(".data summary");
    browser.wait_for(".data td", "9.9s");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn a_report_is_legible_on_a_phone_in_the_dark_and_without_a_script() {
    let folder = TempDir::new().unwrap();
    let arguments = [
        "simulate",
        "5/s burst 10",
        "--algorithm",
        "all",
        "--traffic",
        "flash-sale",
        "--format",
        "html",
    ];
    let file = report(&folder, "report.html", &arguments);
    let browser = Browser::start();
    browser.resize(320, 800);
    browser.prefer("prefers-color-scheme", "dark");
    browser.open_file(&file);
    assert_self_contained(&browser);
    assert_fits(&browser, 320);
    let background = "return getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.run(background, &[]), "rgb(15, 20, 25)");
    browser.screenshot("report-phone-dark");

    let text = fs::read_to_string(&file).unwrap();
    let (page, _) = text.split_once("<script").unwrap();
    let without_script = write(&folder, "plain.html", page.as_bytes());
    browser.resize(1000, 800);
    browser.prefer("prefers-color-scheme", "light");
    browser.open_file(&without_script);
    assert!(browser.count("figure svg .bar") >= 4);
    browser.screenshot("report-without-script");

    let svg = report(&folder, "charts.svg", &[&arguments[..7], &["svg"]].concat());
    browser.open_file(&svg);
    assert!(browser.count(".bar") >= 4);
    browser.screenshot("report-svg");
    assert_eq!(browser.problems(), [""; 0]);
}

/// A document with the same text in every place that takes text.
fn everywhere(text: &str) -> Document {
    let axis = |unit| Axis::new(text, unit);
    let series = |shape| {
        Chart::over(text, axis(Unit::Duration), vec![0.0, 1e6, 2e6], axis(Unit::Number))
            .shape(shape)
            .series(Series::new(text, Role::Denied, vec![1.0, f64::NAN, 3.0]))
            .mark(ratekeeper_lab::report::Mark::at_value(2.0, text))
            .mark(ratekeeper_lab::report::Mark::at_position(1e6, text))
            .note(text)
    };
    let names = Chart::by_name(text, text, [text, "b"], axis(Unit::Percent)).series(Series::new(
        text,
        Role::Other,
        vec![1.0, 2.0],
    ));
    let table = Table::new([Column::text(text), Column::number(text)]).row([text, text]).note(text);
    let section = Section::new(text).text(text).facts([(text, text)]).table(table);
    let charts = [series(Shape::Line), series(Shape::Area), series(Shape::Bars), names];
    let section = charts.into_iter().fold(section, Section::chart);
    Document::new(text).command(text).note(text).source(text, text).section(section)
}

#[test]
fn no_text_becomes_markup() {
    let folder = TempDir::new().unwrap();
    let browser = Browser::start();
    for text in [
        "<img src=x onerror=alert(1)>",
        "</script><script>alert(1)</script>",
        "\"'><svg/onload=alert(1)>",
        "<!--<script>",
        "{{constructor}}</title></style>${alert(1)}",
    ] {
        let document = everywhere(text);
        let html = write(&folder, "report.html", document.to_html().as_bytes());
        browser.open_file(&html);
        browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })", &[]);
        browser.keys("figure:nth-of-type(1) .stage svg", ARROW_RIGHT);
        assert_self_contained(&browser);
        assert_eq!(browser.text("h1"), text);
        assert_eq!(browser.count("script"), 2, "{text}");
        assert_eq!(browser.count("img, [onload], [onerror]"), 0, "{text}");
        assert_eq!(browser.count("figure.chart svg .axis"), 4);

        let svg = write(&folder, "charts.svg", document.to_svg().as_bytes());
        browser.open_file(&svg);
        assert_eq!(
            browser.run("return document.querySelector('title').textContent", &[]),
            Value::from(text)
        );
        assert_eq!(browser.count("script, img, [onload]"), 0, "{text}");
        assert_eq!(browser.problems(), [""; 0]);
    }
    browser.screenshot("report-hostile-text");
}
