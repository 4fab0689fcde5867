//! Commands about the connection itself.

use super::{Call, Command, Flow, Handler, quote};
use crate::serve::resp::codec::{ARGS_MAX, Protocol};
use crate::serve::resp::session::{NAME_MAX, Session};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(super) const PING: Command = Command {
    name: "PING",
    args: 1..=2,
    usage: "[message]",
    summary: "Answers PONG, or with the message.",
    is_for_strangers: false,
    handler: Handler::Here(|call| {
        match call.args.get(1) {
            None => call.reply().simple("PONG"),
            Some(message) => call.reply().bulk(message),
        }
        Flow::GoOn
    }),
};

pub(super) const ECHO: Command = Command {
    name: "ECHO",
    args: 2..=2,
    usage: "message",
    summary: "Answers with the message.",
    is_for_strangers: false,
    handler: Handler::Here(|call| {
        let message = call.args.at(1);
        call.reply().bulk(message);
        Flow::GoOn
    }),
};

pub(super) const HELLO: Command = Command {
    name: "HELLO",
    args: 1..=ARGS_MAX,
    usage: "[2|3] [AUTH user password] [SETNAME name]",
    summary: "Chooses the version of the protocol, and tells about the server.",
    is_for_strangers: true,
    handler: Handler::Here(|call| match hello(call) {
        Ok(()) => {
            tell_server(call);
            Flow::GoOn
        }
        Err(why) => call.error(&why),
    }),
};

pub(super) const AUTH: Command = Command {
    name: "AUTH",
    args: 2..=3,
    usage: "[user] password",
    summary: "Tells the password.",
    is_for_strangers: true,
    handler: Handler::Here(auth),
};

pub(super) const CLIENT: Command = Command {
    name: "CLIENT",
    args: 2..=4,
    usage: "SETNAME name | GETNAME | SETINFO attribute value | ID",
    summary: "What a client says of itself.",
    is_for_strangers: false,
    handler: Handler::Here(client),
};

pub(super) const SELECT: Command = Command {
    name: "SELECT",
    args: 2..=2,
    usage: "0",
    summary: "Chooses a database, of which there is one.",
    is_for_strangers: false,
    handler: Handler::Here(|call| match call.args.at(1) {
        b"0" => call.ok(),
        _ => call.error("ERR DB index is out of range; there is only 0"),
    }),
};

pub(super) const RESET: Command = Command {
    name: "RESET",
    args: 1..=1,
    usage: "",
    summary: "Makes the connection as good as new.",
    is_for_strangers: false,
    handler: Handler::Here(|call| {
        *call.session = Session::new(call.session.id, call.door.passwords.are_needed());
        call.reply().simple("RESET");
        Flow::GoOn
    }),
};

pub(super) const QUIT: Command = Command {
    name: "QUIT",
    args: 1..=ARGS_MAX,
    usage: "",
    summary: "Closes the connection.",
    is_for_strangers: true,
    handler: Handler::Here(|call| {
        call.reply().ok();
        Flow::Close
    }),
};

/// Nothing changes unless all of it can.
fn hello(call: &mut Call<'_, '_>) -> Result<(), String> {
    let args = call.args;
    let protocol = match args.get(1) {
        None => call.session.protocol,
        Some(b"2") => Protocol::Two,
        Some(b"3") => Protocol::Three,
        Some(_) => return Err("NOPROTO unsupported protocol version; there are 2 and 3".into()),
    };
    let (mut is_trusted, mut name, mut at) = (call.session.is_trusted, None, 2);
    while let Some(option) = args.get(at) {
        if option.eq_ignore_ascii_case(b"AUTH") && at + 2 < args.len() {
            if !call.door.passwords.admit(args.at(at + 1), args.at(at + 2)) {
                return Err(WRONG_PASSWORD.into());
            }
            is_trusted = true;
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && at + 1 < args.len() {
            name = Some(client_name(args.at(at + 1))?);
            at += 2;
        } else {
            return Err(format!("ERR Syntax error in HELLO option '{}'", quote(option)));
        }
    }
    if !is_trusted {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    let session = &mut *call.session;
    let name = name.unwrap_or_else(|| std::mem::take(&mut session.name));
    *session = Session { protocol, is_trusted, name, ..*session };
    Ok(())
}

fn tell_server(call: &mut Call<'_, '_>) {
    let id = call.session.id;
    let protocol = if call.session.protocol == Protocol::Three { 3 } else { 2 };
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

fn auth(call: &mut Call<'_, '_>) -> Flow {
    let passwords = &call.door.passwords;
    let (user, password) = match call.args.len() {
        2 if !passwords.are_needed() => {
            return call.error("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?");
        }
        2 => (&b"default"[..], call.args.at(1)),
        _ => (call.args.at(1), call.args.at(2)),
    };
    if !passwords.admit(user, password) {
        return call.error(WRONG_PASSWORD);
    }
    call.session.is_trusted = true;
    call.ok()
}

fn client(call: &mut Call<'_, '_>) -> Flow {
    let deed = call.args.at(1).to_ascii_uppercase();
    match (deed.as_slice(), call.args.len()) {
        (b"SETNAME", 3) => match client_name(call.args.at(2)) {
            Ok(name) => {
                call.session.name = name;
                call.ok()
            }
            Err(why) => call.error(&why),
        },
        // A library tells its name and version, which nobody here asks for.
        (b"SETINFO", 4) => call.ok(),
        (b"GETNAME", 2) => {
            let name = std::mem::take(&mut call.session.name);
            match name.is_empty() {
                true => call.reply().null(),
                false => call.reply().bulk(&name),
            }
            call.session.name = name;
            Flow::GoOn
        }
        (b"ID", 2) => {
            let id = call.session.id;
            call.reply().count(id);
            Flow::GoOn
        }
        _ => {
            let deed = quote(call.args.at(1));
            call.error(&format!(
                "ERR unknown subcommand or wrong number of arguments for '{deed}'; usage: CLIENT {}",
                CLIENT.usage
            ))
        }
    }
}

fn client_name(name: &[u8]) -> Result<Vec<u8>, String> {
    match name.len() <= NAME_MAX && name.iter().all(u8::is_ascii_graphic) {
        true => Ok(name.to_vec()),
        false => {
            Err("ERR Client names cannot contain spaces, newlines or special characters, and \
                      have at most 256 of them"
                .into())
        }
    }
}
