//! `MULTI` and `EXEC`: commands that are executed together, or not at all.

use super::{Call, CommandError, CommandSpec, Flow, Handler};
use crate::serve::resp::codec::ARGS_MAX;
use crate::serve::resp::command_limits::CommandLimits;
use crate::serve::resp::transaction::Transaction;

const fn command(name: &'static str, summary: &'static str, handler: Handler) -> CommandSpec {
    CommandSpec { name, args: 1..=1, usage: "", summary, before_auth: false, handler }
}

pub(super) const MULTI: CommandSpec = command(
    "MULTI",
    "Begins a transaction: commands are queued until EXEC.",
    Handler::Immediate(|call| {
        if call.session.transaction.is_some() {
            return Err(CommandError::NestedMulti);
        }
        call.session.transaction = Some(Box::default());
        Ok(call.ok())
    }),
);

pub(super) const EXEC: CommandSpec = command(
    "EXEC",
    "Executes the commands since MULTI, unless one of them was refused.",
    Handler::Exec,
);

pub(super) const DISCARD: CommandSpec = command(
    "DISCARD",
    "Ends a transaction and executes none of its commands.",
    Handler::Immediate(|call| match call.session.transaction.take() {
        Some(_) => Ok(call.ok()),
        None => Err(CommandError::WithoutMulti("DISCARD")),
    }),
);

pub(super) const WATCH: CommandSpec = CommandSpec {
    args: 2..=ARGS_MAX,
    usage: "key [key ...]",
    ..command(
        "WATCH",
        "Not supported: a check reads, decides and charges in one step.",
        Handler::Immediate(|call| match call.session.transaction {
            Some(_) => Err(CommandError::WatchInMulti),
            None => Err(CommandError::WatchUnsupported),
        }),
    )
};

/// Nothing is ever watched, but clients send it when they return a connection to a pool.
pub(super) const UNWATCH: CommandSpec =
    command("UNWATCH", "Does nothing.", Handler::Local(|call| Ok(call.ok())));

/// Ends the transaction and returns its commands.
pub(super) fn exec(call: &mut Call<'_, '_>) -> Result<Box<Transaction>, CommandError> {
    let transaction = call.session.transaction.take();
    let transaction = transaction.ok_or(CommandError::WithoutMulti("EXEC"))?;
    match transaction.is_aborted() {
        true => Err(CommandError::ExecAborted),
        false => Ok(transaction),
    }
}

/// Queues a command of a transaction if it would be executed without an error; otherwise the transaction is
/// aborted.
#[cold]
pub(super) fn queue(
    call: &mut Call<'_, '_>,
    command: &CommandSpec,
    limits: &mut CommandLimits,
) -> Result<Flow, CommandError> {
    let queued = try_out(call, command, limits).and_then(|reply_bytes| {
        let transaction = call.session.transaction.as_mut();
        transaction.map_or(Ok(()), |transaction| transaction.push(call.args, reply_bytes))
    });
    match queued {
        Ok(()) => {
            call.reply().simple("QUEUED");
            Ok(Flow::Continue)
        }
        Err(error) => {
            abort(call);
            Err(error)
        }
    }
}

/// Notes that a command of the transaction, if there is one, was refused.
pub(super) fn abort(call: &mut Call<'_, '_>) {
    if let Some(transaction) = &mut call.session.transaction {
        transaction.abort();
    }
}

/// Checks a command without executing it. Returns the length of its reply if that depends on the command.
fn try_out(
    call: &Call<'_, '_>,
    command: &CommandSpec,
    limits: &mut CommandLimits,
) -> Result<usize, CommandError> {
    match command.handler {
        Handler::Rate(parse) => parse(call.args, limits).map(|_| 0),
        Handler::Hold(parse) => parse(call.args, limits).map(|_| 0),
        Handler::Keys(parse) => parse(call.args, limits).map(|_| 0),
        Handler::Local(execute) | Handler::Immediate(execute) => {
            let (mut session, mut out) = (call.session.without_transaction(), Vec::new());
            let (args, server) = (call.args, call.server);
            execute(&mut Call { args, server, session: &mut session, out: &mut out })?;
            Ok(out.len())
        }
        Handler::Exec => Ok(0),
    }
}
