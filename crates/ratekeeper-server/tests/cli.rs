//! The command as people use it: what it prints, and how it ends.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::process::{Command, Stdio};

fn ratekeeper(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratekeeper"));
    command.args(args);
    command
}

/// To accept what has changed: `TRYCMD=overwrite cargo test -p ratekeeper-server`.
#[test]
fn prints_what_is_written_in_cmd() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd").case("tests/cmd/*.toml");
}

#[test]
fn a_million_lines_are_a_million_decisions() {
    const LINES: usize = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let mut trace = BufWriter::new(File::create(&path).unwrap());
    writeln!(trace, "at_us,key,cost").unwrap();
    for n in 0..LINES {
        writeln!(trace, "{},user-{},1", n * 100, n * 7919 % 10_007).unwrap();
    }
    trace.into_inner().unwrap();

    let args = ["simulate", "5/s burst 10", "--algorithm", "token_bucket", "--format", "jsonl"];
    let mut command = ratekeeper(&args);
    let mut child = command.arg("--trace").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.filter(|line| line.as_ref().unwrap().ends_with('}')).count(), LINES);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    for format in ["jsonl", "json", "table"] {
        let args = ["simulate", "100/s", "--duration", "100s", "--format", format];
        let mut command = ratekeeper(&args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert_eq!(complaint, "", "{format}");
        assert!(child.wait().unwrap().success(), "{format}");
    }
}

#[test]
fn too_many_keys_are_warned_of() {
    let args = ["simulate", "5/s", "--traffic", "steady", "--keys", "5000", "--keys-max", "10"];
    let output = ratekeeper(&args).output().unwrap();
    assert!(output.status.success());
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.starts_with("warning: "), "{warning}");
    assert!(warning.contains("results may be inexact; raise --keys-max"), "{warning}");
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = ratekeeper(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("simulate") && script.contains("algorithm"), "{shell}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = ratekeeper(&["simulate", "5/s"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.starts_with("error: cannot write the output: "), "{complaint}");
}
