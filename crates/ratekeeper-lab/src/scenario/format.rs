//! Reads scenario files.

use std::ops::Range;
use std::time::Duration;

use ratekeeper_core::{Algorithm, FailureMode, Limit, Rate, parse_duration};
use ratekeeper_policy::suggest::closest;
use ratekeeper_policy::yaml::{Node, Problems, Value};

use super::setup::{
    ClientClass, LimiterMode, LimiterSetup, NodeSetup, ServiceSetup, Setup, StoreSetup,
};
use crate::arrival::Arrival;
use crate::retry::RETRY_MODELS;
use crate::service::ServiceTime;

/// Reads a file that a scenario names, such as a trace.
pub(super) type Traces<'t> = dyn Fn(&str) -> Result<Vec<Arrival>, String> + 't;

/// The longest scenario: a week.
pub(super) const DURATION_MAX: Duration = Duration::from_secs(7 * 86_400);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// What holds for all variants.
pub(super) struct Head {
    pub(super) name: String,
    pub(super) duration_us: u64,
    pub(super) seed: u64,
    pub(super) shows_ends: Option<bool>,
}

/// Reads scenarios, and collects what is wrong.
pub(super) struct Reader<'p> {
    pub(super) problems: &'p mut Problems,
    pub(super) traces: &'p Traces<'p>,
}

const SECTIONS: [&str; 9] =
    ["name", "duration", "seed", "show", "clients", "limiter", "store", "service", "variants"];

