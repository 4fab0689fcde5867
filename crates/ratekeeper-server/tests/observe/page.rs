//! A page of metrics, as it was scraped.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Page(pub(crate) String);

impl Page {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The value of a series, written as the page writes it.
    pub(crate) fn value(&self, series: &str) -> f64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in\n{}", self.0)).parse().unwrap()
    }

    /// The names of metrics, and what kind each is.
    pub(crate) fn kinds(&self) -> BTreeMap<String, String> {
        let types = self.0.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let pair = types.filter_map(|line| line.split_once(' '));
        pair.map(|(name, kind)| (name.to_string(), kind.to_string())).collect()
    }

    /// The names of labels of each metric.
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

/// The metric that a series belongs to: those of a histogram have endings.
pub(crate) fn metric(series: &str, kinds: &BTreeMap<String, String>) -> String {
    let endings = ["_bucket", "_sum", "_count"];
    let base = endings.iter().find_map(|ending| series.strip_suffix(ending));
    let base = base.filter(|base| kinds.get(*base).is_some_and(|kind| kind == "histogram"));
    base.unwrap_or(series).to_string()
}
