//! The commands: one list, which the dispatcher, `COMMAND` and the tests use.

mod cl_throttle;
mod command;
mod config;
mod connection;
mod error;
mod holds;
mod info;
mod integer;
mod rk;

use std::ops::RangeInclusive;

use ratekeeper::policy::suggest;

use super::RespServer;
use super::codec::{Args, ReplyWriter};
use super::command_limits::CommandLimits;
use super::hold_command::HoldCommand;
use super::rate_command::RateCommand;
use super::session::Session;

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
    /// Executes a command that does not need the store.
    Local(fn(&mut Call<'_, '_>) -> Result<Flow, CommandError>),
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
    Hold(HoldCommand),
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

/// Executes a command, which has at least a name, or parses it if it needs the store.
#[inline]
pub(super) fn dispatch<'a>(mut call: Call<'a, '_>, limits: &'a mut CommandLimits) -> Step<'a> {
    let executed = match look_up(&call) {
        Ok(command) => match command.handler {
            Handler::Local(execute) => execute(&mut call),
            Handler::Rate(parse) => match parse(call.args, limits) {
                Ok(command) => return Step::Rate(command),
                Err(error) => Err(error),
            },
            Handler::Hold(parse) => match parse(call.args, limits) {
                Ok(command) => return Step::Hold(command),
                Err(error) => Err(error),
            },
        },
        Err(error) => Err(error),
    };
    Step::Replied(executed.unwrap_or_else(|error| write_error(&mut call, &error)))
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
    fn is_rate(&self) -> bool {
        matches!(self.handler, Handler::Rate(_) | Handler::Hold(_))
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
