//! `ratekeeper why`: why a request was refused, from the refusal log of a running server.

use std::io::{self, Write};

use clap::Args;
use ratekeeper_core::Rate;
use serde_json::Value;

use crate::admin_client::{AdminClient, AdminOptions};
use crate::choices::Format;
use crate::failure::Failure;
use crate::refusals::{encoded, span};
use crate::style;

const EXAMPLES: &str = "\
Examples:
  Print why the request with this id was refused:
    ratekeeper why 5f3a9c0d7b1e4a2f8c6d0b9e7a5f3c1d

  The same, and what a higher rate would have decided:
    ratekeeper why 5f3a9c0d7b1e4a2f8c6d0b9e7a5f3c1d --rate 200/minute

  List the refusals of a key within the last hour:
    ratekeeper why --key 203.0.113.9 --since 1h

Exit codes: 0 success, 1 the server cannot be reached or knows no such refusal, 2 invalid options.";

/// Print why a request was refused: the limit, its state, and the same decision made again
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Why {
    /// Id of the request, from the response: x-request-id, or request_id in its body
    #[arg(value_name = "ID", required_unless_present_any = ["key", "limit", "since"])]
    id: Option<String>,

    /// List the refusals of this key
    #[arg(long, conflicts_with = "id")]
    key: Option<String>,

    /// List the refusals by this limit
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    limit: Option<String>,

    /// List refusals since this time: a span such as 5m, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "id")]
    since: Option<String>,

    /// What if the rate were this one: decide about the request again, from the recorded state
    #[arg(long, requires = "id")]
    rate: Option<Rate>,

    #[command(flatten)]
    admin: AdminOptions,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Why {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let client = self.admin.client()?;
        let found = match &self.id {
            Some(id) => self.refusal(&client, id)?,
            None => self.list(&client)?,
        };
        let written = match self.format {
            Format::Json => writeln!(io::stdout(), "{found:#}"),
            Format::Text => {
                let show = if self.id.is_some() { explained } else { line };
                style::stdout().write_all(text(&found, show).as_bytes())
            }
        };
        written.map_err(Failure::output)
    }

    fn refusal(&self, client: &AdminClient, id: &str) -> Result<Value, Failure> {
        let rate = self.rate.map(|rate| format!("?rate={}", encoded(&rate.to_string())));
        let path = format!("/v1/refusals/{}{}", encoded(id), rate.unwrap_or_default());
        let found = client.get(&path)?;
        found.ok_or_else(|| {
            Failure::io(format!(
                "{} knows no refusal {id:?}: it was admitted, is of another server, is older than what the log keeps, \
                 or is one of very many; `ratekeeper why --key KEY` lists those of a key",
                client.address()
            ))
        })
    }

    fn list(&self, client: &AdminClient) -> Result<Value, Failure> {
        let parameters = [("key", &self.key), ("limit", &self.limit), ("since", &self.since)];
        let given = parameters.iter().filter_map(|(name, value)| {
            value.as_ref().map(|value| format!("{name}={}", encoded(value)))
        });
        let path = format!("/v1/refusals?{}", given.collect::<Vec<_>>().join("&"));
        Ok(client.get(&path)?.unwrap_or_default())
    }
}

fn text(found: &Value, show: fn(&Value, &mut String)) -> String {
    let mut out = String::new();
    let refusals = found["refusals"].as_array().map(Vec::as_slice).unwrap_or_default();
    if refusals.is_empty() {
        return "no refusals\n".into();
    }
    refusals.iter().for_each(|refusal| show(refusal, &mut out));
    out
}

/// Adds one line about a refusal.
fn line(refusal: &Value, out: &mut String) {
    let field = |name: &str| refusal[name].as_str().unwrap_or("-").to_string();
    let words = refusal["state"]["words"].as_str();
    let why = words.map_or_else(|| field("reason"), ToString::to_string);
    let (at, id, limit, key) = (field("at"), field("request_id"), field("limit"), field("key"));
    let mode = if refusal["outcome"] == "shadow_denied" { " (shadow)" } else { "" };
    out.push_str(&format!("{at}  {limit}{mode}  {key}  {why}  {id}\n"));
}

/// Adds all about a refusal.
fn explained(refusal: &Value, out: &mut String) {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
    out.push_str(&style::heading(refusal["message"].as_str().unwrap_or_default()));
    out.push('\n');
    let mut row = |name: &str, value: String| out.push_str(&format!("  {name:<9} {value}\n"));
    row("request", text(&refusal["request_id"]));
    row("time", text(&refusal["at"]));
    row("limit", limit_text(refusal));
    row("key", key_text(refusal));
    if !refusal["cost"].is_null() {
        row("cost", refusal["cost"].to_string());
    }
    if let Some(state) = refusal["state"]["words"].as_str() {
        row("state", state.into());
    }
    if let Some(us) = refusal["decision"]["retry_after_us"].as_u64() {
        row("passes", format!("{}, {} later", text(&refusal["passes_at"]), span(us)));
    } else if refusal["decision"]["exceeds_capacity"] == true {
        row("passes", "never: it costs more than the limit allows at once".into());
    }
    row("again", again_text(&refusal["again"]));
    if let Some(what_if) = refusal.get("what_if") {
        let message = what_if["message"].as_str().or(what_if["why"].as_str());
        row("what if", message.unwrap_or("-").into());
    }
    let degraded = if refusal["degraded"] == true { ", decided without the store" } else { "" };
    row(
        "by",
        format!(
            "{}, policy version {}{degraded}",
            text(&refusal["protocol"]),
            refusal["policy_version"]
        ),
    );
}

fn limit_text(refusal: &Value) -> String {
    let name = refusal["limit"].as_str().unwrap_or("-");
    let rate = refusal["rate"].as_str().map(|rate| format!(": {rate}")).unwrap_or_default();
    let rule = &refusal["rule"];
    let place = match (rule["file"].as_str(), rule["line"].as_u64()) {
        (Some(file), Some(line)) => format!(" ({file}:{line})"),
        _ => " (sent by the caller)".into(),
    };
    format!("{name}{rate}{place}")
}

fn key_text(refusal: &Value) -> String {
    let key = refusal["key"].as_str();
    let hashed = if refusal["key_hashed"] == true { " (hashed)" } else { "" };
    let truncated = if refusal["key_truncated"] == true { "… (the beginning)" } else { "" };
    key.map_or("(not kept)".into(), |key| format!("{key}{truncated}{hashed}"))
}

fn again_text(again: &Value) -> String {
    match again["same"].as_bool() {
        Some(true) => "the recorded state leads to the same decision, bit for bit".into(),
        Some(false) => "the recorded state leads to another decision, which is a bug".into(),
        None => "not possible: the state before the decision is not known".into(),
    }
}
