//! `COMMAND`: what commands there are.

use super::{COMMANDS, Call, Command, Flow, Handler, find, quote};
use crate::serve::resp::codec::{ARGS_MAX, Reply};

pub(super) const COMMAND: Command = Command {
    name: "COMMAND",
    args: 1..=ARGS_MAX,
    usage: "[COUNT | LIST | INFO [name ...] | DOCS [name ...]]",
    summary: "Tells what commands there are.",
    is_for_strangers: false,
    handler: Handler::Here(about),
};

fn about(call: &mut Call<'_, '_>) -> Flow {
    let deed = call.args.get(1).map(<[u8]>::to_ascii_uppercase);
    let names: Vec<&[u8]> = call.args.from(2).collect();
    let named = || names.iter().map(|name| find(name));
    let every = || COMMANDS.iter().map(Some);
    let mut reply = call.reply();
    match deed.as_deref() {
        None => tell_each(&mut reply, every()),
        Some(b"INFO") if names.is_empty() => tell_each(&mut reply, every()),
        Some(b"INFO") => tell_each(&mut reply, named()),
        Some(b"COUNT") => reply.count(COMMANDS.len() as u64),
        Some(b"LIST") => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| reply.text(&command.name.to_lowercase()));
        }
        Some(b"DOCS") if names.is_empty() => document(&mut reply, COMMANDS.iter().collect()),
        Some(b"DOCS") => document(&mut reply, named().flatten().collect()),
        Some(other) => {
            let (other, usage) = (quote(other), COMMAND.usage);
            return call
                .error(&format!("ERR unknown subcommand '{other}'; usage: COMMAND {usage}"));
        }
    }
    Flow::GoOn
}

fn tell_each<'a>(
    reply: &mut Reply<'_>,
    commands: impl ExactSizeIterator<Item = Option<&'a Command>>,
) {
    reply.array(commands.len());
    for command in commands {
        match command {
            Some(command) => tell(reply, command),
            None => reply.null(),
        }
    }
}

/// The ten things that Redis 7 tells of a command.
fn tell(reply: &mut Reply<'_>, command: &Command) {
    let is_keyed = matches!(command.handler, Handler::Key(_));
    let flags: &[&str] = match (is_keyed, command.is_for_strangers) {
        (true, _) => &["write", "fast"],
        (false, true) => &["loading", "stale", "fast", "no_auth"],
        (false, false) => &["loading", "stale", "fast"],
    };
    let key = i64::from(is_keyed);
    reply.array(10);
    reply.text(&command.name.to_lowercase());
    reply.integer(command.arity());
    reply.array(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    (0..3).for_each(|_| reply.integer(key));
    (0..4).for_each(|_| reply.array(0));
}

fn document(reply: &mut Reply<'_>, commands: Vec<&Command>) {
    reply.map(commands.len());
    for command in commands {
        let is_keyed = matches!(command.handler, Handler::Key(_));
        reply.text(&command.name.to_lowercase());
        reply.map(3);
        reply.text("summary");
        reply.text(command.summary);
        reply.text("group");
        reply.text(if is_keyed { "rate limiting" } else { "connection" });
        reply.text("syntax");
        reply.text(format!("{} {}", command.name, command.usage).trim_end());
    }
}
