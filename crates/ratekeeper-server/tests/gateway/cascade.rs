//! A cascading failure, as `scripts/flash-sale` shows it: it collapses without a policy, and holds with one.

#[path = "../../examples/flash_sale/scenario.rs"]
mod scenario;
#[path = "../../examples/flash_sale/services.rs"]
mod services;

use std::time::Duration;

use ratekeeper_testkit::Helper;

use scenario::{GOOD, Report, capacity};

fn hold(is_protected: bool) -> Report {
    let ratekeeper = env!("CARGO_BIN_EXE_ratekeeper");
    scenario::hold(ratekeeper, is_protected, |role, env| {
        Helper::test(&format!("cascade::{role}_process"), env)
    })
}

#[test]
fn a_flash_sale_collapses_without_a_policy_and_holds_with_one() {
    let without = hold(false);
    assert!(without.goodput < 0.5 * capacity(), "it collapses: {without:?}");
    assert!(without.checkouts.p95() > GOOD, "{:?}", without.checkouts.p95());
    assert!(without.pages.p95() > GOOD, "other routes fail too: {:?}", without.pages.p95());

    let with = hold(true);
    let shown = format!(
        "goodput {:.0} of {:.0}, {:.0} without; p95: checkouts {:?}, pages {:?}; recovery {:?}",
        with.goodput,
        capacity(),
        without.goodput,
        with.checkouts.p95(),
        with.pages.p95(),
        with.recovery,
    );
    assert!(with.goodput > 0.6 * capacity() && with.goodput > 2.0 * without.goodput, "{shown}");
    assert!(with.checkouts.p95() < GOOD, "{shown}");
    assert!(with.rejected.count() > 0, "{shown}");
    assert!(with.pages.p95() < GOOD, "{shown}");
    assert!(with.recovery < Duration::from_secs(3), "{shown}");
    assert!(with.sold >= with.known && without.sold >= without.known);
}

#[test]
#[ignore = "the inventory's process"]
fn inventory_process() {
    services::inventory();
}

#[test]
#[ignore = "the order service's process"]
fn orders_process() {
    services::orders();
}
