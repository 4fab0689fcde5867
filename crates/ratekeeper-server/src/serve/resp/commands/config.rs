//! `CONFIG GET`: for programs that want to know a setting before they begin.

use ratekeeper::policy::path::Glob;

use super::{Call, Command, Flow, Handler, quote};
use crate::serve::resp::codec::ARGS_MAX;

pub(super) const CONFIG: Command = Command {
    name: "CONFIG",
    args: 2..=ARGS_MAX,
    usage: "GET pattern [pattern ...]",
    summary: "Tells settings, of which none can be changed here.",
    is_for_strangers: false,
    handler: Handler::Here(config),
};

fn config(call: &mut Call<'_, '_>) -> Flow {
    let patterns: Vec<&[u8]> = call.args.from(2).collect();
    if !call.args.at(1).eq_ignore_ascii_case(b"GET") || patterns.is_empty() {
        let (deed, usage) = (quote(call.args.at(1)), CONFIG.usage);
        return call.error(&format!("ERR unknown subcommand '{deed}'; usage: CONFIG {usage}"));
    }
    let globs: Vec<_> =
        patterns.iter().map(|pattern| Glob::new(&String::from_utf8_lossy(pattern))).collect();
    let is_asked_for =
        |name: &str| globs.iter().any(|glob| glob.matches_ignoring_case(name.as_bytes()));
    let idle = call.door.timeouts.idle.unwrap_or_default();
    // As Redis would tell them of a server that keeps nothing on disk.
    let settings = [
        ("appendonly", "no".to_string()),
        ("databases", "1".to_string()),
        ("maxclients", call.door.connections.max().to_string()),
        ("save", String::new()),
        ("timeout", idle.as_secs().to_string()),
    ];
    let told: Vec<_> = settings.iter().filter(|(name, _)| is_asked_for(name)).collect();
    let mut reply = call.reply();
    reply.map(told.len());
    for (name, value) in told {
        reply.text(name);
        reply.text(value);
    }
    Flow::GoOn
}
