//! `MULTI` and `EXEC`.

use super::client::{TestClient, check};
use crate::serve::resp::commands::Flow;
use crate::serve::resp::transaction::{BYTES_MAX, COMMANDS_MAX};

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
/// A check of a key with nothing used, and one more that is denied.
const FIRST: &str = "[0 1 0 -1 3600]";
const DENIED: &str = "[1 1 0 3600 3600]";

#[test]
fn commands_are_queued_and_executed_together() {
    check(&[
        ("MULTI", "OK"),
        ("CL.THROTTLE k 0 1 3600", "QUEUED"),
        ("+1h", ""),
        ("CL.THROTTLE k 0 1 3600", "QUEUED"),
        ("PING", "QUEUED"),
        ("ECHO \"a b\"", "QUEUED"),
        ("TTL k", "QUEUED"),
        ("DEL k", "QUEUED"),
        ("CL.THROTTLE k 0 1 3600", "QUEUED"),
        ("EXEC", &format!("[{FIRST} {DENIED} PONG a b 3600 1 {FIRST}]")),
        ("EXEC", "ERR EXEC without MULTI"),
        ("MULTI", "OK"),
        ("EXEC", "[]"),
    ]);
}

#[test]
fn a_discarded_transaction_charges_nothing() {
    check(&[
        ("DISCARD", "ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("CL.THROTTLE k 0 1 3600", "QUEUED"),
        ("DISCARD", "OK"),
        ("EXEC", "ERR EXEC without MULTI"),
        ("CL.THROTTLE k 0 1 3600", FIRST),
        ("MULTI", "OK"),
        ("DEL k", "QUEUED"),
        ("RESET", "RESET"),
        ("CL.THROTTLE k 0 1 3600", DENIED),
    ]);
}

#[test]
fn a_refused_command_aborts_the_transaction_and_nothing_is_charged() {
    for refused in [
        "FOO",
        "CL.THROTTLE",
        "CL.THROTTLE k x 1 1",
        "CL.THROTTLE k 1 0 1",
        "RK.CHECK k 5/fortnight",
        "RK.CHECK k 5/s COST 0",
        "TTL",
        "MULTI x",
        "SELECT 16",
        "HELLO 4",
        "AUTH x",
        "CLIENT KILL",
    ] {
        let mut client = TestClient::new(&[]);
        client.check(&[("MULTI", "OK"), ("CL.THROTTLE k 0 1 3600", "QUEUED")]);
        let (reply, flow) = client.send(refused);
        assert!(reply.starts_with("ERR ") || reply.starts_with("NOPROTO "), "{refused}: {reply}");
        assert_eq!(flow, Flow::Continue);
        client.check(&[
            ("PING", "QUEUED"),
            ("EXEC", ABORTED),
            ("EXEC", "ERR EXEC without MULTI"),
            ("CL.THROTTLE k 0 1 3600", FIRST),
        ]);
    }
}

/// As in Redis, these errors do not abort the transaction.
#[test]
fn misplaced_commands_are_errors() {
    let mut client = TestClient::new(&[]);
    assert!(client.send("WATCH k").0.starts_with("ERR WATCH is not supported; "));
    client.check(&[
        ("UNWATCH", "OK"),
        ("MULTI", "OK"),
        ("MULTI", "ERR MULTI calls can not be nested"),
        ("WATCH k", "ERR WATCH inside MULTI is not allowed"),
        ("UNWATCH", "QUEUED"),
        ("EXEC", "[OK]"),
    ]);
}

#[test]
fn commands_that_change_the_connection_take_effect_at_exec() {
    let mut client = TestClient::new(&["secret"]);
    client.check(&[
        ("MULTI", "NOAUTH Authentication required."),
        ("AUTH secret", "OK"),
        ("MULTI", "OK"),
        ("AUTH wrong", "WRONGPASS invalid username-password pair or user is disabled."),
        ("EXEC", ABORTED),
        ("CL.THROTTLE k 0 1 3600", FIRST),
        ("MULTI", "OK"),
        ("SELECT 1", "QUEUED"),
        ("CL.THROTTLE k 0 1 3600", "QUEUED"),
        ("AUTH secret", "QUEUED"),
        ("CLIENT SETNAME app", "QUEUED"),
        ("CLIENT GETNAME", "QUEUED"),
        ("EXEC", &format!("[OK {FIRST} OK OK app]")),
        ("CL.THROTTLE k 0 1 3600", DENIED),
        ("MULTI", "OK"),
        ("HELLO 3", "QUEUED"),
        ("RK.PEEK j 5/s", "QUEUED"),
    ]);
    let reply = client.send("EXEC").0;
    assert!(reply.contains("proto 3") && reply.contains("{allowed t limit 5"), "{reply}");
    client.check(&[("MULTI", "OK"), ("PING", "QUEUED")]);
    assert_eq!(client.send("QUIT"), ("OK".to_string(), Flow::Close));
}

#[test]
fn a_transaction_is_bounded() {
    let too_long = format!(
        "ERR the transaction is too long; it has at most {COMMANDS_MAX} commands and {BYTES_MAX} bytes"
    );
    let mut client = TestClient::new(&[]);
    client.check(&[("MULTI", "OK")]);
    (0..COMMANDS_MAX).for_each(|_| client.check(&[("PING", "QUEUED")]));
    client.check(&[("PING", &too_long), ("PING", "QUEUED"), ("EXEC", ABORTED)]);
    let echo = format!("ECHO {}", "x".repeat(60_000));
    client.check(&[
        ("MULTI", "OK"),
        (&echo, "QUEUED"),
        (&echo, "QUEUED"),
        (&echo, &too_long),
        ("EXEC", ABORTED),
        ("CL.THROTTLE k 0 1 3600", FIRST),
    ]);
    client.check(&[("MULTI", "OK")]);
    (0..COMMANDS_MAX).for_each(|_| client.check(&[("CL.THROTTLE k 9 1 60", "QUEUED")]));
    let reply = client.send("EXEC").0;
    assert_eq!(reply.matches("[0 10 ").count() + reply.matches("[1 10 ").count(), COMMANDS_MAX);
}
