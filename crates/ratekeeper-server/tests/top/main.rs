//! `ratekeeper top`: in a real terminal and in a pipe, with a real server and its traffic.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::{
    CA, CERTIFICATE, KEY, Listener, Server, ServerBuilder, Terminal, TerminalMode, wait_until,
    write_certificates,
};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ratekeeper");

const POLICY: &str = "version: 1
limits:
  - { name: api, per: ip, rate: 1000000/hour, algorithm: fixed_window }
  - { name: login, per: ip, match: { path: /login }, rate: 3/hour, algorithm: fixed_window }
  - { name: trial, per: ip, rate: 2/hour, algorithm: fixed_window, mode: shadow }
";

const AT_REST: TerminalMode =
    TerminalMode { is_alternate_screen: false, has_cursor: true, is_line_mode: true };
const FULL_SCREEN: TerminalMode =
    TerminalMode { is_alternate_screen: true, has_cursor: false, is_line_mode: false };

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
    folder
}

fn start(folder: &Path, args: &[&str]) -> Server {
    let builder = ServerBuilder::serve(PROGRAM).listen(&[Listener::Http, Listener::Admin]);
    builder.args(args).args([folder.join("policy.yaml")]).start()
}

/// Sends so many requests for a path from one address.
fn send(http: SocketAddr, path: &str, peer: &str, requests: usize) {
    let mut client = Client::connect(http);
    let body = format!(r#"{{"request":{{"method":"GET","path":"{path}","peer":"{peer}"}}}}"#);
    let length = body.len();
    for _ in 0..requests {
        let head =
            format!("POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let status = client.request(&format!("{head}{body}")).status();
        assert!([200, 429].contains(&status), "{status}");
    }
}

/// Starts `ratekeeper top` from the shell of a terminal. The shell prints how it ends.
fn watch(terminal: &Terminal, admin: SocketAddr, options: &str) {
    let top = format!("{PROGRAM} top --interval 200ms --admin http://{admin} {options}");
    terminal.write(&format!("{top}; echo \"exit code: $?\""));
    terminal.press("Enter");
    terminal.wait_for("decisions/s");
}

/// Returns the cells of the row that begins with this text.
fn row(screen: &str, first: &str) -> Option<Vec<String>> {
    let mut rows = screen.lines().map(|line| line.split_whitespace().map(ToString::to_string));
    rows.find_map(|mut cells| (cells.next()? == first).then(|| cells.collect()))
}

fn is_rate(cell: &str) -> bool {
    cell.parse::<f64>().is_ok_and(|rate| rate > 0.0)
}

fn names(screen: &str) -> Vec<&str> {
    let rows = screen.lines().filter_map(|line| line.split_whitespace().next());
    rows.filter(|name| ["api", "login", "trial"].contains(name)).collect()
}

#[test]
fn a_terminal_shows_rates_sorts_filters_resizes_and_is_restored() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    let terminal = Terminal::start(110, 20);
    watch(&terminal, server.admin(), "");
    assert_eq!(terminal.mode(), FULL_SCREEN);
    let mut is_seen = false;
    wait_until("the rates of login", || {
        send(server.http(), "/login", "192.0.2.7", 5);
        let login = row(&terminal.screen(), "login").unwrap_or_default();
        is_seen |= login.len() > 2 && is_rate(&login[1]);
        is_seen
    });

    terminal.press("n");
    terminal.wait_until("sorted by name", |screen| names(screen) == ["api", "login", "trial"]);
    terminal.press("n");
    terminal.wait_until("reversed", |screen| names(screen) == ["trial", "login", "api"]);

    terminal.press("/");
    terminal.write("LOG");
    terminal.wait_until("filtered", |screen| names(screen) == ["login"]);
    terminal.press("Enter");
    terminal.wait_for("filter (LOG)");
    terminal.press("Tab");
    terminal.press("Tab");
    terminal.wait_for("ip=192.0.2.7");
    terminal.press("/");
    terminal.wait_for("Esc clears it");
    // Escape and a key at once are another key.
    terminal.press("Escape");
    terminal.wait_until("no filter", |screen| !screen.contains("LOG"));
    terminal.press("1");
    terminal.wait_until("all of them", |screen| names(screen).len() == 3);

    terminal.resize(60, 8);
    terminal.wait_until("two rows", |screen| names(screen) == ["trial", "login"]);
    terminal.press("Down");
    terminal.wait_until("the rows below", |screen| names(screen) == ["login", "api"]);
    terminal.resize(120, 30);
    terminal.wait_until("all of them again", |screen| names(screen).len() == 3);

    terminal.press("q");
    terminal.wait_for("exit code: 0");
    assert_eq!(terminal.mode(), AT_REST);
    assert!(names(&terminal.screen()).is_empty(), "the screen of the shell is back");
}

#[test]
fn every_way_to_end_restores_the_terminal() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    for end in ["C-c", "Escape", "-TERM", "-INT"] {
        let terminal = Terminal::start(100, 20);
        let file = folder.path().join(end);
        let shell = format!("sh -c 'echo $$ > {}; exec \"$@\"' sh", file.display());
        let top = format!("{shell} {PROGRAM} top --admin http://{}", server.admin());
        terminal.write(&format!("{top}; echo \"exit code: $?\""));
        terminal.press("Enter");
        terminal.wait_for("decisions/s");
        match end.starts_with('-') {
            true => {
                let id = fs::read_to_string(file).unwrap();
                let status = Command::new("kill").args([end, id.trim()]).status().unwrap();
                assert!(status.success());
            }
            false => terminal.press(end),
        }
        terminal.wait_for("exit code: 0");
        assert_eq!(terminal.mode(), AT_REST, "{end}");
    }
}

