//! Policies that `ratekeeper plan` writes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const CAPACITY: [&str; 6] = ["--pods", "10", "--concurrency", "40", "--p95", "800ms"];

fn ratekeeper(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
    command.current_dir(folder).args(args).output().unwrap()
}

fn plan(folder: &Path, args: &[&str]) -> Output {
    let args: Vec<_> = ["plan"].iter().chain(&CAPACITY).chain(args).copied().collect();
    ratekeeper(folder, &args)
}

#[test]
fn every_policy_that_is_written_is_valid_and_without_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let divisions: [&[&str]; 6] = [
        &[],
        &["--per-user", "5/s"],
        &["--split", "partner=200/s,public=rest", "--per-user", "5/s"],
        &["--split", "partner=200/s,public=rest", "--guarantee"],
        &["--split", "a=33.3%,b=10000/minute,no=1/s", "--guarantee"],
        &["--split", "a=50%,b=50%", "--class-header", "x-plan", "--burst", "1"],
    ];
    for (i, division) in divisions.into_iter().enumerate() {
        let file = format!("{i}.yaml");
        let args: Vec<_> = division.iter().copied().chain(["--write", &file]).collect();
        let written = plan(folder.path(), &args);
        assert!(written.status.success(), "{written:?}");
        let checked = ratekeeper(folder.path(), &["check", "--strict", &file]);
        let text = fs::read_to_string(folder.path().join(&file)).unwrap();
        assert!(checked.status.success(), "{checked:?}\n{text}");
    }
}

#[test]
fn a_guaranteed_class_has_its_rate_out_of_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--split", "partner=200/s,public=rest", "--guarantee", "--write", "policy.yaml"];
    assert!(plan(folder.path(), &args).status.success());
    let text = fs::read_to_string(folder.path().join("policy.yaml")).unwrap();
    let limit =
        "  - { name: all, rate: 350/s burst 120, guarantees: { partner: 200/s burst 68 } }\n";
    assert!(text.contains(limit), "{text}");
    assert!(text.contains("# safe rate: 500/s × 70% = 350/s\n"), "{text}");
}

#[test]
fn a_file_is_overwritten_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, "mine").unwrap();
    let refused = plan(folder.path(), &["--write", "policy.yaml"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(message, "error: policy.yaml exists already; overwrite it with --force\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert!(plan(folder.path(), &["--write", "policy.yaml", "--force"]).status.success());
    assert!(fs::read_to_string(&file).unwrap().contains("version: 1"));
}

#[test]
fn percentiles_of_a_file_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    // 1 ms to 1000 ms, in some order.
    let lines = (1..=1_000).map(|n| format!("{}ms\n", n * 7 % 1_009 % 1_000 + 1));
    let shuffled: String = lines.collect();
    let mut sorted: Vec<u64> =
        shuffled.lines().map(|line| line.trim_end_matches("ms").parse().unwrap()).collect();
    sorted.sort_unstable();
    fs::write(folder.path().join("latencies.txt"), &shuffled).unwrap();
    let args = [
        "plan",
        "--pods",
        "10",
        "--concurrency",
        "40",
        "--latencies",
        "latencies.txt",
        "--format",
        "md",
    ];
    let output = ratekeeper(folder.path(), &args);
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = format!("400 in flight / {}ms", sorted[949]);
    assert!(text.contains(&expected), "{expected}: {text}");
    assert!(text.contains("each request takes one of the 1000 measured latencies"), "{text}");
}

#[test]
fn a_limit_from_a_log_refuses_no_more_of_it_than_was_allowed() {
    let folder = tempfile::tempdir().unwrap();
    // 40 clients, of which each sends more at a time than the one before.
    let lines = (0..6_000u64).filter(|i| i % 97 < i % 40).map(|i| {
        let (client, minute, second) = (i % 40, i / 600, i / 10 % 60);
        format!(
            "192.0.2.{client} - - [10/Oct/2026:13:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n"
        )
    });
    fs::write(folder.path().join("access.log"), lines.collect::<String>()).unwrap();
    let run = |args: &str| ratekeeper(folder.path(), &args.split(' ').collect::<Vec<_>>());
    for algorithm in ["token_bucket", "sliding_counter", "fixed_window"] {
        let written = run(&format!(
            "plan --log access.log --per ip --refuse-at-most 0.5% --algorithm {algorithm} --write {algorithm}.yaml"
        ));
        assert!(written.status.success(), "{written:?}");
        let checked = run(&format!("check --strict {algorithm}.yaml"));
        assert!(checked.status.success(), "{checked:?}");
        let replay = format!("replay access.log {algorithm}.yaml --format json --fail-if");
        let judged = |condition: &str| {
            let args: Vec<_> = replay.split(' ').chain([condition]).collect();
            ratekeeper(folder.path(), &args).status.code()
        };
        assert_eq!(judged("refused > 0.5%"), Some(0), "{algorithm}");
        assert_eq!(judged("refused >= 0"), Some(3), "{algorithm}");
    }
}
