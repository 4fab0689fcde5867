//! Frames on a terminal of a test, and what keys do.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw::{Look, draw};
use super::once;
use super::pane::Pane;
use super::reading::Reading;
use super::state::{Flow, State};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_800_000_000 * SECOND;

fn limit(name: &str, rule: &str, mode: &str, [allowed, near, denied, shadow]: [u64; 4]) -> Value {
    let total = json!({ "allowed": allowed, "near_limit": near, "denied": denied, "shadow_denied": shadow });
    json!({ "name": name, "rule": rule, "mode": mode, "total": total })
}

fn keys(list: &[(&str, &str, u64)]) -> Value {
    let key = |(limit, key, count): &(&str, &str, u64)| json!({ "limit": limit, "key": key, "truncated": false, "count": count, "error_max": 0 });
    json!({ "keys": list.iter().map(key).collect::<Vec<_>>() })
}

/// Returns what a server shows so many seconds after its start.
fn reading(seconds: u64) -> Reading {
    let limits = [
        limit("search", "100/minute per ip", "enforced", [50, 5, 0, 0].map(|n| n * seconds)),
        limit("login", "5/minute per ip", "enforced", [2, 1, 6, 0].map(|n| n * seconds)),
        limit("trial", "10/s", "shadow", [1, 0, 0, 9].map(|n| n * seconds)),
    ];
    let fallback = json!({
        "nodes": 3, "by_store": 40, "local": 2, "open": 1, "closed": 0, "backlog_keys": 4,
    });
    let status = json!({
        "at_us": START + seconds * SECOND,
        "version": "1.2.3",
        "policy": { "version": 7, "loaded_at_us": START, "failures": 0, "error": null },
        "store": {
            "state": "up", "error": null, "breaker": "closed", "memory": null,
            "fallback": fallback, "leases": null,
        },
        "attention": [],
        "limits": limits,
    });
    let keys = json!({
        "half_life_s": 60,
        "hottest": keys(&[("search", "ip=192.0.2.1", 40), ("login", "ip=192.0.2.2", 12)]),
        "most_denied": keys(&[("login", "ip=192.0.2.2", 9)]),
        "most_shadow_denied": keys(&[]),
    });
    Reading {
        status: serde_json::from_value(status).unwrap(),
        keys: Ok(serde_json::from_value(keys).unwrap()),
    }
}

/// Returns the state after two readings, two seconds apart.
fn state() -> State {
    let mut state = State::new("127.0.0.1:9091".into(), reading(10));
    state.update(reading(12));
    state
}

