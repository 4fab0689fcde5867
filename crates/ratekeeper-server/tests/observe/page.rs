//! A scraped metrics page.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Page(pub(crate) String);

impl Page {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the value of a series.
    pub(crate) fn value(&self, series: &str) -> f64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in\n{}", self.0)).parse().unwrap()
    }

    /// Returns the name and kind of each metric.
    pub(crate) fn kinds(&self) -> BTreeMap<String, String> {
        let types = self.0.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let pair = types.filter_map(|line| line.split_once(' '));
        pair.map(|(name, kind)| (name.to_string(), kind.to_string())).collect()
    }

    /// Returns the label names of each metric.
    pub(crate) fn labels(&self) -> BTreeMap<String, BTreeSet<String>> {
        let kinds = self.kinds();
        let mut labels: BTreeMap<_, BTreeSet<_>> =
            kinds.keys().map(|name| (name.clone(), BTreeSet::new())).collect();
        for line in self.0.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, rest)) = line.split_once('{') else { continue };
            let of = labels.get_mut(&metric(name, &kinds)).expect("a series has a type");
            let named = rest.split("\",").filter_map(|pair| pair.split_once("=\""));
            of.extend(named.map(|(label, _)| label.to_string()).filter(|label| label != "le"));
        }
        labels
    }
}

/// Returns the metric that a series belongs to; the series of a histogram have suffixes.
pub(crate) fn metric(series: &str, kinds: &BTreeMap<String, String>) -> String {
    let endings = ["_bucket", "_sum", "_count"];
    let base = endings.iter().find_map(|ending| series.strip_suffix(ending));
    let base = base.filter(|base| kinds.get(*base).is_some_and(|kind| kind == "histogram"));
    base.unwrap_or(series).to_string()
}
