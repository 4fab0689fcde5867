//! Replies of commands.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ratekeeper::ManualClock;

use super::reply_text::read_all;
use super::server;
use crate::serve::resp::RespServer;
use crate::serve::resp::codec::{Parsed, ReplyWriter, Spans, parse};
use crate::serve::resp::command_limits::CommandLimits;
use crate::serve::resp::commands::{COMMANDS, Call, Flow, Step, dispatch};
use crate::serve::resp::session::Session;

/// A client of a server.
pub(super) struct TestClient {
    server: Arc<RespServer>,
    pub(super) clock: ManualClock,
    session: Session,
    limits: CommandLimits,
}

impl TestClient {
    pub(super) fn new(passwords: &[&str]) -> Self {
        let (server, clock) = server(passwords);
        let session = Session::new(7, !passwords.is_empty());
        Self { server, clock, session, limits: CommandLimits::default() }
    }

    pub(super) fn send(&mut self, line: &str) -> (String, Flow) {
        let mut input = format!("{line}\n").into_bytes();
        let (mut spans, mut out) = (Spans::default(), Vec::new());
        assert_eq!(parse(&mut input, &mut spans), Ok(Parsed::Command(input.len())));
        let args = spans.of(&input);
        let call = Call { args, server: &self.server, session: &mut self.session, out: &mut out };
        let flow = match dispatch(call, &mut self.limits) {
            Step::Replied(flow) => flow,
            Step::Rate(command) => {
                let engine = self.server.limiter.engine();
                let Ok(finished) = command.run(engine, engine.now()).try_now() else {
                    unreachable!("the store is in memory")
                };
                let mut reply = ReplyWriter::new(&mut out, self.session.protocol);
                finished.write(command.action, command.format, &mut reply);
                Flow::Continue
            }
            Step::Hold(command) => {
                let mut reply = ReplyWriter::new(&mut out, self.session.protocol);
                let run = command.run(&self.server, &mut reply).now_or_never();
                run.expect("the store is in memory");
                Flow::Continue
            }
        };
        (read_all(&out).join("\n"), flow)
    }

    /// Sends commands and compares the replies; `+3s` moves the clock instead.
    fn check(&mut self, script: &[(&str, &str)]) {
        for (line, reply) in script {
            match line.strip_prefix('+') {
                Some(span) => self.clock.advance(ratekeeper_core::parse_duration(span).unwrap()),
                None => assert_eq!(self.send(line).0, *reply, "{line}"),
            }
        }
    }
}

/// Sends commands as a new client, without passwords.
fn check(script: &[(&str, &str)]) {
    TestClient::new(&[]).check(script);
}

#[test]
fn throttle_replies_as_redis_cell_documents_it() {
    check(&[("CL.THROTTLE user123 15 30 60 1", "[0 16 15 -1 2]")]);
    check(&[("cl.throttle user123 15 30 60", "[0 16 15 -1 2]")]);
    check(&[
        ("CL.THROTTLE user123 0 1 2 1", "[0 1 0 -1 2]"),
        ("CL.THROTTLE user123 0 1 2 1", "[1 1 0 2 2]"),
        ("+2s", ""),
        ("CL.THROTTLE user123 0 1 2 1", "[0 1 0 -1 2]"),
    ]);
}

/// The cases of redis-cell's own test, with milliseconds rounded up to seconds.
#[test]
fn throttle_decides_as_redis_cell_does() {
    check(&[
        ("CL.THROTTLE foo 4 1 1 6", "[1 5 5 -1 0]"),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 4 -1 1]"),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 3 -1 2]"),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 2 -1 3]"),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 1 -1 4]"),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 0 -1 5]"),
        ("CL.THROTTLE foo 4 1 1 1", "[1 5 0 1 5]"),
        ("+3000ms", ""),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 2 -1 3]"),
        ("+100ms", ""),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 1 -1 4]"),
        ("+900ms", ""),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 1 -1 4]"),
        ("+4000ms", ""),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 4 -1 1]"),
        ("+1500ms", ""),
        ("CL.THROTTLE foo 4 1 1 1", "[0 5 4 -1 1]"),
        ("CL.THROTTLE foo 4 1 1 0", "[0 5 4 -1 1]"),
        ("CL.THROTTLE foo 4 1 1 2", "[0 5 2 -1 3]"),
        ("CL.THROTTLE foo 4 1 1 5", "[1 5 2 3 3]"),
    ]);
}

