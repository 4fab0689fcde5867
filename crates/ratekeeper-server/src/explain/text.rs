//! An explanation for people.

use std::fmt::Write as _;
use std::time::Duration;

use ratekeeper::FailureMode;
use ratekeeper::policy::{Amount, AppliedLimit, Explanation, LimitOutcome};

use super::request::Asked;
use super::state::{State, States, applied};

pub(super) fn show(asked: &Asked<'_>, explained: &Explanation<'_>, states: &States) -> String {
    let mut out = format!("{} {}\n", asked.method, asked.path);
    out += &indented(&about_request(asked, explained));
    out += "\nIdentities\n";
    let identities = explained.identities.iter().map(|(name, value)| match value {
        Ok(value) => vec![(*name).to_string(), printable(value)],
        Err(missing) => vec![(*name).to_string(), format!("missing: {missing}")],
    });
    out += &indented(&identities.collect::<Vec<_>>());
    out += &conclusion(explained);
    let rows: Vec<_> = applied(explained).collect();
    if !rows.is_empty() {
        let is_charged = explained.exempt.is_none() && !refuses(explained);
        let heading = if is_charged { "Applies" } else { "Would apply" };
        let _ = write!(out, "\n{heading}\n{}", indented(&applied_rows(&rows, states)));
    }
    let others: Vec<_> = explained
        .limits
        .iter()
        .filter_map(|verdict| {
            why_not(&verdict.outcome).map(|why| vec![verdict.rule.name().to_string(), why])
        })
        .collect();
    if !others.is_empty() {
        let _ = write!(out, "\nDoes not apply\n{}", indented(&others));
    }
    if states.is_memory {
        out += "\nnote: this policy keeps counts in the memory of the process that serves; these are those of a new one\n";
    }
    out
}

fn about_request(asked: &Asked<'_>, explained: &Explanation<'_>) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["path".to_string(), printable(&explained.path)]];
    let mut add = |name: &str, value: Option<String>| {
        rows.extend(value.map(|value| vec![name.to_string(), value]));
    };
    let others: Vec<_> = explained.other_readings.iter().map(|path| printable(path)).collect();
    add(
        "or",
        (!others.is_empty()).then(|| format!("{}, as some servers read it", others.join(", "))),
    );
    add("query", asked.query.map(printable));
    add("host", asked.host.map(printable));
    let client = explained.client.map_or("not known; give --peer".into(), |ip| ip.to_string());
    add("client", Some(client));
    add("tier", explained.tier.map(Into::into));
    add("class", explained.class.map(Into::into));
    rows
}

fn conclusion(explained: &Explanation<'_>) -> String {
    if let Some(entry) = explained.exempt {
        return format!(
            "\nExempt by entry {} of \"exempt\": it is not counted at all\n",
            entry + 1
        );
    }
    let refused = explained.limits.iter().find_map(|verdict| match &verdict.outcome {
        LimitOutcome::MissingIdentity(missing) => Some((verdict.rule.name(), missing)),
        _ => None,
    });
    match refused {
        Some((name, missing)) => {
            let (identity, why) = (missing.identity, &missing.why);
            format!("\nRefused with 401: {name} needs {identity}, which is missing: {why}\n")
        }
        None if applied(explained).next().is_none() => "\nNo limit applies\n".into(),
        None => String::new(),
    }
}

fn refuses(explained: &Explanation<'_>) -> bool {
    explained
        .limits
        .iter()
        .any(|verdict| matches!(verdict.outcome, LimitOutcome::MissingIdentity(_)))
}

fn applied_rows(rows: &[&AppliedLimit], states: &States) -> Vec<Vec<String>> {
    let mut heading = vec!["LIMIT", "AMOUNT", "KEY", "COST", "MODE", "ON STORE FAILURE"];
    if !states.each.is_empty() {
        heading.extend(["LEFT", "RETRY AFTER", "AS NEW AFTER"]);
    }
    let mut table = vec![heading.into_iter().map(String::from).collect::<Vec<_>>()];
    for (n, one) in rows.iter().enumerate() {
        let mut row = vec![
            title(one),
            one.amount().to_string(),
            printable(&one.key.to_string()),
            one.cost.get().to_string(),
            mode(one).into(),
            failure_mode(one.rule.on_failure()).into(),
        ];
        row.extend(states.each.get(n).into_iter().flat_map(state_cells));
        table.push(row);
    }
    table
}

/// The limit, or a class's share of it.
fn title(one: &AppliedLimit) -> String {
    match one.amount() {
        Amount::Rate(limit) => limit.name().to_string(),
        Amount::Concurrency { name, .. } => name.to_string(),
    }
}

fn state_cells(state: &State) -> Vec<String> {
    match state {
        State::NoAnswer => vec!["the store did not answer".into()],
        State::InFlight => vec!["depends on what is in flight".into()],
        State::Told(decision) => {
            let retry = match decision.retry_after() {
                Some(after) => span(after),
                None if decision.exceeds_capacity() => "never".into(),
                None => "-".into(),
            };
            let left = format!("{} of {}", decision.remaining(), decision.limit());
            vec![left, retry, span(decision.reset_after())]
        }
    }
}

/// Rounded up to a millisecond.
fn span(span: Duration) -> String {
    let ms = u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    match ms {
        0 => "-".into(),
        1..1_000 => format!("{ms}ms"),
        _ if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        _ => format!("{}.{:03}s", ms / 1_000, ms % 1_000),
    }
}

pub(super) fn mode(one: &AppliedLimit) -> &'static str {
    if one.is_enforced { "enforced" } else { "shadow" }
}

pub(super) fn failure_mode(mode: FailureMode) -> &'static str {
    match mode {
        FailureMode::Local => "local",
        FailureMode::Open => "open",
        FailureMode::Closed => "closed",
    }
}

/// Why a limit does not apply. `None` if it does.
pub(super) fn why_not(outcome: &LimitOutcome<'_>) -> Option<String> {
    match outcome {
        LimitOutcome::Applies(_) => None,
        LimitOutcome::Off => Some("its mode is off".into()),
        LimitOutcome::Mismatch(why) => Some(why.clone()),
        LimitOutcome::NotFirst => Some("another one of its group came first".into()),
        LimitOutcome::Unlimited => Some("the caller's tier has no limit here".into()),
        LimitOutcome::MissingIdentity(missing) => {
            Some(format!("{} is missing, so it refuses", missing.identity))
        }
    }
}

/// Callers choose these texts: without characters that would move the cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Rows in columns as wide as they need.
fn indented(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| row.len() > column + 1).map(|row| &row[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
