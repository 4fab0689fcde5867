//! The document at `/openapi.json` describes the HTTP API as it is served.

use ratekeeper_testkit::http1 as client;
#[path = "envoy/process.rs"]
#[allow(dead_code, reason = "the tests for Envoy use more of it")]
mod process;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use client::Client;
use process::Server;
use serde_json::{Value, json};

const FILE: &str = "
domain: test
descriptors: [{ key: user, rate_limit: { name: users, unit: year, requests_per_unit: 1 } }]
";

fn document(server: &Server) -> Value {
    let response = Client::connect(server.http()).get("/openapi.json");
    serde_json::from_str(&response.body).expect("JSON")
}

/// Asserts that the value matches the schema at `path` of the document.
#[track_caller]
fn check_schema(document: &Value, path: &[&str], value: &Value) {
    let escaped = path.iter().map(|step| step.replace('~', "~0").replace('/', "~1"));
    let pointer = escaped.map(|step| format!("/{step}")).collect::<String>();
    assert!(document.pointer(&pointer).is_some(), "the document has no {pointer}");
    let mut schema = document.clone();
    schema["$ref"] = format!("#{pointer}").into();
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{pointer}: {value}: {errors:?}");
}

/// Sends a request, and asserts that both it and the response match the document.
#[track_caller]
fn post(server: &Server, document: &Value, path: &str, body: &Value, status: u16) -> Value {
    let json = ["content", "application/json", "schema"];
    let request_schema = [&["paths", path, "post", "requestBody"][..], &json].concat();
    if status != 400 {
        check_schema(document, &request_schema, body);
    }
    let (actual, response) = server.post(path, body);
    assert_eq!(actual, status, "{path} {body}: {response}");
    let status = status.to_string();
    let response_schema =
        [&["paths", path, "post", "responses", status.as_str()][..], &json].concat();
    check_schema(document, &response_schema, &response);
    response
}

#[test]
fn requests_and_responses_match_the_document() {
    let policy = tempfile::NamedTempFile::new().expect("a file");
    let limits = "version: 1\nlimits: [{ name: all, rate: 100/hour }]\n";
    std::fs::write(policy.path(), limits).expect("a file");
    let server = Server::start_with(FILE, &["--grpc", "off", policy.path().to_str().unwrap()]);
    let document = document(&server);
    let post = |path: &str, body: Value, status| post(&server, &document, path, &body, status);
    let one = json!({"key": "k", "rate": "2/hour burst 2", "algorithm": "token_bucket", "cost": 2});
    let two = json!({"checks": [{"key": "a", "rate": "1/hour"}, {"key": "b", "rate": "1/hour", "name": "b"}]});
    let request = json!({"request": {"method": "GET", "path": "/a?b", "host": "h", "peer": "192.0.2.1", "headers": {"a": ["b", "c"]}}});
    let descriptors = json!({"domain": "test", "hitsAddend": 1, "descriptors": [
        {"entries": [{"key": "user", "value": "ann"}], "hitsAddend": "1", "isNegativeHits": false},
        {"entries": [{"key": "own", "value": "1"}], "limit": {"requestsPerUnit": 9, "unit": "DAY"}},
    ]});
    for (path, first, second) in [("/v1/check", 200, 429), ("/v1/peek", 200, 200)] {
        for body in [&one, &two] {
            post(path, body.clone(), first);
            post(path, body.clone(), second);
        }
        post(path, request.clone(), 200);
    }
    post("/json", descriptors.clone(), 200);
    post("/json", descriptors.clone(), 429);
    for body in [one.clone(), two, request, descriptors] {
        post("/v1/reset", body, 200);
    }
    let reserved = post("/v1/reserve", one.clone(), 200);
    post("/v1/reserve", one, 429);
    let settle = json!({"reservation": reserved["reservation"], "cost": 1});
    post("/v1/settle", settle.clone(), 200);
    post("/v1/settle", settle, 410);
    let acquire = json!({"key": "k", "max": 1, "name": "n", "valid_ms": 1000});
    let held = post("/v1/acquire", acquire.clone(), 200);
    post("/v1/acquire", acquire, 429);
    let release = json!({"permit": held["permit"]});
    post("/v1/release", release.clone(), 200);
    post("/v1/release", release, 410);
}