#[test]
fn usage_carries_over_when_the_numbers_change() {
    check(&[
        ("CL.THROTTLE k 9 10 10 10", "[0 10 0 -1 10]"),
        ("CL.THROTTLE k 0 1 1", "[1 1 0 10 10]"),
        ("CL.THROTTLE k 9 10 10 0", "[0 10 0 -1 10]"),
        ("CL.THROTTLE other 9 10 10 0", "[0 10 10 -1 0]"),
    ]);
}

#[test]
fn waits_are_rounded_up() {
    check(&[
        ("CL.THROTTLE k 0 2000 1", "[0 1 0 -1 1]"),
        ("CL.THROTTLE k 0 2000 1", "[1 1 0 1 1]"),
        ("+1s", ""),
        ("CL.THROTTLE k 0 2000 1", "[0 1 0 -1 1]"),
    ]);
}

#[test]
fn invalid_numbers_are_errors() {
    let usage = "usage: CL.THROTTLE key max_burst count period [quantity]";
    let wrong = format!("ERR wrong number of arguments for 'cl.throttle' command; {usage}");
    check(&[
        ("CL.THROTTLE k", &wrong),
        ("CL.THROTTLE k 1 1 1 1 1", &wrong),
        ("CL.THROTTLE k x 1 1", "ERR max_burst is not a whole number: 'x'"),
        ("CL.THROTTLE k -1 1 1", "ERR max_burst is negative: '-1'"),
        ("CL.THROTTLE k 1 1.5 1", "ERR count is not a whole number: '1.5'"),
        ("CL.THROTTLE k 1 0 1", "ERR the count is 0; it must be at least 1"),
        ("CL.THROTTLE k 1 1 0", "ERR the period is 0; it must be at least 1ms"),
        ("CL.THROTTLE k 1 1 1 -5", "ERR quantity is negative: '-5'"),
        ("CL.THROTTLE k 1 1 \"\"", "ERR period is not a whole number: ''"),
        (
            "CL.THROTTLE k 99999999999999999999 1 1",
            "ERR max_burst is too large: '99999999999999999999'",
        ),
        ("CL.THROTTLE k 999999999999 1 1", "ERR the burst is too large; at most 4294967295"),
    ]);
}

