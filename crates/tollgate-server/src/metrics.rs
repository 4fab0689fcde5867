//! Numbers in Prometheus' text format. Labels come from the configuration, never from requests.

use std::fmt::{Display, Write as _};

use tollgate::Gate;
use tollgate::shared::StoreState;

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

    fn family<'l, V: Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// Names and values of labels.
#[derive(Clone, Default)]
pub(crate) struct Labels<'l>(pub(crate) Vec<(&'static str, &'l str)>);

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

fn one<'l, V>(value: V) -> [(Labels<'l>, V); 1] {
    [(Labels::default(), value)]
}

/// What a gate has done.
pub(crate) fn gate(page: &mut Page, gate: &Gate) {
    let stats = gate.stats();
    let decisions = stats.iter().flat_map(|limit| {
        let counts = [
            ("allowed", limit.allowed),
            ("denied", limit.denied),
            ("shadow_denied", limit.shadow_denied),
        ];
        counts.map(|(outcome, n)| (Labels(vec![("limit", &*limit.name), ("outcome", outcome)]), n))
    });
    page.counter("tollgate_decisions_total", "Decisions of each limit.", decisions);
    page.counter("tollgate_exempt_total", "Requests that no limit applied to.", one(gate.exempt()));
    policy(page, gate);
    if let Some(memory) = gate.memory_stats() {
        page.gauge("tollgate_memory_keys", "Keys in memory.", one(memory.live_keys));
        page.gauge("tollgate_memory_bytes", "Memory set aside for keys.", one(memory.memory_bytes));
        let help = "Keys that were given up for want of room.";
        page.counter("tollgate_memory_evictions_total", help, one(memory.evictions));
    }
    store(page, gate);
}

fn policy(page: &mut Page, gate: &Gate) {
    let loaded = gate.loaded();
    let help = "Policies that have been in force since the start.";
    page.gauge("tollgate_policy_version", help, one(loaded.version));
    let help = "When the policy in force was loaded.";
    let at = loaded.at.get() / 1_000_000;
    page.gauge("tollgate_policy_loaded_timestamp_seconds", help, one(at));
    let help = "Policies that could not be loaded.";
    page.counter("tollgate_policy_failures_total", help, one(loaded.failures));
    let help = "Whether the last policy that was offered is in force.";
    page.gauge("tollgate_policy_ok", help, one(u8::from(loaded.error.is_none())));
}

fn store(page: &mut Page, gate: &Gate) {
    let (Some(state), Some(ladder)) = (gate.store_state(), gate.ladder_stats()) else { return };
    let is_up = u8::from(!matches!(state, StoreState::Down(_)));
    page.gauge("tollgate_store_up", "Whether the store answers.", one(is_up));
    let by = |who| Labels(vec![("by", who)]);
    let answers = [
        (by("store"), ladder.answered),
        (by("local"), ladder.local),
        (by("allow"), ladder.allowed),
        (by("deny"), ladder.denied),
    ];
    page.counter("tollgate_answers_total", "Who gave the answers.", answers);
    let kind = |kind| Labels(vec![("kind", kind)]);
    let errors = [
        (kind("deadline"), ladder.deadlines),
        (kind("unreachable"), ladder.unreachable),
        (kind("refused"), ladder.refused),
        (kind("misconfigured"), ladder.misconfigured),
        (kind("nonsense"), ladder.nonsense),
    ];
    page.counter("tollgate_store_errors_total", "Calls to the store that failed.", errors);
    let help = "How often the store was given up for a while.";
    page.counter("tollgate_breaker_opened_total", help, one(ladder.opened));
    page.gauge("tollgate_nodes", "Nodes that share the store.", one(ladder.nodes));
}