#[test]
fn a_server_that_restarts_is_shown_again() {
    let folder = folder();
    let server = start(folder.path(), &[]);
    let admin = server.admin();
    let terminal = Terminal::start(110, 20);
    watch(&terminal, admin, "");
    drop(server);
    terminal.wait_for("no connection, trying again: cannot reach the admin listener");
    assert_eq!(names(&terminal.screen()).len(), 3, "what was read last stays");
    let _server = start(folder.path(), &["--admin", &admin.to_string()]);
    terminal.wait_until("connected", |screen| !screen.contains("no connection"));
    terminal.press("q");
    terminal.wait_for("exit code: 0");
}

fn top(args: &[&str]) -> Output {
    Command::new(PROGRAM).arg("top").args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{errors}"))
}

#[test]
fn a_pipe_gets_one_frame_over_tls_with_a_token() {
    let folder = folder();
    write_certificates(folder.path());
    let of = |name: &str| folder.path().join(name).display().to_string();
    fs::write(of("tokens"), "omega\n").unwrap();
    fs::write(of("read-tokens"), "alpha\n").unwrap();
    let (certificate, key, tokens, read) =
        (of(CERTIFICATE), of(KEY), of("tokens"), of("read-tokens"));
    let options = ["--tls-cert", &certificate, "--tls-key", &key, "--plaintext", "http"];
    let access = ["--admin-tokens", &tokens, "--admin-read-tokens", &read];
    let server = start(folder.path(), &[&options[..], &access[..]].concat());
    send(server.http(), "/login", "192.0.2.7", 10);

    let (admin, ca) = (format!("https://localhost:{}", server.admin().port()), of(CA));
    let options = ["--admin", &admin, "--ca", &ca, "--interval", "100ms"];
    let ask = |args: &[&str]| top(&[&options[..], args].concat());

    let frame = ask(&["--token", &tokens]);
    let text = String::from_utf8(frame.stdout.clone()).unwrap();
    assert!(frame.status.success() && !text.contains('\u{1b}'), "{text}");
    let login = row(&text, "login").expect("a row of the limit");
    assert_eq!(login[..3], ["0", "0", "0"], "nothing was sent between the readings: {text}");
    assert!(text.contains("login   ip=192.0.2.7"), "{text}");

    let read_all = json(&ask(&["--token", &tokens, "--format", "json"]));
    let limit = |name: &str| {
        let limits = read_all["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["name"] == name).unwrap().clone()
    };
    assert_eq!(limit("login")["total"]["allowed"], 3);
    assert_eq!(limit("login")["total"]["denied"], 7);
    assert_eq!(limit("login")["per_second"]["denied"], 0.0);
    let denied = &read_all["keys"]["most_denied"]["keys"][0];
    assert_eq!((&denied["limit"], &denied["count"]), (&"login".into(), &7.into()));

    let read_some = json(&ask(&["--token", &read, "--format", "json"]));
    assert_eq!(read_some["keys"], Value::Null);
    assert_eq!(read_some["keys_error"], "this token may not see keys or change anything");
    assert_eq!(read_some["limits"], read_all["limits"]);

    let without = ask(&[]);
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stderr).contains("--token"));
}
