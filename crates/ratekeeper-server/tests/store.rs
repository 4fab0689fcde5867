//! `simulate --store` against real servers: the same output as in memory, byte for byte.

use std::process::{Command, Output};

use ratekeeper_testkit::{RedisCluster, RedisServer};

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ratekeeper")).arg("simulate").args(args).output().unwrap()
}

fn output(args: &[&str]) -> String {
    let output = simulate(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const RUNS: &[&[&str]] = &[
    &["5/s burst 10", "--algorithm", "token_bucket", "--traffic", "flash-sale", "--keys", "5"],
    &["7/s burst 20", "--algorithm", "leaky_bucket", "--traffic", "poisson", "--keys", "3"],
    &["100/minute", "--traffic", "burst", "--duration", "10m"],
    &["3/s", "--algorithm", "sliding_log", "--traffic", "poisson"],
    &["3/s", "--algorithm", "sliding_log", "--count-rejected", "--traffic", "burst"],
    &["10/s", "--algorithm", "fixed_window", "--traffic", "boundary", "--keys", "4"],
];

fn assert_same_as_in_memory(url: &str) {
    for run in RUNS {
        let jsonl = [run, &["--format", "jsonl"][..]].concat();
        let remote = [&jsonl[..], &["--store", url]].concat();
        assert!(output(&remote) == output(&jsonl), "{run:?} differs");
    }
    let table = ["20/s burst 30", "--algorithm", "all"];
    assert_eq!(output(&[&table[..], &["--store", url]].concat()), output(&table));
}

#[test]
fn a_simulation_in_redis_is_the_same_as_in_memory() {
    assert_same_as_in_memory(&RedisServer::start().url());
}

#[test]
fn a_simulation_in_valkey_is_the_same_as_in_memory() {
    assert_same_as_in_memory(&RedisServer::valkey().url());
}

#[test]
fn a_simulation_in_a_cluster_is_the_same_as_in_memory() {
    assert_same_as_in_memory(&RedisCluster::start().url());
}

#[test]
fn an_invalid_url_a_wrong_password_and_an_outage_have_different_errors() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let fail = |url: &str| {
        let output = simulate(&["1/s", "--store", url]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = fail("http://127.0.0.1");
    assert!(code == Some(2) && error.contains("http:// is not known"), "{error}");
    let (code, error) = fail(&format!("redis://:wrong@127.0.0.1:{}", server.port()));
    assert!(code == Some(2) && error.contains("check the user, the password"), "{error}");
    assert!(!error.contains("wrong@"), "no password is shown: {error}");
    let (code, error) = fail(&format!("redis://127.0.0.1:{}", server.port()));
    assert!(code == Some(2) && error.contains("check the user, the password"), "{error}");
    assert!(simulate(&["1/s", "--store", &server.url()]).status.success());
    server.kill();
    let (code, error) = fail(&server.url());
    assert!(code == Some(1) && error.contains("cannot be reached"), "{error}");
}
