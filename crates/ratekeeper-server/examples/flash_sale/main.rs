//! A flash sale that brings a shop down, and the same one with a policy: `scripts/flash-sale`.
//!
//! Customers ask for more checkouts than the database behind the inventory can serve. The output says what they saw,
//! first without a policy, then with `dependencies: inventory`.

mod scenario;
mod services;

use ratekeeper_testkit::Helper;

use scenario::{GOOD, POLICY, Report, capacity, hold};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(services::INVENTORY) => services::inventory(),
        Some(services::ORDERS) => services::orders(),
        _ => compare(),
    }
}

fn compare() {
    println!("The database can serve {:.0} checkouts per second.\n", capacity());
    println!("{:<26}{:>14}{:>14}", "", "no policy", "policy");
    let ratekeeper = ratekeeper();
    let hold =
        |is_protected| hold(&ratekeeper, is_protected, |role, env| Helper::start(&[role], env));
    let (without, with) = (hold(false), hold(true));
    let good = format!("good checkouts per s (<{} ms)", GOOD.as_millis());
    row(&good, &without, &with, |report| format!("{:.0}", report.goodput));
    row("checkout p95", &without, &with, |report| ms(report.checkouts.p95()));
    row("rejected, p95", &without, &with, |report| match report.rejected.count() {
        0 => "none".to_string(),
        _ => ms(report.rejected.p95()),
    });
    row("catalogue p95", &without, &with, |report| ms(report.pages.p95()));
    row("recovery", &without, &with, |report| ms(report.recovery));
    row("sold to who had gone", &without, &with, |report| {
        format!("{}", report.sold.saturating_sub(report.known))
    });
    println!("\nThe policy:\n\n{POLICY}");
}

fn row(name: &str, without: &Report, with: &Report, value: impl Fn(&Report) -> String) {
    println!("{name:<30}{:>10}{:>14}", value(without), value(with));
}

fn ms(span: std::time::Duration) -> String {
    format!("{} ms", span.as_millis())
}

/// Returns the program that was built together with this one.
fn ratekeeper() -> String {
    let this = std::env::current_exe().expect("the path of this program");
    let folder = this.parent().and_then(|examples| examples.parent()).expect("a target folder");
    let program = folder.join("ratekeeper");
    assert!(program.is_file(), "{} is missing; run scripts/flash-sale", program.display());
    program.to_str().expect("a path in UTF-8").to_string()
}
