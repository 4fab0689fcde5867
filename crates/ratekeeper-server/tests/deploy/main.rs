//! The files in `deploy/`, checked against the program. Envoy's files are run by the tests of the gRPC service.

mod manifests;

use std::fs;
use std::process::Command;

use manifests::{RATEKEEPER, SIDECAR, document, documents, file};
use serde_json::Value;

const UNIT: &str = include_str!("../../../../deploy/systemd/ratekeeper.service");
const DOCKERFILE: &str = include_str!("../../../../deploy/docker/Dockerfile");

fn ratekeeper(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_ratekeeper")).args(args).output().expect("it starts")
}

/// Asserts that a command line is valid: with `--help` at its end it is parsed and not run.
#[track_caller]
fn assert_parses(args: &[&str]) {
    let output = ratekeeper(&[args, &["--help"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the value of a setting in the unit.
fn setting(name: &str) -> &str {
    let line = UNIT.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("the unit has no {name}"))
}

fn args(container: &Value) -> Vec<&str> {
    container["args"].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

fn container() -> Value {
    document(RATEKEEPER, "Deployment", "ratekeeper")["spec"]["template"]["spec"]["containers"][0]
        .clone()
}

#[track_caller]
fn secs(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|number| number.parse().ok()).expect("seconds")
}

#[test]
fn every_option_exists() {
    let words: Vec<_> = setting("ExecStart").split(' ').skip(1).collect();
    assert_parses(&words);
    assert_parses(&args(&container()));
    let last = DOCKERFILE.lines().find_map(|line| line.strip_prefix("CMD ")).expect("a CMD");
    let words: Vec<String> = serde_json::from_str(last).expect("a list");
    assert_parses(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ratekeeper(&["serve", "--unheard-of", "--help"]).status.code(), Some(2));
}

#[test]
fn stop_timeouts_are_longer_than_the_drain() {
    let drain = |words: &[&str]| {
        let text = words.join(" ").replace('=', " ");
        secs(text.split_once("--drain ").expect("a drain timeout").1.split(' ').next().unwrap())
    };
    let words: Vec<_> = setting("ExecStart").split(' ').collect();
    assert!(secs(setting("TimeoutStopSec")) > drain(&words));
    let pod = &document(RATEKEEPER, "Deployment", "ratekeeper")["spec"]["template"]["spec"];
    let container = container();
    let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let grace_period = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace_period > before + drain(&args(&container)));
}

#[test]
fn the_policy_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, file(RATEKEEPER, "ratekeeper", "policy.yaml")).unwrap();
    let checked = ratekeeper(&["check", path.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Every name, label and port that a manifest refers to exists.
#[test]
fn manifests_are_consistent() {
    for text in [RATEKEEPER, SIDECAR] {
        let all = documents(text);
        let of_kind = |kind: &'static str| all.iter().filter(move |one| one["kind"] == kind);
        let deployment = of_kind("Deployment").next().expect("a Deployment");
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let pod = &deployment["spec"]["template"]["spec"];
        let containers = pod["containers"].as_array().unwrap();
        let ports: Vec<_> = containers
            .iter()
            .flat_map(|container| container["ports"].as_array().cloned().unwrap_or_default())
            .map(|port| port["name"].clone())
            .collect();
        assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
        for service in of_kind("Service") {
            assert_eq!(&service["spec"]["selector"], labels);
            for port in service["spec"]["ports"].as_array().unwrap() {
                assert!(ports.contains(&port["targetPort"]), "{port}");
            }
        }
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probes = containers.iter().filter_map(|container| container.get(probe));
            probes.for_each(|probe| assert!(ports.contains(&probe["httpGet"]["port"]), "{probe}"));
        }
        for volume in pod["volumes"].as_array().unwrap() {
            let name = volume["configMap"]["name"].as_str().unwrap();
            document(text, "ConfigMap", name);
        }
    }
    let budget = document(RATEKEEPER, "PodDisruptionBudget", "ratekeeper");
    let labels = &document(RATEKEEPER, "Deployment", "ratekeeper")["metadata"]["labels"];
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    // One that selects no pod would protect nothing.
    let network = document(RATEKEEPER, "NetworkPolicy", "ratekeeper");
    assert_eq!(&network["spec"]["podSelector"]["matchLabels"], labels);
}

/// Only where systemd is installed.
#[test]
fn systemd_accepts_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ratekeeper.service");
    let program = env!("CARGO_BIN_EXE_ratekeeper");
    fs::write(&path, UNIT.replace("/usr/local/bin/ratekeeper", program)).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let stderr = String::from_utf8_lossy(&verified.stderr);
    let about_us: Vec<_> = stderr.lines().filter(|line| line.contains("ratekeeper")).collect();
    assert!(verified.status.success() && about_us.is_empty(), "{stderr}");
}
