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
    // Without a width from the environment.
    let cases = trycmd::TestCases::new();
    cases.env("COLUMNS", "").case("tests/cmd/*.trycmd").case("tests/cmd/*.toml");
}

#[test]
fn the_readme_shows_what_simulate_prints() {
    let readme = include_str!("../../../README.md");
    let args = ["simulate", "10/s", "--traffic", "steady", "--algorithm", "all"];
    let command = format!("$ ratekeeper {}\n", args.join(" "));
    let (_, sample) = readme.split_once(&command).expect("a sample of this command");
    let (sample, _) = sample.split_once("```").unwrap();
    let output = ratekeeper(&args).env("COLUMNS", "").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), sample);
}

#[test]
fn colours_change_nothing_but_escape_codes() {
    let simulate = |name, value| {
        let mut command = ratekeeper(&["simulate", "10/s", "--algorithm", "all"]);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
            command.env_remove(name);
        }
        String::from_utf8(command.env(name, value).output().unwrap().stdout).unwrap()
    };
    let piped = simulate("TERM", "xterm");
    assert!(!piped.contains('\x1b'), "no colours in a pipe: {piped}");
    assert_eq!(simulate("NO_COLOR", "1"), piped);
    let colored = simulate("CLICOLOR_FORCE", "1");
    assert!(colored.contains("\x1b[32m█"), "{colored}");
    assert_eq!(anstream::adapter::strip_str(&colored).to_string(), piped);
}

#[test]
fn columns_sets_the_width_of_the_chart() {
    let longest = |columns| {
        let mut command = ratekeeper(&["simulate", "10/s", "--algorithm", "all"]);
        let text = command.env("COLUMNS", columns).output().unwrap().stdout;
        let text = String::from_utf8(text).unwrap();
        // After the title, which is not wrapped.
        text.lines().skip(1).map(|line| line.chars().count()).max().unwrap()
    };
    assert!((30..=40).contains(&longest("40")), "{}", longest("40"));
    assert!((100..=130).contains(&longest("130")), "{}", longest("130"));
    assert_eq!(longest("zero"), longest("80"));
}

#[test]
fn prints_what_the_documentation_shows() {
    trycmd::TestCases::new().case("../../docs/algorithms.md");
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

/// Runs `check` on a file with an error and on one with a warning, and `explain`, each in this environment.
/// Returns what they print.
fn printed(variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("bad.yaml", "version: 1\nlimits:\n  - { name: api, rate: 5/x }\n");
    write("doubtful.yaml", "version: 1\nlimits:\n  - { name: api, rate: 5/s, mode: off }\n");
    let commands: [&[&str]; 4] = [
        &["check", "bad.yaml"],
        &["check", "doubtful.yaml"],
        &["explain", "doubtful.yaml"],
        &["serve", "bad.yaml"],
    ];
    let mut printed = Vec::new();
    for args in commands {
        let mut command = ratekeeper(args);
        command.current_dir(folder.path()).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        printed.extend([output.stdout, output.stderr].concat());
    }
    String::from_utf8(printed).unwrap()
}

#[test]
fn colours_are_printed_on_request_and_the_text_is_the_same_without() {
    let (plain, coloured) = (printed(&[]), printed(&[("CLICOLOR_FORCE", "1")]));
    assert!(!plain.contains('\u{1b}'), "{plain}");
    for part in [
        "\u{1b}[1m\u{1b}[31merror:",
        "\u{1b}[1m\u{1b}[33mwarning:",
        "\u{1b}[32mok",
        "\u{1b}[1mIdentities",
    ] {
        assert!(coloured.contains(part), "{part:?}: {coloured:?}");
    }
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
    assert_eq!(printed(&[("NO_COLOR", "1")]), plain);
    assert_eq!(printed(&[("TERM", "dumb")]), plain);
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
