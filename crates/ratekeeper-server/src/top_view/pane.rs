//! What can be shown: the panes, their columns, and their rows from a reading.

use super::rates::Rates;
use super::reading::{KeyCount, KeyList, LimitStatus, Reading, Status, StoreStatus};
use super::table::{Cell, Column, Kind, Sort, Table, Tone};
use super::time_text;
use crate::terminal::printable;

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Limits,
    Hottest,
    Denied,
    ShadowDenied,
    Server,
}

const fn column(title: &'static str, shortcut: char, kind: Kind, tone: Tone) -> Column {
    Column { title, shortcut: Some(shortcut), kind, tone }
}

const LIMIT_COLUMNS: &[Column] = &[
    column("NAME", 'n', Kind::Text, Tone::Plain),
    column("ADMITTED/S", 'a', Kind::Number, Tone::Plain),
    column("DENIED/S", 'd', Kind::Number, Tone::Error),
    column("SHADOW/S", 's', Kind::Number, Tone::Warning),
    column("NEAR/S", 'e', Kind::Number, Tone::Warning),
    column("DENIED%", 'p', Kind::Number, Tone::Plain),
    column("MODE", 'm', Kind::Text, Tone::Plain),
    column("RATE", 'r', Kind::Text, Tone::Plain),
];

const KEY_COLUMNS: &[Column] = &[
    column("COUNT", 'c', Kind::Number, Tone::Plain),
    column("ERROR", 'e', Kind::Number, Tone::Plain),
    column("LIMIT", 'l', Kind::Text, Tone::Plain),
    column("KEY", 'n', Kind::Text, Tone::Plain),
];

const SERVER_COLUMNS: &[Column] = &[
    Column { title: "WHAT", shortcut: None, kind: Kind::Text, tone: Tone::Plain },
    Column { title: "STATE", shortcut: None, kind: Kind::Text, tone: Tone::Plain },
];

impl Pane {
    pub(super) const ALL: [Self; 5] =
        [Self::Limits, Self::Hottest, Self::Denied, Self::ShadowDenied, Self::Server];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Hottest => "hottest keys",
            Self::Denied => "most denied keys",
            Self::ShadowDenied => "most shadow-denied keys",
            Self::Server => "server",
        }
    }

    /// Returns the pane so many further on, in a circle.
    pub(super) fn plus(self, panes: usize) -> Self {
        Self::ALL[(self as usize + panes) % Self::ALL.len()]
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Self::Limits => LIMIT_COLUMNS,
            Self::Hottest | Self::Denied | Self::ShadowDenied => KEY_COLUMNS,
            Self::Server => SERVER_COLUMNS,
        }
    }

    /// Returns the order at the beginning: what is denied most, what is counted most. `None` if rows have an
    /// order of their own.
    pub(super) fn sort(self) -> Option<Sort> {
        let column = match self {
            Self::Limits => 2,
            Self::Hottest | Self::Denied | Self::ShadowDenied => 0,
            Self::Server => return None,
        };
        Some(Sort { column, is_reversed: false })
    }

    /// Returns all rows of a reading, in the order of the server.
    pub(super) fn table(self, reading: &Reading, rates: &[Option<Rates>]) -> Table {
        let (rows, empty) = match self {
            Self::Limits => {
                let limits = reading.status.limits.iter().enumerate();
                let row = |(i, limit)| limit_row(limit, rates.get(i).copied().flatten());
                (limits.map(row).collect(), "the policy has no limits".into())
            }
            Self::Hottest | Self::Denied | Self::ShadowDenied => match &reading.keys {
                Ok(keys) => {
                    let list = match self {
                        Self::Denied => &keys.most_denied,
                        Self::ShadowDenied => &keys.most_shadow_denied,
                        _ => &keys.hottest,
                    };
                    (key_rows(list), "no keys lately".into())
                }
                Err(why) => (Vec::new(), printable(why)),
            },
            Self::Server => (server_rows(&reading.status), String::new()),
        };
        Table { columns: self.columns(), rows, empty }
    }
}

fn limit_row(limit: &LimitStatus, rates: Option<Rates>) -> Vec<Cell> {
    let rate = |of: fn(Rates) -> f64| Cell::PerSecond(rates.map(of));
    vec![
        Cell::Text(printable(&limit.name)),
        rate(|rates| rates.allowed),
        rate(|rates| rates.denied),
        rate(|rates| rates.shadow_denied),
        rate(|rates| rates.near_limit),
        Cell::Percent(rates.and_then(|rates| rates.denied_percent())),
        Cell::Text(printable(&limit.mode)),
        Cell::Text(printable(limit.rule.as_deref().unwrap_or("-"))),
    ]
}

fn key_rows(list: &KeyList) -> Vec<Vec<Cell>> {
    let row = |KeyCount { limit, key, truncated, count, error_max }: &KeyCount| {
        let cut = if *truncated { "…" } else { "" };
        vec![
            Cell::Count(*count),
            Cell::Count(*error_max),
            Cell::Text(printable(limit)),
            Cell::Text(format!("{}{cut}", printable(key))),
        ]
    };
    list.keys.iter().map(row).collect()
}

fn server_rows(status: &Status) -> Vec<Vec<Cell>> {
    let policy = &status.policy;
    let mut rows = vec![("version".to_string(), status.version.clone())];
    let loaded = time_text(policy.loaded_at_us);
    rows.push(("policy".into(), format!("version {}, loaded at {loaded}", policy.version)));
    rows.push(("rejected policies".into(), policy.failures.to_string()));
    rows.extend(policy.error.clone().map(|error| ("policy error".into(), error)));
    rows.extend(store_rows(&status.store).into_iter().map(|(what, state)| (what.into(), state)));
    for attention in &status.attention {
        let details = attention.details.iter().map(|details| format!(" {details}"));
        let text = details.fold(attention.text.clone(), |text, details| text + &details);
        rows.push((attention.urgency.clone(), text));
    }
    let cells = |(what, state): (String, String)| {
        vec![Cell::Text(printable(&what)), Cell::Text(printable(&state))]
    };
    rows.into_iter().map(cells).collect()
}

fn store_rows(store: &StoreStatus) -> Vec<(&'static str, String)> {
    let mut rows = vec![("store", store.state.clone())];
    rows.extend(store.error.clone().map(|error| ("store error", error)));
    rows.extend(store.breaker.clone().map(|breaker| ("circuit breaker", breaker)));
    if let Some(fallback) = &store.fallback {
        rows.push(("nodes", fallback.nodes.to_string()));
        rows.push(("decided by the store", fallback.by_store.to_string()));
        let fallbacks = format!(
            "{} local, {} fail open, {} fail closed; {} keys to write back",
            fallback.local, fallback.open, fallback.closed, fallback.backlog_keys
        );
        rows.push(("decided without it", fallbacks));
    }
    if let Some(leases) = &store.leases {
        let text = format!(
            "{} keys, {} unspent; {} decisions, {} store calls",
            leases.keys, leases.unspent, leases.local, leases.store_calls
        );
        rows.push(("leases", text));
    }
    if let Some(memory) = &store.memory {
        let text = format!(
            "{} keys, {} KiB, {} evictions",
            memory.keys,
            memory.bytes / 1024,
            memory.evictions
        );
        rows.push(("memory", text));
    }
    rows
}