fn press(state: &mut State, code: KeyCode) -> Flow {
    state.handle(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn type_in(state: &mut State, keys: &str) {
    for c in keys.chars() {
        let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
        assert_eq!(press(state, code), Flow::Continue);
    }
}

/// Returns the lines of a frame of this size.
fn frame(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        state.resize(height);
        draw(state, Look { color: true }, frame.area(), frame.buffer_mut());
    };
    terminal.draw(draw).unwrap();
    let content = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect();
    let lines: Vec<String> = content.chunks(usize::from(width.max(1))).map(line).collect();
    lines.into_iter().map(|line| line.trim_end().to_string()).collect()
}

fn first_column(state: &State) -> Vec<String> {
    state.table(state.pane).rows.iter().map(|row| row[0].text()).collect()
}

#[test]
fn a_frame_shows_the_rates_of_each_limit() {
    let frame = frame(&mut state(), 104, 10);
    assert_eq!(
        frame,
        [
            "ratekeeper 1.2.3 127.0.0.1:9091  policy 7  store up  breaker closed  nodes 3",
            "decisions/s: admitted 53.0  denied 6.0  shadow 9.0  near limit 6.0  at 2027-01-15T08:00:12Z",
            "",
            " 1 limits   2 hottest keys   3 most denied keys   4 most shadow-denied keys   5 server",
            "NAME     ADMITTED/S  DENIED/S▼   SHADOW/S   NEAR/S   DENIED%  MODE      RATE",
            "login           2.0        6.0          0      1.0       75%  enforced  5/minute per ip",
            "search         50.0          0          0      5.0        0%  enforced  100/minute per ip",
            "trial           1.0          0        9.0        0        0%  shadow    10/s",
            "",
            "q quit   Tab pane   / filter   sort: n=name a=admitted d=denied s=shadow e=near p=denied% m=mode r=rate",
        ]
    );
    let docs = include_str!("../../../../docs/operations.md");
    assert!(docs.contains(&frame.join("\n")), "docs/operations.md shows this frame");
}

#[test]
fn the_keys_and_the_server_have_panes_of_their_own() {
    let mut state = state();
    assert_eq!(press(&mut state, KeyCode::Tab), Flow::Continue);
    let hottest = frame(&mut state, 60, 9);
    assert_eq!(
        hottest[4..8],
        [
            "COUNT▼   ERROR  LIMIT   KEY",
            "    40       0  search  ip=192.0.2.1",
            "    12       0  login   ip=192.0.2.2",
            "",
        ]
    );
    type_in(&mut state, "4");
    assert_eq!(frame(&mut state, 60, 9)[5], "no keys lately");
    type_in(&mut state, "5");
    let server = frame(&mut state, 80, 14);
    for expected in
        ["policy", "version 7", "circuit breaker", "nodes", "40", "4 keys to write back"]
    {
        assert!(server[5..].iter().any(|line| line.contains(expected)), "{expected}: {server:#?}");
    }
    assert_eq!(press(&mut state, KeyCode::Tab), Flow::Continue);
    assert_eq!(state.pane, Pane::Limits, "from the last pane to the first");
    assert_eq!(press(&mut state, KeyCode::BackTab), Flow::Continue);
    assert_eq!(state.pane, Pane::Server);
}

#[test]
fn a_shortcut_sorts_and_the_same_again_reverses() {
    let mut state = state();
    let cases = [
        ("a", ["search", "login", "trial"]),
        ("a", ["trial", "login", "search"]),
        ("s", ["trial", "search", "login"]),
        ("n", ["login", "search", "trial"]),
        ("n", ["trial", "search", "login"]),
        ("d", ["login", "search", "trial"]),
        ("x", ["login", "search", "trial"]),
    ];
    for (keys, expected) in cases {
        type_in(&mut state, keys);
        assert_eq!(first_column(&state), expected, "{keys}");
    }
}

#[test]
fn a_filter_is_kept_by_enter_and_cleared_by_escape() {
    let mut state = state();
    type_in(&mut state, "/SEArq");
    assert_eq!(first_column(&state), [""; 0], "q is a letter here");
    assert!(frame(&mut state, 80, 9)[5].contains("nothing contains \"SEArq\""));
    assert_eq!(press(&mut state, KeyCode::Backspace), Flow::Continue);
    type_in(&mut state, "\n");
    assert_eq!(first_column(&state), ["search"]);
    assert!(frame(&mut state, 80, 9)[8].contains("/ filter (SEAr)"));
    type_in(&mut state, "2");
    assert_eq!(state.table(Pane::Hottest).rows.len(), 1, "it applies to every pane");
    type_in(&mut state, "/");
    assert_eq!(press(&mut state, KeyCode::Esc), Flow::Continue);
    assert_eq!(state.table(Pane::Hottest).rows.len(), 2);
    assert_eq!(press(&mut state, KeyCode::Esc), Flow::Quit);
}

#[test]
fn q_escape_and_control_c_quit() {
    assert_eq!(press(&mut state(), KeyCode::Char('q')), Flow::Quit);
    assert_eq!(press(&mut state(), KeyCode::Esc), Flow::Quit);
    let control_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    let mut editing = state();
    type_in(&mut editing, "/");
    assert_eq!(editing.handle(&control_c), Flow::Quit, "also while a filter is edited");
}

#[test]
fn a_lost_connection_is_shown_until_it_is_back() {
    let mut state = state();
    state.lose("cannot reach it".into());
    let lines = frame(&mut state, 80, 9);
    assert_eq!(lines[2], "no connection, trying again: cannot reach it");
    assert!(lines[5].starts_with("login"), "what was read last stays");
    state.update(reading(13));
    assert_eq!(frame(&mut state, 80, 9)[2], "");
}

#[test]
fn counters_that_restart_have_no_rate_until_the_next_reading() {
    let mut state = state();
    let restarted = |seconds: u64| {
        let mut restarted = reading(seconds);
        restarted.status.at_us = START + (seconds + 100) * SECOND;
        restarted
    };
    state.update(restarted(1));
    assert_eq!(state.rates, [None; 3]);
    assert!(frame(&mut state, 80, 9)[1].contains("not known"));
    state.update(restarted(2));
    assert_eq!(state.rates[0].unwrap().allowed, 50.0);
}

#[test]
fn what_needs_attention_is_above_the_table() {
    let mut state = state();
    let mut now = reading(14);
    now.status.attention = serde_json::from_value(json!([
        { "urgency": "error", "text": "The store is unavailable.", "details": "refused\u{1b}[2J" },
        { "urgency": "note", "text": "login refused 75%.", "details": null },
    ]))
    .unwrap();
    state.update(now);
    let lines = frame(&mut state, 80, 9);
    assert_eq!(lines[2], "error: The store is unavailable. (and 1 more, see server)");
    assert!(once::text(&state).contains("The store is unavailable. refused\u{fffd}[2J"));
}

#[test]
fn a_token_without_access_to_keys_still_shows_the_limits() {
    let mut state = state();
    let mut now = reading(14);
    now.keys = Err("this token may not see keys or change anything".into());
    state.update(now);
    type_in(&mut state, "3");
    assert_eq!(frame(&mut state, 80, 9)[5], "this token may not see keys or change anything");
    assert_eq!(once::json(&state)["keys"], Value::Null);
    assert_eq!(once::json(&state)["limits"][0]["per_second"]["allowed"], 50.0);
}

#[test]
fn one_frame_as_text_has_every_pane() {
    let expected = "\
1.2.3 127.0.0.1:9091  policy 7  store up  breaker closed  nodes 3
decisions/s: admitted 53.0  denied 6.0  shadow 9.0  near limit 6.0  at 2027-01-15T08:00:12Z

limits
  NAME     ADMITTED/S   DENIED/S   SHADOW/S   NEAR/S   DENIED%  MODE      RATE
  login           2.0        6.0          0      1.0       75%  enforced  5/minute per ip
  search         50.0          0          0      5.0        0%  enforced  100/minute per ip
  trial           1.0          0        9.0        0        0%  shadow    10/s

hottest keys
   COUNT   ERROR  LIMIT   KEY
      40       0  search  ip=192.0.2.1
      12       0  login   ip=192.0.2.2

most denied keys
   COUNT   ERROR  LIMIT   KEY
       9       0  login   ip=192.0.2.2

most shadow-denied keys
  no keys lately

server
";
    let text = once::text(&state());
    let (before, _) = text.split_once("  WHAT").unwrap();
    assert_eq!(before, expected);
}

fn any_key() -> impl Strategy<Value = KeyCode> {
    let named = prop::sample::select(vec![
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Backspace,
        KeyCode::Delete,
        KeyCode::F(1),
    ]);
    prop_oneof![
        named,
        any::<char>().prop_map(KeyCode::Char),
        (b' '..=b'~').prop_map(|byte| KeyCode::Char(char::from(byte)))
    ]
}

fn any_modifiers() -> impl Strategy<Value = KeyModifiers> {
    any::<u8>().prop_map(KeyModifiers::from_bits_truncate)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_the_keys_and_the_size_a_frame_is_drawn(
        keys in prop::collection::vec((any_key(), any_modifiers()), 0..40),
        width in 0_u16..130,
        height in 0_u16..40,
    ) {
        let mut state = state();
        for (code, modifiers) in keys {
            let _ = state.handle(&Event::Key(KeyEvent::new(code, modifiers)));
        }
        frame(&mut state, width, height);
        let rows = state.table(state.pane).rows.len();
        prop_assert!(state.scroll <= rows, "some of {rows} rows: {}", state.scroll);
        prop_assert!(!once::text(&state).is_empty());
    }

    #[test]
    fn scrolling_shows_every_row_and_ends_at_the_last(height in 7_u16..12, downs in 0_usize..30) {
        let mut state = state();
        type_in(&mut state, "5");
        frame(&mut state, 80, height);
        for _ in 0..downs {
            let _ = press(&mut state, KeyCode::Down);
        }
        let rows = first_column(&state);
        let visible = usize::from(height) - 6;
        let first = downs.min(rows.len().saturating_sub(visible));
        prop_assert_eq!(state.scroll, first);
        let lines = frame(&mut state, 80, height);
        let shown = &lines[5..lines.len() - 1];
        for (line, row) in shown.iter().zip(&rows[first..]) {
            // A column is at most a third of the width.
            prop_assert!(line.starts_with(&row[..row.len().min(26)]), "{line:?} {row:?}");
        }
    }
}
