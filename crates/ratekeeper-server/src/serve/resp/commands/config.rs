//! `CONFIG GET`, for programs that read settings before they start.

use ratekeeper::policy::path::Glob;

use super::{Call, CommandError, CommandSpec, Flow, Handler, quote};
use crate::serve::resp::codec::ARGS_MAX;
use crate::serve::resp::database::DATABASES;

pub(super) const CONFIG: CommandSpec = CommandSpec {
    name: "CONFIG",
    args: 2..=ARGS_MAX,
    usage: "GET pattern [pattern ...]",
    summary: "Returns settings; none can be changed here.",
    before_auth: false,
    handler: Handler::Local(config),
};

fn config(call: &mut Call<'_, '_>) -> Result<Flow, CommandError> {
    let patterns: Vec<&[u8]> = call.args.from(2).collect();
    if !call.args.at(1).eq_ignore_ascii_case(b"GET") || patterns.is_empty() {
        let subcommand = quote(call.args.at(1));
        return Err(CommandError::UnknownSubcommand { command: &CONFIG, subcommand });
    }
    let globs: Vec<_> =
        patterns.iter().map(|pattern| Glob::new(&String::from_utf8_lossy(pattern))).collect();
    let matches = |name: &str| globs.iter().any(|glob| glob.matches_ignoring_case(name.as_bytes()));
    let idle = call.server.timeouts.idle.unwrap_or_default();
    // As of a Redis server that stores nothing on disk.
    let settings = [
        ("appendonly", "no".to_string()),
        ("databases", DATABASES.to_string()),
        ("maxclients", call.server.connections.max().to_string()),
        ("save", String::new()),
        ("timeout", idle.as_secs().to_string()),
    ];
    let matching: Vec<_> = settings.iter().filter(|(name, _)| matches(name)).collect();
    let mut reply = call.reply();
    reply.map(matching.len());
    for (name, value) in matching {
        reply.text(name);
        reply.text(value);
    }
    Ok(Flow::Continue)
}
