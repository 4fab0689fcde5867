//! The commands: one list, which the dispatcher, `COMMAND` and the tests use.

mod cl_throttle;
mod command;
mod config;
mod connection;
mod error;
mod holds;
mod info;
mod integer;
mod keys;
mod rate_options;
mod rk;
mod transaction;

use std::ops::RangeInclusive;

use ratekeeper::policy::suggest;

use super::RespServer;
use super::codec::{Args, ReplyWriter};
use super::command_limits::{CommandLimits, DatabaseLimits};
use super::hold_command::HoldCommand;
use super::key_command::KeyCommand;
use super::rate_command::RateCommand;
use super::session::Session;
use super::transaction::Transaction;

pub(super) use error::CommandError;

/// The most bytes of an argument that an error quotes.
const QUOTE_MAX: usize = 128;

/// A command and its documentation.
#[derive(Debug)]
pub(super) struct CommandSpec {
    pub(super) name: &'static str,
    /// How many arguments it takes, including its name.
    pub(super) args: RangeInclusive<usize>,
    /// The arguments after the name.
    pub(super) usage: &'static str,
    pub(super) summary: &'static str,
    /// Whether it is allowed before authentication.
    pub(super) before_auth: bool,
    pub(super) handler: Handler,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Handler {
    /// Parses a command that applies a limit to a key.
    Rate(for<'a> fn(Args<'a>, &'a mut CommandLimits) -> Result<RateCommand<'a>, CommandError>),
    /// Parses a command about a reservation or a permit.
    Hold(fn(Args<'_>, &mut CommandLimits) -> Result<HoldCommand, CommandError>),
    /// Parses a command about all usages of some keys.
    Keys(for<'a> fn(Args<'a>, &'a mut CommandLimits) -> Result<KeyCommand<'a>, CommandError>),
    /// Executes a command that does not need the store.
    Local(fn(&mut Call<'_, '_>) -> Result<Flow, CommandError>),
    /// Executes a command that does not need the store, and that a transaction does not queue.
    Immediate(fn(&mut Call<'_, '_>) -> Result<Flow, CommandError>),
    /// Ends a transaction, and executes its commands.
    Exec,
}

impl Handler {
    /// Returns whether a transaction queues the command.
    fn is_queued(&self) -> bool {
        !matches!(self, Self::Immediate(_) | Self::Exec)
    }
}

/// What a command is executed with.
pub(super) struct Call<'a, 'c> {
    pub(super) args: Args<'a>,
    pub(super) server: &'c RespServer,
    pub(super) session: &'c mut Session,
    pub(super) out: &'c mut Vec<u8>,
}

impl Call<'_, '_> {
    /// Returns a writer in the client's protocol version, which a command may have changed.
    pub(super) fn reply(&mut self) -> ReplyWriter<'_> {
        ReplyWriter::new(self.out, self.session.protocol)
    }

    fn ok(&mut self) -> Flow {
        self.reply().ok();
        Flow::Continue
    }
}

/// Whether the connection stays open after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Close,
}

/// The result of dispatching a command.
pub(super) enum Step<'a> {
    /// The command was executed, and its reply is written.
    Replied(Flow),
    /// The command is valid, and is to be applied.
    Rate(RateCommand<'a>),
    /// The command is valid, and is about a reservation or a permit.
    Hold(HoldCommand),
    /// The command is valid, and is to be applied to its keys.
    Keys(KeyCommand<'a>),
    /// The commands of this transaction are to be executed.
    Transaction(Box<Transaction>),
}

/// All commands, in the order in which they are compared: frequent ones first.
pub(super) const COMMANDS: &[CommandSpec] = &[
    cl_throttle::CL_THROTTLE,
    rk::CHECK,
    rk::PEEK,
    rk::CHARGE,
    rk::REFUND,
    rk::RESET,
    holds::RESERVE,
    holds::SETTLE,
    holds::ACQUIRE,
    holds::RELEASE,
    transaction::MULTI,
    transaction::EXEC,
    transaction::DISCARD,
    transaction::WATCH,
    transaction::UNWATCH,
    keys::DEL,
    keys::UNLINK,
    keys::EXISTS,
    keys::TTL,
    keys::PTTL,
    connection::PING,
    connection::ECHO,
    connection::HELLO,
    connection::AUTH,
    connection::CLIENT,
    connection::SELECT,
    connection::RESET,
    connection::QUIT,
    info::INFO,
    config::CONFIG,
    command::COMMAND,
];

/// Executes or queues a command, which has at least a name, or parses it if it needs the store.
#[inline]
pub(super) fn dispatch<'a>(mut call: Call<'a, '_>, limits: &'a mut DatabaseLimits) -> Step<'a> {
    let executed = match look_up(&call) {
        Ok(command) => {
            let limits = limits.of(call.session.database);
            if call.session.transaction.is_some() && command.handler.is_queued() {
                transaction::queue(&mut call, command, limits)
            } else {
                match execute(&mut call, command, limits) {
                    Ok(step) => return step,
                    Err(error) => Err(error),
                }
            }
        }
        Err(error) => {
            transaction::abort(&mut call);
            Err(error)
        }
    };
    Step::Replied(executed.unwrap_or_else(|error| write_error(&mut call, &error)))
}

