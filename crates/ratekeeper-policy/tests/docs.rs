//! What the documentation shows can be used as it stands.

use ratekeeper_policy::{NoSources, Policy};

const DOCS: &str = include_str!("../../../docs/policy.md");

#[test]
fn every_policy_in_the_documentation_is_valid() {
    let blocks: Vec<_> =
        DOCS.split("```yaml\n").skip(1).map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 10);
    for block in blocks.into_iter().flatten() {
        if let Err(errors) = Policy::parse("docs/policy.md", block, &NoSources) {
            panic!("{errors}");
        }
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
