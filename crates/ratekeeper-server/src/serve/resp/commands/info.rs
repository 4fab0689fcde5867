//! `INFO`: the state of the server.

use std::fmt::Write;

use ratekeeper::shared::StoreState;

use super::{Call, CommandError, CommandSpec, Flow, Handler};
use crate::serve::resp::codec::ARGS_MAX;

/// The version of Redis whose connection commands are supported. Clients use it to choose what they send.
const REDIS_VERSION: &str = "7.2.4";

pub(super) const INFO: CommandSpec = CommandSpec {
    name: "INFO",
    args: 1..=ARGS_MAX,
    usage: "[section]",
    summary: "Returns the state of the server, its clients, its memory, its statistics and its store.",
    before_auth: false,
    handler: Handler::Local(info),
};

type Section = fn(&Call<'_, '_>) -> String;

const SECTIONS: &[(&str, Section)] = &[
    ("server", server),
    ("clients", clients),
    ("memory", memory),
    ("stats", stats),
    ("store", store),
];

fn info(call: &mut Call<'_, '_>) -> Result<Flow, CommandError> {
    let requested: Vec<_> = call.args.from(1).map(<[u8]>::to_ascii_lowercase).collect();
    let is_requested = |name: &str| requested.iter().any(|section| section == name.as_bytes());
    let all_sections = is_requested("all") || is_requested("everything");
    // Counting live keys scans the table, so the default does not include it.
    let default_sections = requested.is_empty() || is_requested("default");
    let is_included =
        |name: &str| is_requested(name) || all_sections || (default_sections && name != "memory");
    let sections = SECTIONS.iter().filter(|(name, _)| is_included(name));
    let texts: Vec<_> = sections.map(|(name, section)| titled(name, &section(call))).collect();
    call.reply().text(&texts.join("\r\n"));
    Ok(Flow::Continue)
}

fn titled(name: &str, lines: &str) -> String {
    let (first, rest) = name.split_at(1);
    format!("# {}{rest}\r\n{lines}", first.to_uppercase())
}

fn lines(fields: &[(&str, &dyn std::fmt::Display)]) -> String {
    fields.iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string does not fail.
        let _ = write!(text, "{name}:{value}\r\n");
        text
    })
}

fn server(call: &Call<'_, '_>) -> String {
    let server = call.server;
    let uptime_s = server.limiter.engine().now().since(server.began).as_secs();
    lines(&[
        ("redis_version", &REDIS_VERSION),
        ("server_name", &"ratekeeper"),
        ("ratekeeper_version", &env!("CARGO_PKG_VERSION")),
        ("redis_mode", &"standalone"),
        ("process_id", &std::process::id()),
        ("uptime_in_seconds", &uptime_s),
        ("uptime_in_days", &(uptime_s / 86_400)),
    ])
}

fn clients(call: &Call<'_, '_>) -> String {
    let connections = &call.server.connections;
    lines(&[("connected_clients", &connections.open()), ("maxclients", &connections.max())])
}

fn memory(call: &Call<'_, '_>) -> String {
    let Some(stats) = call.server.limiter.engine().memory_stats() else { return String::new() };
    lines(&[
        ("live_keys", &stats.live_keys),
        ("evicted_keys", &stats.evictions),
        ("reserved_memory", &stats.memory_bytes),
    ])
}

fn stats(call: &Call<'_, '_>) -> String {
    let connections = &call.server.connections;
    lines(&[
        ("total_connections_received", &connections.accepted()),
        ("rejected_connections", &connections.rejected()),
        ("total_commands_processed", &call.server.commands()),
    ])
}

fn store(call: &Call<'_, '_>) -> String {
    let state = match call.server.limiter.engine().store_state() {
        None => "memory".to_string(),
        Some(StoreState::Up) => "up".to_string(),
        Some(StoreState::Partial { shards_down, error }) => {
            format!("partial: {shards_down} shards down: {error}")
        }
        Some(StoreState::Down(error)) => format!("down: {error}"),
        Some(_) => "unknown".to_string(),
    };
    lines(&[("store", &state)])
}