#[test]
fn every_algorithm_is_supported() {
    check(&[
        (
            "RK.CHECK k \"5/s burst 10\" ALGORITHM token_bucket COST 3",
            "[allowed 1 limit 10 remaining 7 retry_after_ms -1 reset_after_ms 600 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        (
            "rk.peek k \"5/s burst 10\" algorithm GCRA cost 8",
            "[allowed 0 limit 10 remaining 7 retry_after_ms 200 reset_after_ms 600 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        (
            "RK.CHECK k \"5/s burst 10\" ALGORITHM token_bucket COST 11",
            "[allowed 0 limit 10 remaining 7 retry_after_ms -1 reset_after_ms 600 delay_ms 0 exceeds_capacity 1 degraded 0]",
        ),
        (
            "RK.REFUND k \"5/s burst 10\" ALGORITHM token_bucket COST 3",
            "[allowed 1 limit 10 remaining 10 retry_after_ms -1 reset_after_ms 0 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        (
            "RK.CHARGE k \"5/s burst 10\" ALGORITHM token_bucket COST 20",
            "[allowed 1 limit 10 remaining 0 retry_after_ms -1 reset_after_ms 4000 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        ("RK.RESET k \"5/s burst 10\" ALGORITHM token_bucket", "OK"),
        (
            "RK.PEEK k \"5/s burst 10\" ALGORITHM token_bucket",
            "[allowed 1 limit 10 remaining 10 retry_after_ms -1 reset_after_ms 0 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
    ]);
    for algorithm in ratekeeper_core::ALGORITHMS {
        let mut client = TestClient::new(&[]);
        let line = format!("RK.CHECK k 2/minute ALGORITHM {algorithm}");
        let replies: Vec<_> = (0..3).map(|_| client.send(&line).0).collect();
        let allowed = |reply: &String| reply.starts_with("[allowed 1 limit 2 ");
        assert_eq!(replies.iter().map(allowed).collect::<Vec<_>>(), [true, true, false]);
    }
}

#[test]
fn a_calendar_period_is_a_fixed_window() {
    let mut client = TestClient::new(&[]);
    for line in [
        "RK.CHECK k \"10/calendar day in Europe/Berlin\"",
        "RK.CHECK k \"10/Calendar DAY in europe/berlin\" ALGORITHM fixed_window",
        "RK.CHARGE k \"10/calendar day in Europe/Berlin\" COST 2",
        "RK.CHECK k \"10/calendar day in Europe/Berlin\" OVERDRAFT",
    ] {
        assert!(client.send(line).0.starts_with("[allowed 1 limit 10 "), "{line}");
    }
    let left = client.send("RK.PEEK k \"10/calendar day in Europe/Berlin\"").0;
    assert!(left.starts_with("[allowed 1 limit 10 remaining 5 "), "{left}");
    check(&[
        (
            "RK.CHECK k \"10/calendar day\" ALGORITHM gcra",
            "ERR token_bucket has no calendar windows; use fixed_window, or a period without \"calendar\"",
        ),
        (
            "RK.CHECK k \"10/calendar day in Berlin\"",
            "ERR unknown time zone \"Berlin\"; did you mean \"Europe/Berlin\"?",
        ),
    ]);
}

#[test]
fn invalid_limits_are_errors() {
    check(&[
        (
            "RK.CHECK k",
            "ERR wrong number of arguments for 'rk.check' command; usage: RK.CHECK key rate [ALGORITHM name] [COST n] [NAME name] [OVERDRAFT] [MAXDEBT n|nx]",
        ),
        ("RK.CHECK k 5/s COST", "ERR 'COST' needs a value"),
        (
            "RK.CHECK k 5/s COST 0",
            "ERR a cost must be at least 1; to look without charging, use `peek`",
        ),
        (
            "RK.CHECK k 5/s PRICE 1",
            "ERR syntax error: unknown option 'PRICE'; use ALGORITHM, COST, NAME, OVERDRAFT or MAXDEBT",
        ),
        ("RK.RESET k 5/s COST 1", "ERR syntax error: unknown option 'COST'; use ALGORITHM or NAME"),
        (
            "RK.CHECK k 5/s ALGORITHM magic",
            "ERR unknown algorithm \"magic\"; use one of fixed_window, sliding_log, sliding_counter, token_bucket, leaky_bucket",
        ),
        (
            "RK.CHECK k \"5/s burst 10\" ALGORITHM sliding_counter",
            "ERR sliding_counter has no burst; leave it out, or use token_bucket or leaky_bucket",
        ),
        ("RK.CHECK k 0/s", "ERR the count is 0; it must be at least 1"),
        (
            "RK.CHECK k \"\\xff\"",
            "ERR the rate is not valid text; use one such as 100/minute or 5/s burst 10",
        ),
    ]);
}

#[test]
fn equal_limits_share_usage_and_names_separate_it() {
    check(&[
        ("CL.THROTTLE k 4 5 1 3", "[0 5 2 -1 1]"),
        (
            "RK.PEEK k \"5/s burst 5\"",
            "[allowed 1 limit 5 remaining 2 retry_after_ms -1 reset_after_ms 600 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        (
            "RK.PEEK k \"5/s burst 5\" NAME exports",
            "[allowed 1 limit 5 remaining 5 retry_after_ms -1 reset_after_ms 0 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        (
            "RK.PEEK k 5/s",
            "[allowed 1 limit 5 remaining 2 retry_after_ms -1 reset_after_ms 600 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        (
            "RK.PEEK k 5/s ALGORITHM sliding_counter",
            "[allowed 1 limit 5 remaining 5 retry_after_ms -1 reset_after_ms 0 delay_ms 0 exceeds_capacity 0 degraded 0]",
        ),
        ("RK.RESET k \"5/s burst 5\" NAME exports", "OK"),
        ("CL.THROTTLE k 4 5 1 3", "[1 5 2 1 1]"),
        ("RK.RESET k \"5/s burst 5\"", "OK"),
        ("CL.THROTTLE k 4 5 1 3", "[0 5 2 -1 1]"),
        (
            "RK.PEEK k 5/s NAME \"a b\"",
            "ERR a name is letters, digits, - _ . / : and at most 64 of them",
        ),
    ]);
}

#[test]
fn connection_commands_reply_as_redis_does() {
    check(&[
        ("PING", "PONG"),
        ("ping hello", "hello"),
        ("PING a b", "ERR wrong number of arguments for 'ping' command; usage: PING [message]"),
        ("ECHO hello", "hello"),
        ("SELECT 0", "OK"),
        ("SELECT 1", "ERR DB index is out of range; only 0 exists"),
        ("CLIENT ID", "7"),
        ("CLIENT GETNAME", "null"),
        ("CLIENT SETNAME app", "OK"),
        ("CLIENT GETNAME", "app"),
        ("CLIENT SETINFO LIB-NAME redis-py", "OK"),
        (
            "CLIENT KILL",
            "ERR unknown subcommand or wrong number of arguments for 'KILL'; usage: CLIENT SETNAME name | GETNAME | SETINFO attribute value | ID",
        ),
        ("RESET", "RESET"),
        ("CLIENT GETNAME", "null"),
        ("QUIT", "OK"),
    ]);
    assert_eq!(TestClient::new(&[]).send("QUIT").1, Flow::Close);
}

#[test]
fn an_overdraft_charges_more_than_is_left_once() {
    let named = |allowed, remaining, retry, reset| {
        format!(
            "[allowed {allowed} limit 5 remaining {remaining} retry_after_ms {retry} reset_after_ms {reset} delay_ms 0 exceeds_capacity 0 degraded 0]"
        )
    };
    check(&[
        ("RK.CHECK k 5/s COST 4 OVERDRAFT", &named(1, 1, -1, 800)),
        ("RK.CHECK k 5/s overdraft cost 4", &named(1, 0, -1, 1600)),
        ("RK.CHECK k 5/s COST 4 OVERDRAFT", &named(0, 0, 800, 1600)),
        (
            "RK.CHECK bounded 5/s COST 40 MAXDEBT 2x",
            &named(1, 0, -1, 3000).replace(" degraded 0]", " degraded 0 cut 1]"),
        ),
        ("RK.CHECK bounded 5/s OVERDRAFT", &named(0, 0, 2200, 3000)),
        (
            "RK.CHECK bounded 5/s MAXDEBT two",
            "ERR the maximum debt 'two' is not a maximum debt; use a number of units such as 500, or a multiple of the limit such as 2x or 0.5x",
        ),
        (
            "RK.RESET k 5/s OVERDRAFT x",
            "ERR syntax error: unknown option 'OVERDRAFT'; use ALGORITHM or NAME",
        ),
    ]);
}

#[test]
fn hello_selects_the_protocol_version() {
    let version = env!("CARGO_PKG_VERSION");
    let properties = |proto| {
        format!(
            "server ratekeeper version {version} proto {proto} id 7 mode standalone role master modules []"
        )
    };
    check(&[
        ("HELLO", &format!("[{}]", properties(2))),
        ("HELLO 3 SETNAME app", &format!("{{{}}}", properties(3))),
        ("CLIENT GETNAME", "app"),
        (
            "RK.CHECK j 5/s",
            "{allowed t limit 5 remaining 4 retry_after_ms -1 reset_after_ms 200 delay_ms 0 exceeds_capacity f degraded f}",
        ),
        ("CL.THROTTLE k 1 1 1", "[0 2 1 -1 1]"),
        ("HELLO 4", "NOPROTO unsupported protocol version; use 2 or 3"),
        ("HELLO 2 WHAT", "ERR Syntax error in HELLO option 'WHAT'"),
        ("HELLO 2", &format!("[{}]", properties(2))),
    ]);
}

#[test]
fn a_password_is_required_before_other_commands() {
    const NO_AUTH: &str = "NOAUTH Authentication required.";
    const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";
    let mut client = TestClient::new(&["old", "new"]);
    for command in COMMANDS.iter().filter(|command| !command.before_auth) {
        assert_eq!(client.send(command.name).0, NO_AUTH, "{}", command.name);
    }
    client.check(&[
        ("UNKNOWN", NO_AUTH),
        ("AUTH wrong", WRONG),
        ("AUTH admin old", WRONG),
        ("AUTH ol", WRONG),
        ("PING", NO_AUTH),
        ("AUTH old", "OK"),
        ("PING", "PONG"),
        ("RESET", "RESET"),
        ("PING", NO_AUTH),
        ("AUTH default new", "OK"),
        ("PING", "PONG"),
    ]);
    let mut client = TestClient::new(&["secret"]);
    assert!(client.send("HELLO 3").0.starts_with("NOAUTH HELLO must be called"));
    client.check(&[("HELLO 3 AUTH default wrong", WRONG), ("PING", NO_AUTH)]);
    assert!(client.send("HELLO 3 AUTH default secret").0.starts_with("{server ratekeeper"));
    client.check(&[("PING", "PONG")]);
    assert!(
        TestClient::new(&[]).send("AUTH x").0.starts_with("ERR AUTH <password> called without any")
    );
    assert_eq!(TestClient::new(&["secret"]).send("QUIT"), ("OK".to_string(), Flow::Close));
}

#[test]
fn unknown_commands_get_a_suggestion() {
    check(&[
        ("FOO", "ERR unknown command 'FOO', with args beginning with: "),
        ("GET a b", "ERR unknown command 'GET', with args beginning with: 'a' 'b' "),
        (
            "CL.THROTLE k 1",
            "ERR unknown command 'CL.THROTLE', with args beginning with: 'k' '1' ; did you mean CL.THROTTLE?",
        ),
    ]);
    assert_eq!(TestClient::new(&[]).send("POST / HTTP/1.1"), (String::new(), Flow::Close));
}

#[test]
fn info_describes_the_server() {
    let mut client = TestClient::new(&[]);
    client.clock.advance(Duration::from_secs(90));
    let all = client.send("INFO").0;
    for line in ["# Server", "redis_version:", "uptime_in_seconds:90", "# Clients", "store:memory"]
    {
        assert!(all.contains(line), "{line}: {all}");
    }
    let memory = client.send("INFO memory").0;
    assert!(memory.contains("live_keys:0") && !memory.contains("# Server"), "{memory}");
}

#[test]
fn config_get_returns_settings() {
    TestClient::new(&[]).check(&[
        ("CONFIG GET save", "[save ]"),
        ("CONFIG GET APPENDONLY", "[appendonly no]"),
        ("config get *s* nothing", "[databases 1 maxclients 10 save ]"),
        ("CONFIG GET nothing", "[]"),
        (
            "CONFIG SET save 1",
            "ERR unknown subcommand 'SET'; usage: CONFIG GET pattern [pattern ...]",
        ),
        ("CONFIG GET", "ERR unknown subcommand 'GET'; usage: CONFIG GET pattern [pattern ...]"),
    ]);
}

#[test]
fn the_list_of_commands_is_returned_and_well_formed() {
    let names: HashSet<_> = COMMANDS.iter().map(|command| command.name).collect();
    assert_eq!(names.len(), COMMANDS.len());
    for command in COMMANDS {
        assert!(command.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'.'));
        assert!(command.summary.ends_with('.'), "{}", command.name);
    }
    let mut client = TestClient::new(&[]);
    client.check(&[
        ("COMMAND COUNT", &COMMANDS.len().to_string()),
        (
            "COMMAND INFO cl.throttle nothing",
            "[[cl.throttle -5 [write fast] 1 1 1 [] [] [] []] null]",
        ),
        (
            "COMMAND DOCS PING",
            "[ping [summary Returns PONG, or the message. group connection syntax PING [message]]]",
        ),
    ]);
    for line in ["COMMAND", "COMMAND INFO", "COMMAND DOCS", "COMMAND LIST"] {
        let reply = client.send(line).0;
        assert!(names.iter().all(|name| reply.contains(&name.to_lowercase())), "{line}: {reply}");
    }
}
