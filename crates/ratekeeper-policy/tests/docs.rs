//! What the documentation shows can be used as it stands.

use std::fs;
use std::path::Path;

use ratekeeper_policy::{NoSources, Policy};

const DOCS: &str = include_str!("../../../docs/policy.md");

/// Returns the blocks of YAML in a document.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[track_caller]
fn assert_valid(name: &str, block: &str) {
    if let Err(errors) = Policy::parse(name, block, &NoSources) {
        panic!("{errors}");
    }
}

#[test]
fn every_policy_in_the_documentation_is_valid() {
    let blocks = blocks(DOCS);
    assert!(blocks.len() > 10);
    blocks.iter().for_each(|block| assert_valid("docs/policy.md", block));
}

#[test]
fn every_policy_in_other_documents_is_valid() {
    let documents = [
        ("docs/axum.md", include_str!("../../../docs/axum.md"), 10),
        ("docs/client.md", include_str!("../../../docs/client.md"), 1),
        ("docs/fleet.md", include_str!("../../../docs/fleet.md"), 2),
        ("docs/forward-auth.md", include_str!("../../../docs/forward-auth.md"), 1),
        ("docs/gateway.md", include_str!("../../../docs/gateway.md"), 2),
        ("docs/llm-tokens.md", include_str!("../../../docs/llm-tokens.md"), 1),
        ("docs/protection.md", include_str!("../../../docs/protection.md"), 1),
    ];
    for (name, text, at_least) in documents {
        let blocks = blocks(text).into_iter().filter(|block| block.starts_with("version:"));
        let policies: Vec<_> = blocks.collect();
        assert!(policies.len() >= at_least, "{name} has {} policies", policies.len());
        policies.iter().for_each(|block| assert_valid(name, block));
    }
}

/// Every field of the schema is explained.
#[test]
fn every_field_is_in_the_documentation() {
    let schema: serde_json::Value = serde_json::from_str(&Policy::json_schema()).unwrap();
    let sections = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    for section in sections {
        for field in section["properties"].as_object().unwrap().keys() {
            assert!(DOCS.contains(field.as_str()), "{field} is not explained");
        }
    }
}

/// Returns the anchors of a document's headings, as they are made from their text.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let words: String = heading.trim_start_matches('#').trim().chars().filter(kept).collect();
        words.to_lowercase().replace(' ', "-")
    };
    headings.map(slug).collect()
}

/// Returns the targets of the links in a document, except those to other sites.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(' ')).collect()
}

#[test]
fn every_link_between_documents_has_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|file| file.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let others = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "deploy/README.md"];
    for document in docs.chain(others.map(|name| root.join(name))) {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            assert!(target.exists(), "{}: {link}", document.display());
            let is_known =
                || anchors(&fs::read_to_string(&target).unwrap()).contains(&anchor.into());
            assert!(anchor.is_empty() || is_known(), "{}: {link}", document.display());
        }
    }
}
