//! An explanation as text.

use std::time::Duration;

use ratekeeper::policy::{Amount, AppliedLimit, Explanation, LimitOutcome};
use ratekeeper::{FailureMode, GuaranteedLimit, MaxDebt};

use super::request::ExplainedRequest;
use super::state::{LimitState, LimitStates, applied};
use crate::style;
use crate::terminal::printable;

pub(super) fn show(
    request: &ExplainedRequest<'_>,
    explanation: &Explanation<'_>,
    states: &LimitStates,
) -> String {
    let request_line = format!("{} {}", request.method, request.path);
    let mut out = format!("{}\n", style::heading(&printable(&request_line)));
    out += &indented(&about_request(request, explanation));
    let identities = explanation.identities.iter().map(|(name, value)| match value {
        Ok(value) => vec![(*name).to_string(), printable(value)],
        Err(missing) => vec![(*name).to_string(), format!("missing: {missing}")],
    });
    out += &section("Identities", &identities.collect::<Vec<_>>());
    out += &conclusion(explanation);
    let rows: Vec<_> = applied(explanation).collect();
    if !rows.is_empty() {
        let is_charged = explanation.exempt.is_none() && !is_rejected(explanation);
        let heading = if is_charged { "Applies" } else { "Would apply" };
        out += &section(heading, &applied_rows(&rows, states));
        out += &section("What is counted", &counted_rows(explanation));
    }
    let dependencies = explanation.dependencies.iter();
    let dependencies: Vec<_> =
        dependencies.map(|one| vec![one.name().to_string(), one.to_string()]).collect();
    if !dependencies.is_empty() {
        out += &section("Dependencies", &dependencies);
    }
    let others: Vec<_> = explanation
        .limits
        .iter()
        .filter_map(|limit| {
            why_not(&limit.outcome).map(|why| vec![limit.rule.name().to_string(), why])
        })
        .collect();
    if !others.is_empty() {
        out += &section("Does not apply", &others);
    }
    if states.is_memory {
        out += "\nnote: this policy keeps counts in the memory of the serving process; these are those of a new process\n";
    }
    out
}

fn section(heading: &str, rows: &[Vec<String>]) -> String {
    format!("\n{}\n{}", style::heading(heading), indented(rows))
}

/// Returns the limits that apply, each with what the request is counted by.
fn counted_rows(explanation: &Explanation<'_>) -> Vec<Vec<String>> {
    let applies =
        explanation.limits.iter().filter(|limit| matches!(limit.outcome, LimitOutcome::Applies(_)));
    applies.map(|limit| vec![limit.rule.name().to_string(), limit.counted.clone()]).collect()
}

fn about_request(
    request: &ExplainedRequest<'_>,
    explanation: &Explanation<'_>,
) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["path".to_string(), printable(&explanation.path)]];
    let mut add = |name: &str, value: Option<String>| {
        rows.extend(value.map(|value| vec![name.to_string(), value]));
    };
    let others: Vec<_> = explanation.other_readings.iter().map(|path| printable(path)).collect();
    add(
        "or",
        (!others.is_empty()).then(|| format!("{}, as some servers read it", others.join(", "))),
    );
    add("query", request.query.map(printable));
    add("host", request.host.map(printable));
    let client = explanation.client.map_or("unknown; use --peer".into(), |ip| ip.to_string());
    add("client", Some(client));
    add("tier", explanation.tier.map(Into::into));
    add("class", explanation.class.map(|class| class_row(class, explanation.shed_order)));
    rows
}

/// Returns the class, and when it is shed.
fn class_row(class: &str, shed_order: Option<(usize, usize)>) -> String {
    match shed_order {
        None => class.into(),
        Some((1, 1)) => format!("{class}, the only one: it is shed under overload"),
        Some((1, of)) => format!("{class}, 1 of {of}: under overload it is shed last"),
        Some((rank, of)) if rank == of => {
            format!("{class}, {rank} of {of}: under overload it is shed first")
        }
        Some((rank, of)) => format!("{class}, {rank} of {of} in the order of importance"),
    }
}

