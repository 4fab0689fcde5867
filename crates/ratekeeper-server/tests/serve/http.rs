//! The HTTP API.

use std::io::{Read, Write};

use ratekeeper_testkit::{RedisServer, wait_until};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::process::{Server, policy, post};

#[test]
fn a_check_is_200_or_429_with_the_same_body_and_headers() {
    let server = Server::start(&[]);
    let body = r#"{"key":"user:42","rate":"2/hour burst 2","algorithm":"token_bucket","cost":1}"#;
    let mut client = server.connect();
    let responses: Vec<_> = (0..3).map(|_| post(&mut client, "/v1/check", body)).collect();
    let statuses: Vec<_> = responses.iter().map(Response::status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let fields = |response: &Response| {
        let body: Value = serde_json::from_str(&response.body).unwrap();
        body.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let mut of_denied = fields(&responses[2]);
    of_denied.retain(|name| name != "request_id");
    assert_eq!(fields(&responses[0]), of_denied);
    let denied: Value = serde_json::from_str(&responses[2].body).unwrap();
    assert_eq!((&denied["allowed"], &denied["limit"]), (&json!(false), &json!(2)));
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 1_700_000, "{denied}");
    assert_eq!(responses[0].head.get("ratelimit-policy").as_deref(), Some("\"api\";q=2;w=3600"));
    assert_eq!(responses[2].head.get("retry-after").as_deref(), Some("1800"));
}

#[test]
fn without_a_policy_a_described_request_is_an_error() {
    let server = Server::start(&[]);
    let request = json!({"request": {"method": "GET", "path": "/", "peer": "192.0.2.1"}});
    for path in ["/v1/check", "/v1/peek", "/v1/reset"] {
        let (status, body) = server.post(path, request.clone());
        assert_eq!(status, 400, "{path}: {body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains("ratekeeper serve policy.yaml"), "{message}");
    }
    let auth =
        "GET /v1/auth HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\n\r\n";
    let response = server.connect().request(auth);
    assert_eq!(response.status(), 500);
    assert!(response.body.contains("\"code\":\"NO_POLICY\""), "{}", response.body);
}

#[test]
fn a_decision_without_a_rate_says_why() {
    let file = policy(
        "limits:
  - { name: a, match: { path: /shadow }, rate: 5/hour, mode: shadow }
  - { name: b, match: { path: /flight }, concurrency: 5 }",
    );
    let server = Server::start(&[file.path().to_str().unwrap()]);
    for (path, reason) in [
        ("/shadow", "only limits in shadow mode apply"),
        ("/flight", "only concurrency limits apply"),
        ("/", "no limit applies"),
    ] {
        let (status, body) =
            server.post("/v1/check", json!({"request": {"method": "GET", "path": path}}));
        assert_eq!((status, &body["reason"]), (200, &json!(reason)), "{path}");
    }
}

#[test]
fn a_described_request_without_an_address_that_is_counted_is_an_error() {
    let file = policy(
        "identify: { user: { header: x-user } }\nlimits: [{ name: a, per: user, rate: 5/hour }]",
    );
    let server = Server::start(&[file.path().to_str().unwrap()]);
    let (status, body) =
        server.post("/v1/check", json!({"request": {"method": "GET", "path": "/"}}));
    assert_eq!(status, 400);
    assert!(body["message"].as_str().unwrap().contains("\"peer\""), "{body}");
    for request in [
        json!({"method": "GET", "path": "/", "peer": "192.0.2.1"}),
        json!({"method": "GET", "path": "/", "headers": {"x-user": "ann"}}),
    ] {
        assert_eq!(server.post("/v1/check", json!({"request": request})).0, 200);
    }
}

#[test]
fn an_overdraft_is_charged_in_full_over_http_and_resp() {
    let server = Server::start(&["--resp", "127.0.0.1:0"]);
    let check =
        json!({"key": "k", "rate": "1000/hour", "cost": 600, "overdraft": true, "name": "tokens"});
    assert_eq!(server.post("/v1/check", &check).1["remaining"], 400);
    let (status, in_debt) = server.post("/v1/check", &check);
    assert_eq!((status, &in_debt["remaining"]), (200, &json!(0)));
    let (status, denied) = server.post("/v1/check", &check);
    assert_eq!((status, &denied["exceeds_capacity"]), (429, &json!(false)));
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((700_000..=723_600).contains(&wait), "201 times 3.6 s: {wait}");
    let (status, error) =
        server.post("/v1/check", json!({"key": "k", "rate": "1/s", "overdraft": 1}));
    assert_eq!(
        (status, &error["message"]),
        (
            400,
            &json!(
                "\"overdraft\" must be true, false, or an object such as {\"max\": 500} or {\"max\": \"2x\"}"
            )
        )
    );
    let bounded = |max: Value| json!({"key": "b", "rate": "1000/hour", "cost": 5000, "overdraft": {"max": max}});
    let (status, cut) = server.post("/v1/check", bounded(json!("2x")));
    assert_eq!((status, &cut["cut"], &cut["remaining"]), (200, &json!(true), &json!(0)));
    let (_, denied) = server.post("/v1/check", bounded(json!(0)));
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((7_100_000..=7_203_600).contains(&wait), "2001 times 3.6 s: {wait}");
    assert_eq!(server.post("/v1/check", bounded(json!("two"))).0, 400);
    for (key, left) in [("1000/hour NAME tokens", 0), ("1000/hour NAME other", 1000)] {
        assert_eq!(remaining_over_resp(&server, key), left);
    }
}

#[test]
fn several_checks_are_charged_all_or_none() {
    let server = Server::start(&[]);
    let both = json!({"checks": [
        {"key": "ann", "rate": "5/hour", "name": "user"},
        {"key": "acme", "rate": "2/hour", "name": "tenant"},
    ]});
    let statuses: Vec<_> = (0..4).map(|_| server.post("/v1/check", both.clone()).0).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    let (_, left) =
        server.post("/v1/peek", json!({"key": "ann", "rate": "5/hour", "name": "user"}));
    assert_eq!(left["remaining"], 3, "the two denials charged nothing");
    let (_, denied) = server.post("/v1/check", both);
    assert_eq!(denied["limit_name"], "tenant");
    assert_eq!(denied["decisions"][0]["allowed"], true);
}

#[test]
fn usage_can_be_peeked_at_reserved_settled_and_reset() {
    let server = Server::start(&[]);
    let key = |cost: u64| json!({"key": "k", "rate": "100/hour burst 100", "cost": cost});
    assert_eq!(server.post("/v1/check", key(60)).1["remaining"], 40);
    for _ in 0..2 {
        let (status, peeked) = server.post("/v1/peek", key(60));
        assert_eq!((status, &peeked["allowed"]), (200, &json!(false)));
        assert_eq!(peeked["remaining"], 40, "nothing was charged");
    }
    let (status, reserved) = server.post("/v1/reserve", key(40));
    assert_eq!((status, &reserved["remaining"]), (200, &json!(0)));
    let settle = json!({"reservation": reserved["reservation"], "cost": 10});
    assert_eq!(server.post("/v1/settle", settle.clone()).1["remaining"], 30);
    assert_eq!(server.post("/v1/settle", settle).0, 410, "only once");
    assert_eq!(server.post("/v1/reset", json!({"key": "k", "rate": "100/hour burst 100"})).0, 200);
    assert_eq!(server.post("/v1/peek", key(1)).1["remaining"], 100);
}

#[test]
fn permits_are_held_until_they_are_released_or_expire() {
    let server = Server::start(&[]);
    let acquire = json!({"key": "exports", "max": 1, "valid_ms": 3_600_000});
    let (_, held) = server.post("/v1/acquire", acquire.clone());
    assert_eq!(server.post("/v1/acquire", acquire.clone()).0, 429);
    let release = json!({"permit": held["permit"]});
    assert_eq!(server.post("/v1/release", release.clone()).0, 200);
    assert_eq!(server.post("/v1/release", release).0, 410);
    let short = json!({"key": "exports", "max": 1, "valid_ms": 1});
    assert_eq!(server.post("/v1/acquire", short).0, 200);
    wait_until("the permit has expired", || server.post("/v1/acquire", acquire.clone()).0 == 200);
}

#[test]
fn the_policy_decides_about_a_described_request() {
    let file = policy(
        "
identify: { user: { header: x-user, missing: deny } }
exempt: [ { path: /healthz } ]
limits: [{ name: checkout, match: { path: /checkout }, per: user, rate: 1/hour }]",
    );
    let server = Server::start(&[file.path().to_str().unwrap()]);
    let check = |path: &str, user: &str| {
        let request =
            json!({"request": {"method": "POST", "path": path, "headers": {"X-User": user}}});
        server.post("/v1/check", request)
    };
    assert_eq!(check("/checkout", "ann").0, 200);
    let (status, denied) = check("//checkout/", "ann");
    assert_eq!((status, &denied["limit_name"]), (429, &json!("checkout")));
    assert_eq!(check("/checkout", "bob").0, 200);
    assert_eq!(check("/checkout", "").0, 401);
    assert_eq!(check("/healthz", "").0, 200);
}

#[test]
fn a_described_request_can_be_peeked_at_and_its_limits_reset() {
    let file = policy(
        "
identify: { user: { header: x-user, missing: deny } }
exempt: [ { path: /healthz } ]
limits:
  - { name: checkout, match: { path: /checkout }, per: user, rate: 1/hour }
  - { name: all, per: user, rate: 5/hour }
  - { name: busy, per: user, concurrency: 5 }",
    );
    let server = Server::start(&[file.path().to_str().unwrap()]);
    let send = |api_path: &str, path: &str, user: &str| {
        server.post(api_path, json!({"request": {"path": path, "headers": {"X-User": user}}}))
    };
    let (status, peeked) = send("/v1/peek", "/checkout", "ann");
    assert_eq!((status, &peeked["allowed"]), (200, &json!(true)));
    assert_eq!((&peeked["limit_name"], &peeked["remaining"]), (&json!("checkout"), &json!(1)));
    assert_eq!(peeked["decisions"].as_array().unwrap().len(), 2);
    assert_eq!(send("/v1/check", "/checkout", "ann").0, 200, "the peek charged nothing");
    assert_eq!(send("/v1/peek", "/checkout", "ann").1["allowed"], false);
    assert_eq!(send("/v1/peek", "/", "ann").1["remaining"], 4);
    assert_eq!(send("/v1/peek", "/healthz", "").1["reason"], "exempt");
    assert_eq!(send("/v1/peek", "/", "").1["allowed"], false);

    let (status, reset) = send("/v1/reset", "/checkout", "ann");
    assert_eq!((status, &reset), (200, &json!({"reset": true, "limits": ["checkout", "all"]})));
    assert_eq!(send("/v1/check", "/checkout", "ann").0, 200);
    assert_eq!(send("/v1/reset", "/healthz", "").1["reset"], false);
}

#[test]
fn an_invalid_request_is_rejected_with_what_would_work() {
    let server = Server::start(&[]);
    let (status, body) = server.post("/v1/check", json!({"key": "k", "rte": "1/s"}));
    assert_eq!(status, 400);
    assert!(body["message"].as_str().unwrap().contains("did you mean \"rate\"?"), "{body}");
    assert_eq!(server.post("/v1/chek", json!({})).0, 404);
    assert_eq!(server.connect().get("/v1/check").status(), 405);
    let large = format!("{{\"key\":\"{}\"}}", "x".repeat(100_000));
    assert_eq!(post(&mut server.connect(), "/v1/check", &large).status(), 413);
}

#[test]
fn without_the_store_decisions_are_marked_degraded() {
    let redis = RedisServer::start();
    let file = policy(&format!("store: {{ url: '{}' , deadline: 1s }}\nlimits: []", redis.url()));
    let server = Server::start(&[file.path().to_str().unwrap()]);
    let check = json!({"key": "k", "rate": "100/hour"});
    wait_until("the store decides", || {
        server.post("/v1/check", check.clone()).1["degraded"] == false
    });
    redis.kill();
    wait_until("a decision without the store", || {
        server.post("/v1/check", check.clone()).1["degraded"] == true
    });
    wait_until("the store is reported as down", || {
        Client::connect(server.admin()).get("/readyz").body.contains("\"down\"")
    });
}

#[test]
fn a_denial_without_the_store_is_marked_degraded() {
    let file = policy(
        "store: { url: 'redis://127.0.0.1:1', deadline: 100ms }
limits: [{ name: all, rate: 1/hour }]",
    );
    let server = Server::start(&[file.path().to_str().unwrap()]);
    let check = || server.post("/v1/check", json!({"request": {"path": "/"}}));
    wait_until("a denial", || check().0 == 429);
    assert_eq!(check().1["degraded"], true);
}

#[test]
fn the_id_of_a_permit_is_not_that_of_a_reservation() {
    let server = Server::start(&[]);
    let acquire = json!({"key": "k", "max": 1, "name": "exports"});
    let permit = server.post("/v1/acquire", acquire.clone()).1["permit"].clone();
    assert_eq!(server.post("/v1/settle", json!({"reservation": permit, "cost": 0})).0, 410);
    assert_eq!(server.post("/v1/acquire", acquire).0, 429, "the permit is still held");
    let reserve = json!({"key": "k", "rate": "5/hour burst 5", "cost": 3});
    let id = server.post("/v1/reserve", reserve).1["reservation"].clone();
    assert_eq!(server.post("/v1/release", json!({"permit": id})).0, 410);
    assert_eq!(server.post("/v1/settle", json!({"reservation": id, "cost": 0})).0, 200);
    let bounded = json!({"key": "k", "rate": "5/s", "overdraft": {"max": 5}});
    let (status, error) = server.post("/v1/reserve", bounded);
    assert!(status == 400 && error["message"].to_string().contains("charged in full"), "{error}");
    let unnamed = json!({"key": "k", "max": 1, "name": "x".repeat(1_000)});
    assert_eq!(server.post("/v1/acquire", unnamed).0, 400);
}

#[test]
fn forward_auth_denies_a_request_that_the_proxy_does_not_describe() {
    let tokens = crate::process::file("alpha\n");
    let policy = policy("limits: [{ name: a, rate: 100/hour }]");
    let args = ["--tokens", tokens.path().to_str().unwrap(), policy.path().to_str().unwrap()];
    let server = Server::start(&args);
    let authorize = |headers: &str| {
        let head = format!("GET /v1/auth HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        server.connect().request(&head)
    };
    let token = "X-Ratekeeper-Token: alpha\r\n";
    let with_token = |headers: &str| authorize(&format!("{token}{headers}"));
    assert_eq!(with_token("X-Original-URI: /\r\nX-Original-Method: GET\r\n").status(), 200);
    for missing in ["", "X-Original-URI: /\r\n", "X-Forwarded-Method: GET\r\n"] {
        let denied = with_token(missing);
        assert_eq!(denied.status(), 403, "{missing}");
        assert!(denied.body.contains("INCOMPLETE"), "{}", denied.body);
    }
    let request = "X-Original-URI: /\r\nX-Original-Method: GET\r\n";
    let head = format!("GET /v1/auth?deny=404 HTTP/1.1\r\nHost: a\r\n{token}{request}\r\n");
    let response = server.connect().request(&head);
    assert_eq!(response.status(), 400);
    assert!(response.body.contains("use 401, 403 or 429"), "{}", response.body);
    let by_client =
        "Authorization: Bearer of-the-client\r\nX-Original-URI: /\r\nX-Original-Method: GET\r\n";
    assert_eq!(with_token(by_client).status(), 200);
    assert_eq!(authorize(by_client).status(), 401);
}

#[test]
fn the_health_check_of_envoyproxy_ratelimit_is_served() {
    assert_eq!(Server::start(&[]).connect().get("/healthcheck").status(), 200);
}

/// Returns what remains of this limit for the key `k`, over the Redis protocol.
fn remaining_over_resp(server: &Server, limit: &str) -> u64 {
    let mut stream = std::net::TcpStream::connect(server.resp()).unwrap();
    stream.write_all(format!("RK.PEEK k {limit}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (_, rest) = reply.split_once("remaining\r\n:").unwrap_or_else(|| panic!("{reply}"));
    rest.lines().next().unwrap().parse().unwrap()
}

#[test]
fn usage_is_shared_by_all_protocols() {
    let redis = RedisServer::start();
    let store = format!("store: {{ url: '{}', deadline: 5s }}\nlimits: []", redis.url());
    let in_redis = policy(&store);
    for file in [&[][..], &[in_redis.path().to_str().unwrap()]] {
        let server = Server::start(&[&["--resp", "127.0.0.1:0"], file].concat());
        for (rate, resp) in [
            (json!({"rate": "10/hour"}), "\"10/hour burst 10\""),
            (
                json!({"rate": "10/hour", "algorithm": "fixed_window"}),
                "10/hour ALGORITHM fixed_window",
            ),
            (json!({"rate": "10/hour", "name": "exports"}), "10/hour NAME exports"),
        ] {
            let mut check = rate;
            check["key"] = json!("k");
            check["cost"] = json!(3);
            assert_eq!(remaining_over_resp(&server, resp), 10, "{check}: not charged yet");
            assert_eq!(server.post("/v1/check", &check).1["remaining"], 7);
            assert_eq!(remaining_over_resp(&server, resp), 7, "{check}");
        }
    }
}
