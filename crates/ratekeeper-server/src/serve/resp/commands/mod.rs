//! The commands: one list, which the door, `COMMAND` and the tests walk.

mod about;
mod config;
mod connection;
mod info;
mod numbers;
mod rates;
mod throttle;

use std::ops::RangeInclusive;

use ratekeeper::policy::suggest;

use super::RespServer;
use super::codec::{Args, Reply};
use super::limits::Limits;
use super::rate_command::RateCommand;
use super::session::Session;

/// As much of a client's own words as an error repeats.
const QUOTE_MAX: usize = 128;

/// A command, and what there is to say of it.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// How many arguments it may have, its name among them.
    pub(super) args: RangeInclusive<usize>,
    /// What comes after the name.
    pub(super) usage: &'static str,
    pub(super) summary: &'static str,
    /// May it come before the password?
    pub(super) is_for_strangers: bool,
    pub(super) handler: Handler,
}

#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// It is about a key, and asks the store.
    Key(for<'a> fn(Args<'a>, &'a mut Limits) -> Result<RateCommand<'a>, String>),
    /// It is answered here.
    Here(fn(&mut Call<'_, '_>) -> Flow),
}

/// What a command that is answered here works with.
pub(super) struct Call<'a, 'c> {
    pub(super) args: Args<'a>,
    pub(super) door: &'c RespServer,
    pub(super) session: &'c mut Session,
    pub(super) out: &'c mut Vec<u8>,
}

impl Call<'_, '_> {
    /// In the protocol that the client speaks by now.
    pub(super) fn reply(&mut self) -> Reply<'_> {
        Reply::new(self.out, self.session.protocol)
    }

    fn ok(&mut self) -> Flow {
        self.reply().ok();
        Flow::GoOn
    }

    fn error(&mut self, text: &str) -> Flow {
        self.reply().error(text);
        Flow::GoOn
    }
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    GoOn,
    Close,
}

/// How far a command has come.
pub(super) enum Step<'a> {
    Replied(Flow),
    Rate(RateCommand<'a>),
}

/// Every command. The first are found first.
pub(super) const COMMANDS: &[Command] = &[
    throttle::CL_THROTTLE,
    rates::CHECK,
    rates::PEEK,
    rates::CHARGE,
    rates::REFUND,
    rates::RESET,
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
    about::COMMAND,
];

/// Begins a command, which has at least a name, and ends it if it asks nothing of the store.
#[inline]
pub(super) fn begin<'a>(mut call: Call<'a, '_>, limits: &'a mut Limits) -> Step<'a> {
    let flow = match look_up(&call) {
        Ok(command) => match command.handler {
            Handler::Here(answer) => answer(&mut call),
            Handler::Key(read) => match read(call.args, limits) {
                Ok(command) => return Step::Rate(command),
                Err(why) => call.error(&format!("ERR {why}")),
            },
        },
        Err(Rejected::Told(why)) => call.error(&why),
        Err(Rejected::Attack) => Flow::Close,
    };
    Step::Replied(flow)
}

enum Rejected {
    Told(String),
    /// A browser that was talked into sending its request here.
    Attack,
}

#[inline]
fn look_up(call: &Call<'_, '_>) -> Result<&'static Command, Rejected> {
    let (args, name) = (call.args, call.args.at(0));
    let Some(command) = find(name) else { return Err(unknown(call)) };
    if !call.session.is_trusted && !command.is_for_strangers {
        return Err(Rejected::Told("NOAUTH Authentication required.".into()));
    }
    if !command.args.contains(&args.len()) {
        return Err(Rejected::Told(command.complaint()));
    }
    Ok(command)
}

#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

impl Command {
    /// The number of arguments as Redis tells it: negative if there may be more.
    pub(super) fn arity(&self) -> i64 {
        let least = *self.args.start() as i64;
        if self.args.start() == self.args.end() { least } else { -least }
    }

    fn complaint(&self) -> String {
        let Self { name, usage, .. } = self;
        let called = name.to_lowercase();
        format!("ERR wrong number of arguments for '{called}' command; usage: {name} {usage}")
            .trim_end()
            .to_string()
    }
}

#[cold]
fn unknown(call: &Call<'_, '_>) -> Rejected {
    let name = call.args.at(0);
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        return Rejected::Attack;
    }
    if !call.session.is_trusted {
        return Rejected::Told("NOAUTH Authentication required.".into());
    }
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", quote(name));
    for arg in call.args.from(1) {
        if text.len() > 2 * QUOTE_MAX {
            break;
        }
        text += &format!("'{}' ", quote(arg));
    }
    let name = quote(name).to_uppercase();
    if let Some(near) = suggest::closest(&name, COMMANDS.iter().map(|command| command.name)) {
        text += &format!("; did you mean {near}?");
    }
    Rejected::Told(text)
}

/// A client's own words, harmless and not too many of them.
pub(super) fn quote(text: &[u8]) -> String {
    text[..text.len().min(QUOTE_MAX)].escape_ascii().to_string()
}
