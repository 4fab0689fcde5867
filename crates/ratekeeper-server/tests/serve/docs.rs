//! The examples of `docs/api.md`, run in their order.

use std::process::Command;

use serde_json::Value;

use crate::process::Server;

const DOCS: &str = include_str!("../../../../docs/api.md");
/// Fields whose values depend on the time between two examples.
const TIMED: [&str; 3] = ["remaining", "reset_after_ms", "retry_after_ms"];
const IDS: [&str; 2] = ["reservation", "permit"];

/// Returns the commands of this program in the document, and what each prints.
fn examples(program: &str) -> Vec<(&'static str, &'static str)> {
    let blocks = DOCS.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let examples = blocks.flat_map(|block| block.split("$ ").skip(1));
    let examples = examples.map(|example| example.split_once('\n').expect("it prints something"));
    let examples: Vec<_> = examples.filter(|(command, _)| command.starts_with(program)).collect();
    assert!(examples.len() >= 6, "{program}");
    examples
}

/// Asserts that two responses are equal, except for times and ids.
#[track_caller]
fn assert_alike(command: &str, printed: &Value, actual: &Value) {
    let (Some(printed), Some(actual)) = (printed.as_object(), actual.as_object()) else {
        panic!("{command}: not an object");
    };
    assert!(printed.keys().eq(actual.keys()), "{command}: {actual:?}");
    for (name, value) in printed {
        match value.as_array() {
            _ if TIMED.contains(&name.as_str()) || IDS.contains(&name.as_str()) => {}
            Some(items) if items.iter().all(Value::is_object) => {
                let actual = actual[name].as_array().expect("a list");
                items.iter().zip(actual).for_each(|(a, b)| assert_alike(command, a, b));
            }
            _ => assert_eq!(value, &actual[name], "{command}: {name}"),
        }
    }
}

#[test]
fn http_examples_get_the_printed_responses() {
    let server = Server::start(&[]);
    let mut ids: Vec<(String, String)> = Vec::new();
    for (command, printed) in examples("curl") {
        let request = command.strip_prefix("curl -s http://127.0.0.1:8080").expect("an example");
        let (path, body) = request.split_once(" -d ").expect("a body");
        let body =
            ids.iter().fold(body.trim_matches('\'').to_string(), |body, (printed, actual)| {
                body.replace(printed, actual)
            });
        let body: Value = serde_json::from_str(&body).expect("JSON");
        let (status, actual) = server.post(path, body);
        let printed: Value = serde_json::from_str(printed).expect("JSON");
        assert_eq!(status, 200, "{command}: {actual}");
        assert_alike(command, &printed, &actual);
        let text = |value: &Value| value.as_str().map(str::to_string);
        ids.extend(IDS.iter().filter_map(|id| text(&printed[*id]).zip(text(&actual[*id]))));
    }
}

/// Returns the id in the output of an example: 32 characters in quotes.
fn id_in(text: &str) -> Option<&str> {
    text.split('"').find(|part| part.len() == 32)
}

/// Replaces the ids that are printed by those of this server.
fn with_ids(text: &str, ids: &[(&str, String)]) -> String {
    ids.iter().fold(text.to_string(), |text, (printed, actual)| text.replace(printed, actual))
}

#[test]
fn redis_examples_get_the_printed_replies() {
    let server = Server::start(&["--resp", "127.0.0.1:0"]);
    let port = server.resp().port().to_string();
    let mut ids: Vec<(&str, String)> = Vec::new();
    for (command, printed) in examples("redis-cli") {
        let command = with_ids(command, &ids);
        let args = command.split(' ').skip(1).map(|arg| if arg == "6380" { &port } else { arg });
        // As in a terminal.
        let output = Command::new("redis-cli").arg("--no-raw").args(args).output().unwrap();
        let output = String::from_utf8(output.stdout).expect("text");
        ids.extend(id_in(printed).zip(id_in(&output).map(str::to_string)));
        let printed = with_ids(printed.trim_end(), &ids);
        match printed.strip_suffix('…') {
            Some(start) => assert!(output.starts_with(start), "{command}: {output}"),
            None => assert_eq!(output.trim_end(), printed, "{command}"),
        }
    }
}
