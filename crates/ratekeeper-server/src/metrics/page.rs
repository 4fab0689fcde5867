//! The metrics of one scrape, encoded by `prometheus-client`.
//!
//! Counters live where they are counted; a scrape collects them here. Labels come from the configuration,
//! never from requests.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ratekeeper::histogram::{BOUNDS_US, DurationCounts};

/// The content type of [`Page::into_text`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of one scrape.
#[derive(Debug, Default)]
pub(crate) struct Page {
    families: Vec<Family>,
}

/// Names and values of labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels<'l>(pub(crate) Vec<(&'static str, &'l str)>);

#[derive(Debug)]
struct Family {
    name: String,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Vec<(&'static str, String)>, Sample)>,
}

#[derive(Debug)]
enum Sample {
    Counter(u64),
    Gauge(u64),
    Histogram(Box<DurationCounts>),
}

impl Page {
    /// Adds a counter, whose name ends with `_total`, for each set of labels.
    pub(crate) fn counter<'l, V: TryInto<u64>>(
        &mut self,
        name: &str,
        help: &'static str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        let counter = |value: V| Sample::Counter(value.try_into().unwrap_or(u64::MAX));
        self.add(name, help, MetricType::Counter, values, counter);
    }

    /// Adds a gauge for each set of labels.
    pub(crate) fn gauge<'l, V: TryInto<u64>>(
        &mut self,
        name: &str,
        help: &'static str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        let gauge = |value: V| Sample::Gauge(value.try_into().unwrap_or(u64::MAX));
        self.add(name, help, MetricType::Gauge, values, gauge);
    }

    /// Adds a histogram of durations in seconds for each set of labels.
    pub(crate) fn histogram<'l>(
        &mut self,
        name: &str,
        help: &'static str,
        values: impl IntoIterator<Item = (Labels<'l>, DurationCounts)>,
    ) {
        let histogram = |counts| Sample::Histogram(Box::new(counts));
        self.add(name, help, MetricType::Histogram, values, histogram);
    }

    fn add<'l, V>(
        &mut self,
        name: &str,
        help: &'static str,
        kind: MetricType,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
        sample: impl Fn(V) -> Sample,
    ) {
        let samples = values.into_iter().map(|(labels, value)| {
            let labels = labels.0.into_iter().map(|(name, value)| (name, value.to_string()));
            (labels.collect(), sample(value))
        });
        let samples = samples.collect();
        self.families.push(Family { name: name.to_string(), help, kind, samples });
    }

    /// Encodes the page in the Prometheus text format ([`CONTENT_TYPE`]), which every scraper reads.
    pub(crate) fn into_text(self) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(self));
        text::encode_registry(&mut text, &registry).expect("a string can always be written");
        text
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, kind, samples } in &self.families {
            let mut family = encoder.encode_descriptor(name, help, None, *kind)?;
            for (labels, sample) in samples {
                match labels.is_empty() {
                    true => sample.encode(&mut family)?,
                    false => sample.encode(&mut family.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

impl Sample {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            // As a counter it would be called `…_total_total`: OpenMetrics has the suffix in the sample only.
            Self::Counter(value) | Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram(counts) => {
                let mut below = 0;
                let mut buckets: Vec<(f64, u64)> = BOUNDS_US
                    .iter()
                    .zip(counts.within)
                    .map(|(bound, within)| {
                        let count = within - std::mem::replace(&mut below, within);
                        (*bound as f64 / 1e6, count)
                    })
                    .collect();
                buckets.push((f64::INFINITY, counts.count - below));
                let sum = counts.sum.as_micros() as f64 / 1e6;
                encoder.encode_histogram::<NoLabelSet>(sum, counts.count, &buckets, None)
            }
        }
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
        let labels = Labels(vec![("protocol", "http")]);
        page.histogram("took_seconds", "How long it took.", [(labels, histogram.counts())]);
        let text = page.into_text();
        for line in [
            "# HELP took_seconds How long it took.",
            "# TYPE took_seconds histogram",
            "took_seconds_bucket{le=\"0.00001\",protocol=\"http\"} 0",
            "took_seconds_bucket{le=\"0.000025\",protocol=\"http\"} 2",
            "took_seconds_bucket{le=\"1.0\",protocol=\"http\"} 2",
            "took_seconds_bucket{le=\"+Inf\",protocol=\"http\"} 3",
            "took_seconds_sum{protocol=\"http\"} 1.50005",
            "took_seconds_count{protocol=\"http\"} 3",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_counter_and_a_gauge_have_their_names() {
        let mut page = Page::default();
        page.counter("served_total", "How often.", [(Labels::default(), 7_u64)]);
        page.gauge("open", "How many.", [(Labels::default(), 3_usize)]);
        let text = page.into_text();
        assert!(text.contains("# TYPE served_total counter\nserved_total 7\n"), "{text}");
        assert!(text.contains("# TYPE open gauge\nopen 3\n"), "{text}");
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let mut page = Page::default();
        page.gauge("open", "How many.", [(Labels(vec![("limit", "a\"b\\c\nd")]), 1_u8)]);
        let text = page.into_text();
        assert!(text.contains(r#"open{limit="a\"b\\c\nd"} 1"#), "{text}");
    }
}
