//! A page of metrics, as it is written.

use std::fmt::{Display, Write as _};

use ratekeeper::histogram::{BOUNDS_US, Durations};

/// A page of metrics.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// A number that only grows, once for each set of labels.
    pub(crate) fn counter<'l, V: Display>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        self.family("counter", name, help, values);
    }

    /// A number that goes up and down, once for each set of labels.
    pub(crate) fn gauge<'l, V: Display>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        self.family("gauge", name, help, values);
    }

    /// How long things took, in seconds, once for each set of labels.
    pub(crate) fn histogram<'l>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, Durations)>,
    ) {
        self.title("histogram", name, help);
        for (labels, told) in values {
            for (bound, within) in BOUNDS_US.iter().zip(told.within) {
                let bound = seconds(*bound);
                let labels = labels.and("le", &bound);
                let _ = writeln!(self.text, "{name}_bucket{labels} {within}");
            }
            let all = labels.and("le", "+Inf");
            let _ = writeln!(self.text, "{name}_bucket{all} {}", told.count);
            let sum = seconds(told.sum.as_micros() as u64);
            let _ = writeln!(self.text, "{name}_sum{labels} {sum}");
            let _ = writeln!(self.text, "{name}_count{labels} {}", told.count);
        }
    }

    fn family<'l, V: Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        self.title(kind, name, help);
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    fn title(&mut self, kind: &str, name: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// Names and values of labels.
#[derive(Clone, Default)]
pub(crate) struct Labels<'l>(pub(crate) Vec<(&'static str, &'l str)>);

impl Labels<'_> {
    /// The same and one more.
    fn and<'m>(&'m self, name: &'static str, value: &'m str) -> Labels<'m> {
        Labels(self.0.iter().copied().chain([(name, value)]).collect())
    }
}

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        for (i, (name, value)) in self.0.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{}{name}=\"{value}\"", if i == 0 { "{" } else { "," })?;
        }
        f.write_str("}")
    }
}

/// Exactly, without a float.
fn seconds(us: u64) -> String {
    let (whole, part) = (us / 1_000_000, us % 1_000_000);
    match format!("{part:06}").trim_end_matches('0') {
        "" => whole.to_string(),
        part => format!("{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::histogram::Histogram;
    use std::time::Duration;

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(25), 2);
        histogram.record(Duration::from_millis(1_500), 1);
        let mut page = Page::default();
        let labels = Labels(vec![("door", "http")]);
        page.histogram("took_seconds", "How long.", [(labels, histogram.durations())]);
        let text = page.into_text();
        for line in [
            "# TYPE took_seconds histogram",
            "took_seconds_bucket{door=\"http\",le=\"0.00001\"} 0",
            "took_seconds_bucket{door=\"http\",le=\"0.000025\"} 2",
            "took_seconds_bucket{door=\"http\",le=\"1\"} 2",
            "took_seconds_bucket{door=\"http\",le=\"+Inf\"} 3",
            "took_seconds_sum{door=\"http\"} 1.50005",
            "took_seconds_count{door=\"http\"} 3",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let labels = Labels(vec![("limit", "a\"b\\c\nd")]);
        assert_eq!(labels.to_string(), r#"{limit="a\"b\\c\nd"}"#);
    }
}