/// Random requests by the document, valid and invalid ones, with a fixed seed.
#[test]
fn schemathesis_finds_no_failure() {
    let policy = tempfile::NamedTempFile::new().expect("a file");
    let limits = "version: 1\nlimits: [{ name: all, rate: 100/hour }]\n";
    std::fs::write(policy.path(), limits).expect("a file");
    let server = Server::start_with(FILE, &["--grpc", "off", policy.path().to_str().unwrap()]);
    // It finds its configuration in the folder where it runs, and keeps a cache there.
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["schemathesis.toml", "hooks.py"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis").join(file);
        std::fs::copy(source, folder.path().join(file)).expect("a file");
    }
    let output = Command::new(ratekeeper_testkit::schemathesis())
        .args(["run", "--no-color", &format!("http://{}/openapi.json", server.http())])
        .current_dir(folder.path())
        .output()
        .expect("Schemathesis runs");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_denial_of_forward_auth_matches_the_document() {
    let policy = tempfile::NamedTempFile::new().expect("a file");
    let limits = "version: 1\nlimits: [{ name: all, rate: 1/day }]\n";
    std::fs::write(policy.path(), limits).expect("a file");
    let server = Server::start_with(FILE, &["--grpc", "off", policy.path().to_str().unwrap()]);
    let document = document(&server);
    let request = |query: &str, headers: &str| {
        let request = format!("GET /v1/auth{query} HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        Client::connect(server.http()).request(&request)
    };
    let described = "x-original-method: GET\r\nx-original-uri: /\r\n";
    assert_eq!(request("", described).status(), 200);
    for (query, headers, status) in [
        ("", described, 429),
        ("?deny=403", described, 403),
        ("?deny=401", described, 401),
        ("", "", 403),
        ("?deny=424", described, 400),
    ] {
        let response = request(query, headers);
        assert_eq!(response.status(), status, "{query}");
        let status = status.to_string();
        let schema = [
            "paths",
            "/v1/auth",
            "get",
            "responses",
            &status,
            "content",
            "application/json",
            "schema",
        ];
        let body = serde_json::from_str(&response.body).expect("JSON");
        check_schema(&document, &schema, &body);
    }
}

#[test]
fn null_counts_as_absent_and_a_fraction_of_zero_as_whole() {
    let server = Server::start(FILE);
    let document = document(&server);
    let check = json!({"key": "k", "rate": "9/hour", "algorithm": null, "cost": 2.0, "name": null, "overdraft": null});
    for path in ["/v1/check", "/v1/peek", "/v1/reset", "/v1/reserve"] {
        post(&server, &document, path, &check, 200);
    }
    let acquire = json!({"key": "k", "max": 424.0, "name": null, "valid_ms": null});
    assert_eq!(post(&server, &document, "/v1/acquire", &acquire, 200)["max"], 424);
    post(&server, &document, "/v1/acquire", &json!({"key": "k", "max": 424.5}), 400);
}

#[test]
fn an_unknown_field_is_rejected() {
    let server = Server::start(FILE);
    let document = document(&server);
    for (path, operations) in document["paths"].as_object().unwrap() {
        if operations.get("post").is_some() {
            post(&server, &document, path, &json!({"unknown": 1}), 400);
        }
    }
}

#[test]
fn the_document_the_help_and_the_server_have_the_same_paths() {
    let server = Server::start(FILE);
    let document = document(&server);
    let help = Client::connect(server.http()).get("/").body;
    let mut names = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        assert!(path == "/" || help.contains(path), "the help has no {path}");
        for (method, operation) in operations.as_object().unwrap() {
            let name = operation["operationId"].as_str().expect("a name");
            assert!(names.insert(name.to_string()), "{name} is used twice");
            assert!(!operation["responses"].as_object().unwrap().is_empty());
            let request = format!(
                "{} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
                method.to_uppercase()
            );
            let status = Client::connect(server.http()).request(&request).status();
            assert!(![404, 405].contains(&status), "{method} {path}: {status}");
        }
        let other = if operations.get("get").is_some() { "DELETE" } else { "GET" };
        let response = Client::connect(server.http())
            .request(&format!("{other} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"));
        // A proxy may use any method.
        if path != "/v1/auth" {
            assert_eq!(
                (response.status(), response.head.get("allow").is_some()),
                (405, true),
                "{path}"
            );
        }
    }
    let listed = help.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("GET" | "POST" | "ANY")).then(|| words.next()).flatten()
    });
    for path in listed {
        assert!(document["paths"].get(path).is_some(), "{path} is in the help only");
    }
}

#[test]
fn every_reference_resolves() {
    let server = Server::start(FILE);
    let document = document(&server);
    assert_eq!(document["openapi"], "3.1.0");
    fn walk(document: &Value, value: &Value) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|value| walk(document, value)),
            Value::Array(items) => items.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    walk(&document, &document);
}
