//! The table of metrics, and what is really told.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::pages;

const DOCS: &str = include_str!("../../../../docs/operations.md");

/// Name, kind and labels of each row.
fn rows() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let rows = DOCS.lines().filter(|line| line.starts_with("| `ratekeeper_"));
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").map(|label| label.trim_matches('`').to_string());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (cells[1].trim_matches('`').to_string(), (cells[2].to_string(), labels))
    };
    rows.map(row).collect()
}

#[test]
fn the_table_tells_every_metric_with_its_labels_and_no_other() {
    let mut told = BTreeMap::new();
    for page in pages() {
        let labels = page.labels();
        for (name, kind) in page.kinds() {
            let labels = labels[&name].clone();
            told.insert(name, (kind, labels));
        }
    }
    assert_eq!(rows(), told);
}
