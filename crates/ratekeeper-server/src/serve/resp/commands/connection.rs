//! Commands about the connection.

use super::{Call, CommandError, CommandSpec, Flow, Handler, quote};
use crate::serve::resp::codec::{ARGS_MAX, RespVersion};
use crate::serve::resp::database::Database;
use crate::serve::resp::passwords::DEFAULT_USER;
use crate::serve::resp::session::{NAME_MAX, Session};

pub(super) const PING: CommandSpec = CommandSpec {
    name: "PING",
    args: 1..=2,
    usage: "[message]",
    summary: "Returns PONG, or the message.",
    before_auth: false,
    handler: Handler::Local(|call| {
        match call.args.get(1) {
            None => call.reply().simple("PONG"),
            Some(message) => call.reply().bulk(message),
        }
        Ok(Flow::Continue)
    }),
};

pub(super) const ECHO: CommandSpec = CommandSpec {
    name: "ECHO",
    args: 2..=2,
    usage: "message",
    summary: "Returns the message.",
    before_auth: false,
    handler: Handler::Local(|call| {
        let message = call.args.at(1);
        call.reply().bulk(message);
        Ok(Flow::Continue)
    }),
};

pub(super) const HELLO: CommandSpec = CommandSpec {
    name: "HELLO",
    args: 1..=ARGS_MAX,
    usage: "[2|3] [AUTH user password] [SETNAME name]",
    summary: "Selects the protocol version, and returns the properties of the server.",
    before_auth: true,
    handler: Handler::Local(hello),
};

pub(super) const AUTH: CommandSpec = CommandSpec {
    name: "AUTH",
    args: 2..=3,
    usage: "[user] password",
    summary: "Authenticates the connection.",
    before_auth: true,
    handler: Handler::Local(auth),
};

pub(super) const CLIENT: CommandSpec = CommandSpec {
    name: "CLIENT",
    args: 2..=4,
    usage: "SETNAME name | GETNAME | SETINFO attribute value | ID",
    summary: "Sets or returns the name of the connection, or returns its id.",
    before_auth: false,
    handler: Handler::Local(client),
};

pub(super) const SELECT: CommandSpec = CommandSpec {
    name: "SELECT",
    args: 2..=2,
    usage: "index",
    summary: "Selects the database, a namespace of keys: 0 to 15.",
    before_auth: false,
    handler: Handler::Local(|call| {
        call.session.database = Database::parse(call.args.at(1))?;
        Ok(call.ok())
    }),
};

pub(super) const RESET: CommandSpec = CommandSpec {
    name: "RESET",
    args: 1..=1,
    usage: "",
    summary: "Resets the connection to its initial state.",
    before_auth: false,
    handler: Handler::Immediate(|call| {
        *call.session = Session::new(call.session.id, call.server.passwords.is_required());
        call.reply().simple("RESET");
        Ok(Flow::Continue)
    }),
};

pub(super) const QUIT: CommandSpec = CommandSpec {
    name: "QUIT",
    args: 1..=ARGS_MAX,
    usage: "",
    summary: "Closes the connection.",
    before_auth: true,
    handler: Handler::Immediate(|call| {
        call.reply().ok();
        Ok(Flow::Close)
    }),
};

/// Executes `HELLO`. If an argument is invalid, nothing changes.
fn hello(call: &mut Call<'_, '_>) -> Result<Flow, CommandError> {
    let args = call.args;
    let protocol = match args.get(1) {
        None => call.session.protocol,
        Some(b"2") => RespVersion::Resp2,
        Some(b"3") => RespVersion::Resp3,
        Some(_) => return Err(CommandError::UnsupportedVersion),
    };
    let (mut is_authenticated, mut name) = (call.session.is_authenticated, None);
    let mut index = 2;
    while let Some(option) = args.get(index) {
        if option.eq_ignore_ascii_case(b"AUTH") && index + 2 < args.len() {
            if !call.server.passwords.accepts(args.at(index + 1), args.at(index + 2)) {
                return Err(CommandError::WrongPassword);
            }
            is_authenticated = true;
            index += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && index + 1 < args.len() {
            name = Some(client_name(args.at(index + 1))?);
            index += 2;
        } else {
            return Err(CommandError::HelloOption(quote(option)));
        }
    }
    if !is_authenticated {
        return Err(CommandError::HelloNoAuth);
    }
    let session = &mut *call.session;
    session.protocol = protocol;
    session.is_authenticated = is_authenticated;
    if let Some(name) = name {
        session.name = name;
    }
    write_server(call);
    Ok(Flow::Continue)
}

fn write_server(call: &mut Call<'_, '_>) {
    let id = call.session.id;
    let protocol = if call.session.protocol == RespVersion::Resp3 { 3 } else { 2 };
    let mut reply = call.reply();
    reply.map(7);
    reply.text("server");
    reply.text("ratekeeper");
    reply.text("version");
    reply.text(env!("CARGO_PKG_VERSION"));
    reply.text("proto");
    reply.integer(protocol);
    reply.text("id");
    reply.count(id);
    reply.text("mode");
    reply.text("standalone");
    reply.text("role");
    reply.text("master");
    reply.text("modules");
    reply.array(0);
}

fn auth(call: &mut Call<'_, '_>) -> Result<Flow, CommandError> {
    let passwords = &call.server.passwords;
    let (user, password) = match call.args.len() {
        2 if !passwords.is_required() => return Err(CommandError::NoPasswordConfigured),
        2 => (DEFAULT_USER, call.args.at(1)),
        _ => (call.args.at(1), call.args.at(2)),
    };
    if !passwords.accepts(user, password) {
        return Err(CommandError::WrongPassword);
    }
    call.session.is_authenticated = true;
    Ok(call.ok())
}

fn client(call: &mut Call<'_, '_>) -> Result<Flow, CommandError> {
    let subcommand = call.args.at(1).to_ascii_uppercase();
    match (subcommand.as_slice(), call.args.len()) {
        (b"SETNAME", 3) => {
            call.session.name = client_name(call.args.at(2))?;
            Ok(call.ok())
        }
        // Libraries send their name and version, which are not used.
        (b"SETINFO", 4) => Ok(call.ok()),
        (b"GETNAME", 2) => {
            let name = std::mem::take(&mut call.session.name);
            match name.is_empty() {
                true => call.reply().null(),
                false => call.reply().bulk(&name),
            }
            call.session.name = name;
            Ok(Flow::Continue)
        }
        (b"ID", 2) => {
            let id = call.session.id;
            call.reply().count(id);
            Ok(Flow::Continue)
        }
        _ => {
            let subcommand = quote(call.args.at(1));
            Err(CommandError::SubcommandArity { command: &CLIENT, subcommand })
        }
    }
}

fn client_name(name: &[u8]) -> Result<Vec<u8>, CommandError> {
    match name.len() <= NAME_MAX && name.iter().all(u8::is_ascii_graphic) {
        true => Ok(name.to_vec()),
        false => Err(CommandError::ClientName),
    }
}
