//! `INFO`: what the server has to say of itself.

use std::fmt::Write;

use ratekeeper::shared::StoreState;

use super::{Call, Command, Flow, Handler};
use crate::serve::resp::codec::ARGS_MAX;

/// Clients look at this to know what they may send. It is the version whose commands about
/// connections these are.
const AS_REDIS: &str = "7.2.4";

pub(super) const INFO: Command = Command {
    name: "INFO",
    args: 1..=ARGS_MAX,
    usage: "[section]",
    summary: "Tells about the server, its clients, its memory and what it has done.",
    is_for_strangers: false,
    handler: Handler::Here(info),
};

type Section = fn(&Call<'_, '_>) -> String;

const SECTIONS: &[(&str, Section)] = &[
    ("server", server),
    ("clients", clients),
    ("memory", memory),
    ("stats", stats),
    ("store", store),
];

fn info(call: &mut Call<'_, '_>) -> Flow {
    let wanted: Vec<_> = call.args.from(1).map(<[u8]>::to_ascii_lowercase).collect();
    let asks_for = |name: &str| wanted.iter().any(|one| one == name.as_bytes());
    let asks_for_all = asks_for("all") || asks_for("everything");
    // To count live keys takes a walk through the table, which is not for everybody who drops in.
    let asks_for_usual = wanted.is_empty() || asks_for("default");
    let is_wanted =
        |name: &str| asks_for(name) || asks_for_all || (asks_for_usual && name != "memory");
    let sections = SECTIONS.iter().filter(|(name, _)| is_wanted(name));
    let told: Vec<_> = sections.map(|(name, tell)| titled(name, &tell(call))).collect();
    call.reply().text(&told.join("\r\n"));
    Flow::GoOn
}

fn titled(name: &str, lines: &str) -> String {
    let (first, rest) = name.split_at(1);
    format!("# {}{rest}\r\n{lines}", first.to_uppercase())
}

fn lines(of: &[(&str, &dyn std::fmt::Display)]) -> String {
    of.iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string does not fail.
        let _ = write!(text, "{name}:{value}\r\n");
        text
    })
}

fn server(call: &Call<'_, '_>) -> String {
    let door = call.door;
    let uptime_s = door.gate.engine().now().since(door.began).as_secs();
    lines(&[
        ("redis_version", &AS_REDIS),
        ("server_name", &"ratekeeper"),
        ("ratekeeper_version", &env!("CARGO_PKG_VERSION")),
        ("redis_mode", &"standalone"),
        ("process_id", &std::process::id()),
        ("uptime_in_seconds", &uptime_s),
        ("uptime_in_days", &(uptime_s / 86_400)),
    ])
}

fn clients(call: &Call<'_, '_>) -> String {
    let connections = &call.door.connections;
    lines(&[("connected_clients", &connections.open()), ("maxclients", &connections.max())])
}

fn memory(call: &Call<'_, '_>) -> String {
    let Some(stats) = call.door.gate.engine().memory_stats() else { return String::new() };
    lines(&[
        ("live_keys", &stats.live_keys),
        ("evicted_keys", &stats.evictions),
        ("reserved_memory", &stats.memory_bytes),
    ])
}

fn stats(call: &Call<'_, '_>) -> String {
    let connections = &call.door.connections;
    lines(&[
        ("total_connections_received", &connections.accepted()),
        ("rejected_connections", &connections.rejected()),
        ("total_commands_processed", &call.door.commands()),
    ])
}

fn store(call: &Call<'_, '_>) -> String {
    let state = match call.door.gate.engine().store_state() {
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