fn conclusion(explanation: &Explanation<'_>) -> String {
    if let Some(entry) = explanation.exempt {
        let conclusion = format!("Exempt by entry {} of \"exempt\": no limit counts it", entry + 1);
        return format!("\n{}\n", style::ok(&conclusion));
    }
    let rejected = explanation.limits.iter().find_map(|limit| match &limit.outcome {
        LimitOutcome::MissingIdentity(missing) => Some((limit.rule.name(), missing)),
        _ => None,
    });
    match rejected {
        Some((name, missing)) => {
            let (identity, why) = (missing.identity, &missing.why);
            let conclusion =
                format!("Rejected with 401: {name} requires {identity}, which is missing: {why}");
            format!("\n{}\n", style::error(&conclusion))
        }
        None if applied(explanation).next().is_none() => {
            format!("\n{}\n", style::warning("No limit applies"))
        }
        None if !applied(explanation).any(|one| one.is_enforced) => {
            let conclusion =
                "No limit is enforced: those that apply are in shadow mode and only count";
            format!("\n{}\n", style::warning(conclusion))
        }
        None => String::new(),
    }
}

/// Returns whether a required identity is missing.
fn is_rejected(explanation: &Explanation<'_>) -> bool {
    explanation.limits.iter().any(|limit| matches!(limit.outcome, LimitOutcome::MissingIdentity(_)))
}

fn applied_rows(rows: &[&AppliedLimit], states: &LimitStates) -> Vec<Vec<String>> {
    let mut heading = vec!["LIMIT", "AMOUNT", "KEY", "COST", "MODE", "ON STORE FAILURE"];
    if !states.each.is_empty() {
        heading.extend(["LEFT", "RETRY AFTER", "RESET AFTER"]);
    }
    let mut table = vec![heading.into_iter().map(String::from).collect::<Vec<_>>()];
    for (n, one) in rows.iter().enumerate() {
        let mut row = vec![
            title(one),
            amount(one),
            printable(&one.key.to_string()),
            cost(one),
            mode(one).into(),
            failure_mode(one.rule.on_failure()).into(),
        ];
        row.extend(states.each.get(n).into_iter().flat_map(state_cells));
        table.push(row);
    }
    table
}

/// Returns the cost of the request, an estimate if the limit charges what the response states, and whether it
/// may exceed what is left.
fn cost(one: &AppliedLimit) -> String {
    let cost = match one.rule.usage_format() {
        Some(format) => format!("{}, then the usage ({format})", one.cost.get()),
        None => one.cost.get().to_string(),
    };
    match one.rule.overdraft() {
        None => cost,
        Some(MaxDebt::NONE) => format!("{cost}, overdraft"),
        Some(max) => format!("{cost}, overdraft up to {max}"),
    }
}

/// Returns the amount, and what is guaranteed to the request out of it.
fn amount(one: &AppliedLimit) -> String {
    let amount = one.amount();
    match one.guaranteed_limit().map(GuaranteedLimit::guarantee) {
        None => amount.to_string(),
        Some(None) => format!("{amount}, borrowed"),
        Some(Some(guarantee)) => format!("{amount}, {} guaranteed", guarantee.rate()),
    }
}

/// Returns the name of the limit, or of a class's share of it.
fn title(one: &AppliedLimit) -> String {
    match one.amount() {
        Amount::Rate(limit) => limit.name().to_string(),
        Amount::Concurrency { name, .. } => name.to_string(),
    }
}

fn state_cells(state: &LimitState) -> Vec<String> {
    match state {
        LimitState::NoResponse => vec!["the store did not respond".into()],
        LimitState::Concurrency => vec!["depends on the requests in flight".into()],
        LimitState::Known(decision) => {
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

/// Formats a duration, rounded up to a millisecond.
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

/// Returns why a limit does not apply. `None` if it does.
pub(super) fn why_not(outcome: &LimitOutcome<'_>) -> Option<String> {
    match outcome {
        LimitOutcome::Applies(_) => None,
        LimitOutcome::Off => Some("its mode is off".into()),
        LimitOutcome::Mismatch(why) => Some(why.clone()),
        LimitOutcome::NotFirst => Some("another limit of its group matched first".into()),
        LimitOutcome::Unlimited => Some("the tier of the caller is unlimited".into()),
        LimitOutcome::MissingIdentity(missing) => {
            Some(format!("{} is missing, so it rejects the request", missing.identity))
        }
    }
}

/// Formats rows as columns.
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
