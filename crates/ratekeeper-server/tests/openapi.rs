//! The document at `/openapi.json`: what it says is what is served.

use ratekeeper_testkit::http1 as client;
#[path = "envoy/process.rs"]
#[allow(dead_code, reason = "the tests for Envoy use more of it")]
mod process;

use std::collections::BTreeSet;

use client::Client;
use process::Server;
use serde_json::{Value, json};

const FILE: &str = "
domain: test
descriptors: [{ key: user, rate_limit: { name: users, unit: year, requests_per_unit: 1 } }]
";

fn document(server: &Server) -> Value {
    let answer = Client::connect(server.http()).get("/openapi.json");
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Is this value as the document says, at that place in it?
#[track_caller]
fn check(document: &Value, place: &[&str], value: &Value) {
    let escaped = place.iter().map(|step| step.replace('~', "~0").replace('/', "~1"));
    let place = escaped.map(|step| format!("/{step}")).collect::<String>();
    assert!(document.pointer(&place).is_some(), "the document has no {place}");
    let mut schema = document.clone();
    schema["$ref"] = format!("#{place}").into();
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{place}: {value}: {errors:?}");
}

/// Asks a question that the document allows, and has an answer that it allows too.
#[track_caller]
fn ask(server: &Server, document: &Value, path: &str, body: &Value, status: u16) -> Value {
    let json = ["content", "application/json", "schema"];
    let of_body = [&["paths", path, "post", "requestBody"][..], &json].concat();
    if status != 400 {
        check(document, &of_body, body);
    }
    let (told, answer) = server.post(path, body);
    assert_eq!(told, status, "{path} {body}: {answer}");
    let status = status.to_string();
    let of_answer = [&["paths", path, "post", "responses", status.as_str()][..], &json].concat();
    check(document, &of_answer, &answer);
    answer
}

#[test]
fn every_answer_is_as_it_says() {
    let server = Server::start(FILE);
    let document = document(&server);
    let ask = |path: &str, body: Value, status| ask(&server, &document, path, &body, status);
    let one = json!({"key": "k", "rate": "2/hour burst 2", "algorithm": "token_bucket", "cost": 2});
    let two = json!({"checks": [{"key": "a", "rate": "1/hour"}, {"key": "b", "rate": "1/hour", "name": "b"}]});
    let request = json!({"request": {"method": "GET", "path": "/a?b", "host": "h", "peer": "192.0.2.1", "headers": {"a": ["b", "c"]}}});
    let descriptors = json!({"domain": "test", "hitsAddend": 1, "descriptors": [
        {"entries": [{"key": "user", "value": "ann"}], "hitsAddend": "1", "isNegativeHits": false},
        {"entries": [{"key": "own", "value": "1"}], "limit": {"requestsPerUnit": 9, "unit": "DAY"}},
    ]});
    for (question, first, second) in [("/v1/check", 200, 429), ("/v1/peek", 200, 200)] {
        for body in [&one, &two] {
            ask(question, body.clone(), first);
            ask(question, body.clone(), second);
        }
        ask(question, request.clone(), 200);
    }
    ask("/json", descriptors.clone(), 200);
    ask("/json", descriptors.clone(), 429);
    for body in [one.clone(), two, request, descriptors] {
        ask("/v1/reset", body, 200);
    }
    let reserved = ask("/v1/reserve", one.clone(), 200);
    ask("/v1/reserve", one, 429);
    let settle = json!({"reservation": reserved["reservation"], "cost": 1});
    ask("/v1/settle", settle.clone(), 200);
    ask("/v1/settle", settle, 410);
    let acquire = json!({"key": "k", "max": 1, "name": "n", "valid_ms": 1000});
    let held = ask("/v1/acquire", acquire.clone(), 200);
    ask("/v1/acquire", acquire, 429);
    let release = json!({"permit": held["permit"]});
    ask("/v1/release", release.clone(), 200);
    ask("/v1/release", release, 410);
}

#[test]
fn a_field_that_it_does_not_know_is_refused() {
    let server = Server::start(FILE);
    let document = document(&server);
    for (path, operations) in document["paths"].as_object().unwrap() {
        if operations.get("post").is_some() {
            ask(&server, &document, path, &json!({"unheard_of": 1}), 400);
        }
    }
}

#[test]
fn what_it_has_is_served_and_nothing_else() {
    let server = Server::start(FILE);
    let document = document(&server);
    let help = Client::connect(server.http()).get("/").body;
    let mut names = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        assert!(path == "/" || help.contains(path), "the help has no {path}");
        for (method, operation) in operations.as_object().unwrap() {
            let name = operation["operationId"].as_str().expect("a name");
            assert!(names.insert(name.to_string()), "{name} is there twice");
            assert!(!operation["responses"].as_object().unwrap().is_empty());
            let request = format!(
                "{} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
                method.to_uppercase()
            );
            let status = Client::connect(server.http()).ask(&request).status();
            assert!(![404, 405].contains(&status), "{method} {path}: {status}");
        }
        let other = if operations.get("get").is_some() { "DELETE" } else { "GET" };
        let answer = Client::connect(server.http())
            .ask(&format!("{other} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"));
        // A proxy asks by any method.
        if path != "/v1/auth" {
            assert_eq!(
                (answer.status(), answer.head.get("allow").is_some()),
                (405, true),
                "{path}"
            );
        }
    }
    let told = help.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("GET" | "POST" | "ANY")).then(|| words.next()).flatten()
    });
    for path in told {
        assert!(document["paths"].get(path).is_some(), "{path} is in the help only");
    }
}

#[test]
fn every_reference_in_it_leads_somewhere() {
    let server = Server::start(FILE);
    let document = document(&server);
    assert_eq!(document["openapi"], "3.1.0");
    fn walk(document: &Value, value: &Value) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let place = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(place).is_some(), "{reference}");
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|value| walk(document, value)),
            Value::Array(items) => items.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    walk(&document, &document);
}
