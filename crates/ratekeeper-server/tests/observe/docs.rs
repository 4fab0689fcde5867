//! The table of metrics in the documentation, compared with the exported metrics.

use std::collections::{BTreeMap, BTreeSet};

use crate::alerts::{assert_valid, pages};

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
fn the_table_lists_exactly_the_exported_metrics_and_labels() {
    let mut exported = BTreeMap::new();
    for page in pages() {
        let labels = page.labels();
        for (name, kind) in page.kinds() {
            let labels = labels[&name].clone();
            exported.insert(name, (kind, labels));
        }
    }
    assert_eq!(rows(), exported);
}

#[test]
fn the_queries_are_valid() {
    let (_, table) = DOCS.split_once("| question | query (PromQL) |").expect("the table");
    let (table, _) = table.split_once("\n\n").expect("it ends");
    let quoted = table.split('`').skip(1).step_by(2);
    let queries: Vec<_> = quoted.map(|query| query.replace("\\|", "|")).collect();
    assert!(queries.len() > 6, "{queries:?}");
    assert_valid(&queries);
}