#[inline]
fn execute<'a>(
    call: &mut Call<'a, '_>,
    command: &CommandSpec,
    limits: &'a mut CommandLimits,
) -> Result<Step<'a>, CommandError> {
    match command.handler {
        Handler::Rate(parse) => parse(call.args, limits).map(Step::Rate),
        Handler::Hold(parse) => parse(call.args, limits).map(Step::Hold),
        Handler::Keys(parse) => parse(call.args, limits).map(Step::Keys),
        Handler::Local(execute) | Handler::Immediate(execute) => execute(call).map(Step::Replied),
        Handler::Exec => transaction::exec(call).map(Step::Transaction),
    }
}

#[cold]
fn write_error(call: &mut Call<'_, '_>, error: &CommandError) -> Flow {
    if matches!(error, CommandError::HttpRequest) {
        return Flow::Close;
    }
    call.reply().error(&format!("{} {error}", error.code()));
    Flow::Continue
}

#[inline]
fn look_up(call: &Call<'_, '_>) -> Result<&'static CommandSpec, CommandError> {
    let Some(command) = find(call.args.at(0)) else { return Err(unknown(call)) };
    if !call.session.is_authenticated && !command.before_auth {
        return Err(CommandError::NoAuth);
    }
    if !command.args.contains(&call.args.len()) {
        return Err(CommandError::WrongArity(command));
    }
    Ok(command)
}

/// Returns the command of a name in any case.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

impl CommandSpec {
    /// Returns the number of arguments as Redis reports it: negative if there may be more.
    pub(super) fn arity(&self) -> i64 {
        let min = *self.args.start() as i64;
        if self.args.start() == self.args.end() { min } else { -min }
    }

    /// Returns whether it uses the store.
    fn uses_store(&self) -> bool {
        matches!(self.handler, Handler::Rate(_) | Handler::Hold(_) | Handler::Keys(_))
    }

    /// Returns the name and the arguments.
    pub(super) fn syntax(&self) -> String {
        format!("{} {}", self.name, self.usage).trim_end().to_string()
    }
}

#[cold]
fn unknown(call: &Call<'_, '_>) -> CommandError {
    let name = call.args.at(0);
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        return CommandError::HttpRequest;
    }
    if !call.session.is_authenticated {
        return CommandError::NoAuth;
    }
    let mut args = String::new();
    for arg in call.args.from(1) {
        if args.len() > QUOTE_MAX {
            break;
        }
        args += &format!("'{}' ", quote(arg));
    }
    let name = quote(name);
    let known = COMMANDS.iter().map(|command| command.name);
    let closest = suggest::closest(&name.to_uppercase(), known);
    let suggestion = closest.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
    CommandError::UnknownCommand { name, args, suggestion }
}

/// Quotes an argument for an error: escaped and shortened.
pub(super) fn quote(text: &[u8]) -> String {
    text[..text.len().min(QUOTE_MAX)].escape_ascii().to_string()
}