impl Reader<'_> {
    pub(super) fn head(&mut self, root: &Node) -> Head {
        self.only(root, &SECTIONS);
        let duration = self.required(root, "duration").and_then(|node| self.duration(node));
        let duration = duration.unwrap_or(Duration::from_secs(60));
        if duration > DURATION_MAX {
            self.report::<()>(
                root.get("duration").unwrap_or(root),
                "a scenario lasts a week at most",
            );
        }
        let shows_ends = root.get("show").and_then(|node| match node.text() {
            Some("decisions") => Some(false),
            Some("responses") => Some(true),
            _ => self.report(node, "use \"decisions\" or \"responses\""),
        });
        let name = root.get("name").and_then(Node::text).unwrap_or("scenario").to_string();
        let seed = root.get("seed").and_then(|node| self.whole(node, 0)).unwrap_or(1);
        Head { name, duration_us: us(duration), seed, shows_ends }
    }

    /// Reads the scenario once for each variant, with what the variant says instead.
    pub(super) fn setups(&mut self, root: &Node, head: &Head) -> Vec<Setup> {
        let Some(variants) = root.get("variants") else {
            return vec![self.setup(root, head.name.clone(), head)];
        };
        let setup = |variant: &Node| {
            self.only(variant, &["name", "clients", "limiter", "store", "service"]);
            let name = self.required(variant, "name").and_then(Node::text);
            let name = name.unwrap_or_default().to_string();
            self.setup(&merged(root, variant), name, head)
        };
        variants.items().iter().map(setup).collect()
    }

    fn setup(&mut self, root: &Node, name: String, head: &Head) -> Setup {
        let clients = self.required(root, "clients").map_or(&[][..], Node::items);
        let clients = clients.iter().map(|node| self.client(node, head)).collect();
        Setup {
            name,
            clients,
            limiter: root.get("limiter").and_then(|node| self.limiter(node)),
            store: self.store(root.get("store")),
            service: root.get("service").map(|node| self.service(node)),
        }
    }

    fn client(&mut self, node: &Node, head: &Head) -> ClientClass {
        const FIELDS: [&str; 14] = [
            "name",
            "rate",
            "load",
            "diurnal",
            "flash_sale",
            "bursts",
            "users",
            "think",
            "trace",
            "keys",
            "timeout",
            "round_trip",
            "retry",
            "retries",
        ];
        self.only(node, &FIELDS);
        let retry = node.get("retry").and_then(|node| self.retry(node)).unwrap_or("none");
        ClientClass {
            name: node.get("name").and_then(Node::text).unwrap_or("client").to_string(),
            source: self.source(node, head),
            keys: self.whole_or(node, "keys", 1, 1),
            timeout_us: self.us_or(node, "timeout", DEFAULT_TIMEOUT),
            round_trip_us: self.us_or(node, "round_trip", Duration::ZERO),
            retry: retry.to_string(),
            retries_max: self.whole_or(node, "retries", 0, 3) as u32,
        }
    }

    fn retry(&mut self, node: &Node) -> Option<&'static str> {
        let names = RETRY_MODELS.iter().map(|(name, _)| *name);
        let found = names.clone().find(|name| node.text() == Some(name));
        found.or_else(|| {
            let names: Vec<_> = names.collect();
            self.report(node, &format!("no such way to retry; use {}", names.join(", ")))
        })
    }

    fn limiter(&mut self, node: &Node) -> Option<LimiterSetup> {
        const FIELDS: [&str; 10] = [
            "rate",
            "algorithm",
            "mode",
            "per",
            "nodes",
            "regions",
            "clock_skew",
            "hot_node",
            "on_store_failure",
            "changes",
        ];
        self.only(node, &FIELDS);
        let algorithm = node.get("algorithm").and_then(|node| {
            let parsed: Result<Algorithm, _> = node.text().unwrap_or_default().parse();
            parsed.map_err(|error| self.report::<()>(node, &error.to_string())).ok()
        });
        let limit = self.required(node, "rate").and_then(|rate| self.limit(rate, algorithm))?;
        let mode = self.one_of(
            node,
            "mode",
            &[
                ("shared", LimiterMode::Shared),
                ("local", LimiterMode::Local),
                ("divided", LimiterMode::Divided),
                ("leased", LimiterMode::Leased),
            ],
        );
        let is_per_key = self.one_of(node, "per", &[("key", true), ("all", false)]);
        let on_store_failure = self.one_of(
            node,
            "on_store_failure",
            &[
                ("local", FailureMode::Local),
                ("open", FailureMode::Open),
                ("closed", FailureMode::Closed),
            ],
        );
        let changes = node.get("changes").map_or(&[][..], Node::items);
        let change = |node: &Node| {
            self.only(node, &["at", "rate"]);
            let at = self.required(node, "at").and_then(|node| self.duration(node))?;
            let rate = self.required(node, "rate")?;
            Some((us(at), self.limit(rate, algorithm)?))
        };
        let mut changes: Vec<_> = changes.iter().filter_map(change).collect();
        changes.sort_by_key(|(at_us, _)| *at_us);
        Some(LimiterSetup {
            limit,
            mode: mode.unwrap_or(LimiterMode::Shared),
            is_per_key: is_per_key.unwrap_or(true),
            nodes: self.nodes(node),
            hot_node: node.get("hot_node").and_then(|node| self.share(node)),
            on_store_failure: on_store_failure.unwrap_or(FailureMode::Local),
            changes,
        })
    }

    /// Reads the nodes. Their clocks are spread evenly over the skew, from behind to ahead.
    fn nodes(&mut self, node: &Node) -> Vec<NodeSetup> {
        const NODES_MAX: u64 = 1_000;
        let mut round_trips = Vec::new();
        for region in node.get("regions").map_or(&[][..], Node::items) {
            self.only(region, &["name", "nodes", "round_trip"]);
            let nodes = self.whole_or(region, "nodes", 1, 1).min(NODES_MAX);
            let round_trip_us = self.us_or(region, "round_trip", Duration::ZERO);
            round_trips.extend(std::iter::repeat_n(round_trip_us, nodes as usize));
        }
        if round_trips.is_empty() {
            let nodes = self.whole_or(node, "nodes", 1, 1).min(NODES_MAX);
            round_trips = vec![0; nodes as usize];
        } else if let Some(nodes) = node.get("nodes") {
            self.report::<()>(nodes, "regions have their own numbers of nodes");
        }
        let skew_us = self.us_or(node, "clock_skew", Duration::ZERO) as i64;
        let last = (round_trips.len() as i64 - 1).max(1);
        let skew = |n: usize| match round_trips.len() {
            1 => 0,
            _ => -skew_us + 2 * skew_us * n as i64 / last,
        };
        let nodes = round_trips.iter().enumerate();
        nodes
            .map(|(n, round_trip_us)| NodeSetup { skew_us: skew(n), round_trip_us: *round_trip_us })
            .collect()
    }

    fn store(&mut self, node: Option<&Node>) -> StoreSetup {
        const LATENCY: Duration = Duration::from_micros(500);
        const DEADLINE: Duration = Duration::from_millis(5);
        let defaults = StoreSetup {
            latency_us: us(LATENCY),
            deadline_us: us(DEADLINE),
            outages: Vec::new(),
            slow: Vec::new(),
        };
        let Some(node) = node else { return defaults };
        self.only(node, &["latency", "deadline", "outages", "slow"]);
        let outages = node.get("outages").map_or(&[][..], Node::items);
        let slow = node.get("slow").map_or(&[][..], Node::items);
        StoreSetup {
            latency_us: self.us_or(node, "latency", LATENCY),
            deadline_us: self.us_or(node, "deadline", DEADLINE),
            outages: outages.iter().filter_map(|node| self.span(node, &[])).collect(),
            slow: slow
                .iter()
                .filter_map(|node| {
                    let latency = self.required(node, "latency")?;
                    Some((self.span(node, &["latency"])?, us(self.duration(latency)?)))
                })
                .collect(),
        }
    }

    fn service(&mut self, node: &Node) -> ServiceSetup {
        self.only(node, &["workers", "latency", "queue", "slow"]);
        let time = self.required(node, "latency").and_then(|node| self.service_time(node));
        let slow = node.get("slow").map_or(&[][..], Node::items);
        ServiceSetup {
            workers: self.whole_or(node, "workers", 1, 1),
            time: time.unwrap_or(ServiceTime::Constant(Duration::ZERO)),
            queue_max: self.whole_or(node, "queue", 0, u64::MAX),
            slow: slow
                .iter()
                .filter_map(|node| {
                    let factor = self.required(node, "factor")?;
                    Some((self.span(node, &["factor"])?, self.factor(factor)?))
                })
                .collect(),
        }
    }

    /// Reads a duration, `{ exponential: 50ms }` or `{ median: 10ms, sigma: 1.0 }`.
    fn service_time(&mut self, node: &Node) -> Option<ServiceTime> {
        if node.text().is_some() {
            return self.duration(node).map(ServiceTime::Constant);
        }
        self.only(node, &["exponential", "median", "sigma"]);
        if let Some(mean) = node.get("exponential") {
            return self.duration(mean).map(ServiceTime::Exponential);
        }
        let median = self.required(node, "median").and_then(|node| self.duration(node))?;
        let sigma = self.required(node, "sigma").and_then(|node| self.factor(node))?;
        Some(ServiceTime::LogNormal { median, sigma })
    }

    fn span(&mut self, node: &Node, others: &[&str]) -> Option<Range<u64>> {
        let fields: Vec<_> = ["from", "until"].iter().chain(others).copied().collect();
        self.only(node, &fields);
        let from = self.required(node, "from").and_then(|node| self.duration_or_zero(node))?;
        let until = self.required(node, "until").and_then(|node| self.duration(node))?;
        match from < until {
            true => Some(us(from)..us(until)),
            false => self.report(node, "\"until\" is not after \"from\""),
        }
    }

    fn limit(&mut self, node: &Node, algorithm: Option<Algorithm>) -> Option<Limit> {
        let rate = self.rate(node)?;
        let algorithm = algorithm.unwrap_or_else(|| Algorithm::default_for(&rate));
        match Limit::new(rate, algorithm) {
            Ok(limit) => Some(limit.named("scenario")),
            Err(error) => self.report(node, &error.to_string()),
        }
    }

    fn rate(&mut self, node: &Node) -> Option<Rate> {
        match node.text().unwrap_or_default().parse::<Rate>() {
            Ok(rate) => Some(rate),
            Err(error) => {
                let span = self.problems.span_of(node, error.span());
                self.problems.report(span, error.message());
                None
            }
        }
    }

    /// Reads a rate of requests; 0 is none.
    pub(super) fn per_second(&mut self, node: &Node) -> Option<f64> {
        if node.text() == Some("0") {
            return Some(0.0);
        }
        let rate = self.rate(node)?;
        Some(rate.count() as f64 / rate.period().as_secs_f64())
    }

    pub(super) fn duration(&mut self, node: &Node) -> Option<Duration> {
        match parse_duration(node.text().unwrap_or_default()) {
            Ok(duration) => Some(duration),
            Err(error) => {
                let span = self.problems.span_of(node, error.span());
                self.problems.report(span, error.message());
                None
            }
        }
    }

    fn duration_or_zero(&mut self, node: &Node) -> Option<Duration> {
        match node.text() {
            Some("0" | "0s") => Some(Duration::ZERO),
            _ => self.duration(node),
        }
    }

    pub(super) fn us_or(&mut self, node: &Node, name: &str, default: Duration) -> u64 {
        let stated = node.get(name).and_then(|node| self.duration_or_zero(node));
        us(stated.unwrap_or(default))
    }

    pub(super) fn whole(&mut self, node: &Node, min: u64) -> Option<u64> {
        const WHOLE_MAX: u64 = 1_000_000_000;
        let number = node.text().and_then(|text| text.parse().ok());
        let in_range = number.filter(|n| (min..=WHOLE_MAX).contains(n));
        in_range.or_else(|| self.report(node, &format!("expected a whole number from {min}")))
    }

    pub(super) fn whole_or(&mut self, node: &Node, name: &str, min: u64, default: u64) -> u64 {
        node.get(name).and_then(|node| self.whole(node, min)).unwrap_or(default)
    }

    fn share(&mut self, node: &Node) -> Option<f64> {
        let percent = node.text().and_then(|text| text.strip_suffix('%')?.parse::<f64>().ok());
        let in_range = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let share = in_range.map(|percent| percent / 100.0);
        share.or_else(|| self.report(node, "expected a share such as 80%"))
    }

    fn factor(&mut self, node: &Node) -> Option<f64> {
        let factor = node.text().and_then(|text| text.parse::<f64>().ok());
        let in_range = factor.filter(|factor| (0.0..=1e6).contains(factor));
        in_range.or_else(|| self.report(node, "expected a number such as 5 or 0.8"))
    }

    fn one_of<T: Copy>(&mut self, node: &Node, name: &str, values: &[(&str, T)]) -> Option<T> {
        let node = node.get(name)?;
        let found = values.iter().find(|(value, _)| node.text() == Some(value));
        found.map(|(_, value)| *value).or_else(|| {
            let names: Vec<_> = values.iter().map(|(value, _)| *value).collect();
            self.report(node, &format!("use {}", names.join(", ")))
        })
    }

    /// Reports fields that do not exist, and what was probably meant.
    pub(super) fn only(&mut self, node: &Node, names: &[&str]) {
        if !matches!(node.value, Value::Map(_)) {
            self.report::<()>(node, &format!("expected a section with {}", names.join(", ")));
            return;
        }
        for (key, _) in node.entries() {
            let name = key.text().unwrap_or_default();
            if names.contains(&name) {
                continue;
            }
            let hint = match closest(name, names.iter().copied()) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => format!("use {}", names.join(", ")),
            };
            self.report::<()>(key, &format!("there is no field \"{name}\"; {hint}"));
        }
    }

    pub(super) fn required<'n>(&mut self, node: &'n Node, name: &str) -> Option<&'n Node> {
        node.get(name).or_else(|| self.report(node, &format!("\"{name}\" is missing")))
    }

    pub(super) fn report<T>(&mut self, node: &Node, why: &str) -> Option<T> {
        self.problems.report(node.span, why);
        None
    }
}

/// Returns a tree with what a variant says instead: fields replace fields, and a section for a list replaces fields of
/// each item.
fn merged(base: &Node, over: &Node) -> Node {
    let value = match (&base.value, &over.value) {
        (Value::Map(entries), Value::Map(others)) => {
            let is_named = |key: &Node, name: &str| key.text() == Some(name);
            let mut all = entries.clone();
            for (key, value) in others {
                let name = key.text().unwrap_or_default();
                match all.iter_mut().find(|(known, _)| is_named(known, name)) {
                    Some((_, known)) => *known = merged(known, value),
                    None => all.push((key.clone(), value.clone())),
                }
            }
            Value::Map(all)
        }
        (Value::List(items), Value::Map(_)) => {
            Value::List(items.iter().map(|item| merged(item, over)).collect())
        }
        (_, other) => other.clone(),
    };
    let span = if matches!(value, Value::Scalar { .. }) { over.span } else { base.span };
    Node { span, value }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
