//! Policy files: valid ones are accepted, and the errors of invalid ones are as recorded.
//!
//! To accept what has changed: `SNAPSHOTS=overwrite cargo test -p ratekeeper-policy --test format`.

use std::fs;
use std::path::{Path, PathBuf};

use ratekeeper_policy::{NoSources, Policy, PolicyErrors};
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::Value as Json;

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies").join(folder);
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "yaml"));
    files.sort();
    files
}

fn parse(file: &Path) -> Result<Policy, PolicyErrors> {
    let name = file.file_name().unwrap().to_string_lossy();
    Policy::parse(&name, &fs::read_to_string(file).unwrap(), &NoSources)
}

#[test]
fn valid_policies_are_accepted() {
    for file in files("valid") {
        if let Err(errors) = parse(&file) {
            panic!("{errors}");
        }
    }
}

#[test]
fn invalid_policies_have_the_recorded_errors() {
    let files = files("invalid");
    assert!(files.len() >= 25);
    for file in files {
        let shown = match parse(&file) {
            Ok(_) => panic!("{} is valid", file.display()),
            Err(errors) => format!("{errors}\n"),
        };
        let snapshot = file.with_extension("errors");
        if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
            fs::write(&snapshot, &shown).unwrap();
        }
        let expected = fs::read_to_string(&snapshot).unwrap_or_default();
        assert_eq!(shown, expected, "{}", snapshot.display());
    }
}

/// Each error has a position in the file, and marks text there.
#[test]
fn every_error_has_a_position() {
    for file in files("invalid") {
        let lines = fs::read_to_string(&file).unwrap();
        for problem in parse(&file).unwrap_err().problems() {
            let line = lines.lines().nth(problem.line() - 1).unwrap_or_default();
            let position = format!("{}:{}:{}", file.display(), problem.line(), problem.column());
            assert!(
                problem.column() <= line.chars().count().max(1),
                "{position}: {}",
                problem.message()
            );
            assert!(!problem.message().is_empty(), "{position}");
        }
    }
}

fn schema() -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(&Policy::json_schema()).unwrap()).unwrap()
}

#[test]
fn the_schema_accepts_valid_policies() {
    let schema = schema();
    for file in files("valid") {
        let policy = json(&file).unwrap();
        if let Some(error) = schema.iter_errors(&policy).next() {
            panic!("{}: {}: {error}", file.display(), error.instance_path());
        }
    }
}

/// Errors that a schema cannot express: those that depend on several values, and invalid YAML.
const BEYOND_SCHEMA: &[&str] = &[
    "aliases",
    "calendar",
    "empty",
    "jwt-sources",
    "long-lines",
    "names",
    "no-tiers",
    "not-yaml",
    "store-kind",
    "tabs",
    "tiers",
    "shedding-classes",
    "shedding-others",
    "twice",
    "two-documents",
    "unicode",
];

#[test]
fn the_schema_rejects_invalid_policies() {
    let schema = schema();
    for file in files("invalid") {
        let name = file.file_stem().unwrap().to_string_lossy();
        let is_refused = json(&file).is_none_or(|policy| !schema.is_valid(&policy));
        assert!(is_refused || BEYOND_SCHEMA.contains(&name.as_ref()), "{name} is accepted");
    }
}

/// Returns the file as JSON. `None` if it is not YAML.
fn json(file: &Path) -> Option<Json> {
    let text = fs::read_to_string(file).unwrap();
    let documents = Yaml::load_from_str(&text).ok()?;
    documents.first().map(to_json)
}

fn to_json(yaml: &Yaml<'_>) -> Json {
    match yaml {
        Yaml::Value(Scalar::String(text)) => text.as_ref().into(),
        Yaml::Value(Scalar::Integer(number)) => (*number).into(),
        Yaml::Value(Scalar::Boolean(boolean)) => (*boolean).into(),
        Yaml::Value(Scalar::FloatingPoint(number)) => number.into_inner().into(),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(entries) => {
            let name = |key: &Yaml<'_>| match to_json(key) {
                Json::String(text) => text,
                other => other.to_string(),
            };
            entries.iter().map(|(key, value)| (name(key), to_json(value))).collect()
        }
        _ => Json::Null,
    }
}
