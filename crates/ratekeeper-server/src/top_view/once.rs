//! One frame as text or JSON, for pipes: complete, whatever the width.

use serde_json::{Value, json};

use super::pane::Pane;
use super::rates::Rates;
use super::reading::LimitStatus;
use super::state::State;
use super::table::{Kind, Table};
use super::{summary, time_text};

/// Returns every pane, one below the other.
pub(super) fn text(state: &State) -> String {
    let at = time_text(state.reading.status.at_us);
    let mut out = format!("{}\n{}  at {at}\n", summary::server(state), summary::rates(state));
    for pane in Pane::ALL {
        out += &format!("\n{}\n", pane.title());
        lines(&state.table(pane), &mut out);
    }
    out
}

fn lines(table: &Table, out: &mut String) {
    if table.rows.is_empty() {
        *out += &format!("  {}\n", table.empty);
        return;
    }
    let widths = table.widths();
    let mut line = |texts: Vec<String>| {
        let mut line = String::new();
        for ((text, width), column) in texts.iter().zip(&widths).zip(table.columns) {
            let padding = " ".repeat(width.saturating_sub(ratatui::text::Span::raw(text).width()));
            line += "  ";
            match column.kind {
                Kind::Text => line += &format!("{text}{padding}"),
                Kind::Number => line += &format!("{padding}{text}"),
            }
        }
        *out += line.trim_end();
        out.push('\n');
    };
    line(table.columns.iter().map(|column| column.title.to_string()).collect());
    for row in &table.rows {
        line(row.iter().map(super::table::Cell::text).collect());
    }
}

/// Returns all that was read, and the rates.
pub(super) fn json(state: &State) -> Value {
    let status = &state.reading.status;
    let rates = state.rates.iter().copied().chain(std::iter::repeat(None));
    let limits: Vec<_> = status.limits.iter().zip(rates).map(limit).collect();
    json!({
        "address": state.address,
        "at_us": status.at_us,
        "version": status.version,
        "policy": status.policy,
        "store": status.store,
        "attention": status.attention,
        "limits": limits,
        "keys": state.reading.keys.as_ref().ok(),
        "keys_error": state.reading.keys.as_ref().err(),
    })
}

fn limit((limit, rates): (&LimitStatus, Option<Rates>)) -> Value {
    let mut json = json!(limit);
    json["per_second"] = json!(rates);
    json
}
