//! `DEL`, `EXISTS` and `TTL`: the usage of keys, whatever the algorithm and the rate.
//!
//! A key has a usage for each algorithm. Those with a `NAME` of their own are not covered: the store cannot
//! list them.

use super::{CommandError, CommandSpec, Handler};
use crate::serve::resp::codec::{ARGS_MAX, Args};
use crate::serve::resp::command_limits::CommandLimits;
use crate::serve::resp::key_command::{KeyAction, KeyCommand};

const fn command(name: &'static str, summary: &'static str, handler: Handler) -> CommandSpec {
    let usage = "key [key ...]";
    CommandSpec { name, args: 2..=ARGS_MAX, usage, summary, before_auth: false, handler }
}

pub(super) const DEL: CommandSpec = command(
    "DEL",
    "Deletes the usage of keys under the default name, and returns how many had any.",
    Handler::Keys(|args, limits| parse(KeyAction::Delete, args, limits)),
);

pub(super) const UNLINK: CommandSpec =
    CommandSpec { name: "UNLINK", summary: "Does what DEL does.", ..DEL };

pub(super) const EXISTS: CommandSpec = command(
    "EXISTS",
    "Returns how many of the keys have usage under the default name.",
    Handler::Keys(|args, limits| parse(KeyAction::Count, args, limits)),
);

pub(super) const TTL: CommandSpec = CommandSpec {
    args: 2..=2,
    usage: "key",
    ..command(
        "TTL",
        "Returns the seconds until the key is as new, or -2 if it has no usage.",
        Handler::Keys(|args, limits| parse(KeyAction::Seconds, args, limits)),
    )
};

pub(super) const PTTL: CommandSpec = CommandSpec {
    args: 2..=2,
    usage: "key",
    ..command(
        "PTTL",
        "Returns the milliseconds until the key is as new, or -2 if it has no usage.",
        Handler::Keys(|args, limits| parse(KeyAction::Millis, args, limits)),
    )
};

fn parse<'a>(
    action: KeyAction,
    args: Args<'a>,
    limits: &'a mut CommandLimits,
) -> Result<KeyCommand<'a>, CommandError> {
    Ok(KeyCommand { action, args, limits: limits.of_keys()? })
}
