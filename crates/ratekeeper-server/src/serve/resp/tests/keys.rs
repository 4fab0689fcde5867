//! Commands about keys, and databases.

use ratekeeper_core::ALGORITHMS;

use super::client::{TestClient, check};

#[test]
fn keys_exist_while_they_have_usage() {
    check(&[
        ("EXISTS k", "0"),
        ("TTL k", "-2"),
        ("PTTL k", "-2"),
        ("CL.THROTTLE k 4 5 60 2", "[0 5 3 -1 24]"),
        ("EXISTS k k other", "2"),
        ("TTL k", "24"),
        ("+500ms", ""),
        ("TTL k", "24"),
        ("+23s", ""),
        ("TTL k", "1"),
        ("EXISTS k", "1"),
        ("+501ms", ""),
        ("EXISTS k", "0"),
        ("TTL k", "-2"),
        ("DEL k", "0"),
    ]);
}

#[test]
fn deleting_a_key_deletes_what_every_algorithm_counted() {
    for command in ["DEL", "UNLINK"] {
        let mut client = TestClient::new(&[]);
        let check_all = |client: &mut TestClient, expected: &str| {
            for algorithm in ALGORITHMS {
                let reply = client.send(&format!("RK.CHECK k 5/hour ALGORITHM {algorithm} COST 5"));
                assert!(reply.0.starts_with(expected), "{algorithm}: {}", reply.0);
            }
        };
        check_all(&mut client, "[allowed 1 ");
        check_all(&mut client, "[allowed 0 ");
        client.check(&[
            ("RK.CHECK k 5/hour NAME exports", &client_reply(4, 720_000)),
            (&format!("{command} k other k"), "1"),
            (&format!("{command} k"), "0"),
            ("RK.PEEK k 5/hour NAME exports", &client_reply(4, 720_000)),
        ]);
        check_all(&mut client, "[allowed 1 ");
    }
}

fn client_reply(remaining: u64, reset_after_ms: u64) -> String {
    format!(
        "[allowed 1 limit 5 remaining {remaining} retry_after_ms -1 reset_after_ms {reset_after_ms} delay_ms 0 exceeds_capacity 0 degraded 0]"
    )
}

#[test]
fn the_ttl_is_that_of_the_usage_that_lasts_longest() {
    let mut client = TestClient::new(&[]);
    client.send("CL.THROTTLE k 0 1 10");
    client.send("RK.CHECK k 1/hour ALGORITHM sliding_log");
    client.check(&[("TTL k", "3600"), ("PTTL k", "3600000")]);
    client.send("RK.RESET k 1/s ALGORITHM sliding_log");
    client.check(&[("TTL k", "10"), ("RK.RESET k 1/s", "OK"), ("EXISTS k", "0")]);
}

#[test]
fn a_reset_deletes_what_throttle_counted() {
    check(&[
        ("CL.THROTTLE k 0 1 3600", "[0 1 0 -1 3600]"),
        ("RK.RESET k 1/s", "OK"),
        ("CL.THROTTLE k 0 1 3600", "[0 1 0 -1 3600]"),
        ("SELECT 3", "OK"),
        ("RK.RESET k 1/s", "OK"),
        ("SELECT 0", "OK"),
        ("CL.THROTTLE k 0 1 3600", "[1 1 0 3600 3600]"),
    ]);
}

#[test]
fn databases_count_separately() {
    const OUT_OF_RANGE: &str = "ERR DB index is out of range; use 0 to 15";
    check(&[
        ("SELECT 1", "OK"),
        ("CL.THROTTLE k 0 1 3600", "[0 1 0 -1 3600]"),
        ("SELECT 15", "OK"),
        ("CL.THROTTLE k 0 1 3600", "[0 1 0 -1 3600]"),
        ("RK.PEEK k 5/hour NAME n", &client_reply(5, 0)),
        ("RK.CHECK k 5/hour NAME n", &client_reply(4, 720_000)),
        ("SELECT 16", OUT_OF_RANGE),
        ("SELECT -1", OUT_OF_RANGE),
        ("SELECT +1", OUT_OF_RANGE),
        ("SELECT 01", OUT_OF_RANGE),
        ("SELECT x", OUT_OF_RANGE),
        ("CL.THROTTLE k 0 1 3600", "[1 1 0 3600 3600]"),
        ("EXISTS k", "1"),
        ("SELECT 0", "OK"),
        ("EXISTS k", "0"),
        ("RK.PEEK k 5/hour NAME n", &client_reply(5, 0)),
        ("SELECT 1", "OK"),
        ("DEL k", "1"),
        ("SELECT 15", "OK"),
        ("EXISTS k", "1"),
        ("RESET", "RESET"),
        ("EXISTS k", "0"),
    ]);
}
