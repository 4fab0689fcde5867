//! `COMMAND`: the list of commands and their documentation.

use super::{COMMANDS, Call, CommandError, CommandSpec, Flow, Handler, find, quote};
use crate::serve::resp::codec::{ARGS_MAX, ReplyWriter};

pub(super) const COMMAND: CommandSpec = CommandSpec {
    name: "COMMAND",
    args: 1..=ARGS_MAX,
    usage: "[COUNT | LIST | INFO [name ...] | DOCS [name ...]]",
    summary: "Returns the commands of the server.",
    before_auth: false,
    handler: Handler::Local(command),
};

fn command(call: &mut Call<'_, '_>) -> Result<Flow, CommandError> {
    let subcommand = call.args.get(1).map(<[u8]>::to_ascii_uppercase);
    let names: Vec<&[u8]> = call.args.from(2).collect();
    let named = || names.iter().map(|name| find(name));
    let every = || COMMANDS.iter().map(Some);
    let mut reply = call.reply();
    match subcommand.as_deref() {
        None => write_infos(&mut reply, every()),
        Some(b"INFO") if names.is_empty() => write_infos(&mut reply, every()),
        Some(b"INFO") => write_infos(&mut reply, named()),
        Some(b"COUNT") => reply.count(COMMANDS.len() as u64),
        Some(b"LIST") => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| reply.text(&command.name.to_lowercase()));
        }
        Some(b"DOCS") if names.is_empty() => write_docs(&mut reply, COMMANDS.iter().collect()),
        Some(b"DOCS") => write_docs(&mut reply, named().flatten().collect()),
        Some(other) => {
            let subcommand = quote(other);
            return Err(CommandError::UnknownSubcommand { command: &COMMAND, subcommand });
        }
    }
    Ok(Flow::Continue)
}

fn write_infos<'a>(
    reply: &mut ReplyWriter<'_>,
    commands: impl ExactSizeIterator<Item = Option<&'a CommandSpec>>,
) {
    reply.array(commands.len());
    for command in commands {
        match command {
            Some(command) => write_info(reply, command),
            None => reply.null(),
        }
    }
}

/// Writes the ten fields of a command in Redis 7.
fn write_info(reply: &mut ReplyWriter<'_>, command: &CommandSpec) {
    let flags: &[&str] = match (command.is_rate(), command.before_auth) {
        (true, _) => &["write", "fast"],
        (false, true) => &["loading", "stale", "fast", "no_auth"],
        (false, false) => &["loading", "stale", "fast"],
    };
    let key = i64::from(command.is_rate() && command.usage.starts_with("key "));
    reply.array(10);
    reply.text(&command.name.to_lowercase());
    reply.integer(command.arity());
    reply.array(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    // The first key, the last key and the step.
    (0..3).for_each(|_| reply.integer(key));
    // ACL categories, tips, key specifications and subcommands.
    (0..4).for_each(|_| reply.array(0));
}

fn write_docs(reply: &mut ReplyWriter<'_>, commands: Vec<&CommandSpec>) {
    reply.map(commands.len());
    for command in commands {
        reply.text(&command.name.to_lowercase());
        reply.map(3);
        reply.text("summary");
        reply.text(command.summary);
        reply.text("group");
        reply.text(if command.is_rate() { "rate limiting" } else { "connection" });
        reply.text("syntax");
        reply.text(&command.syntax());
    }
}
