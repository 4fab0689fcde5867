//! Policies in the gateway: limits, reload, stale responses and the admin listener.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ratekeeper_testkit::wait_until;
use tempfile::TempDir;

use crate::backend::{Backend, respond};
use crate::client::{Client, Response};
use crate::process::Gateway;

/// A policy file, deleted on drop.
pub(crate) struct PolicyFile {
    _folder: TempDir,
    path: PathBuf,
}

impl PolicyFile {
    pub(crate) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = Self { path: folder.path().join("policy.yaml"), _folder: folder };
        file.write(text);
        file
    }

    /// Replaces the file atomically, as an editor or a deployment does.
    pub(crate) fn write(&self, text: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, format!("version: 1\n{text}\n")).unwrap();
        fs::rename(&new, &self.path).unwrap();
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// Starts a gateway with this policy and an admin listener in front of an upstream.
pub(crate) fn gateway(backend: &Backend, policy: &PolicyFile, args: &[&str]) -> Gateway {
    let admin = ["--admin", "127.0.0.1:0", policy.path()];
    Gateway::before(backend, &[&admin, args].concat())
}

pub(crate) fn admin(gateway: &Gateway, request: &str) -> Response {
    let log = gateway.log();
    let address = log.split("admin: http://").nth(1).and_then(|rest| rest.split('/').next());
    let address: SocketAddr = address.expect("an admin listener").parse().unwrap();
    Client::connect(address).request(&format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

pub(crate) fn statuses(client: &mut Client, request: &str, times: usize) -> Vec<u16> {
    (0..times).map(|_| client.request(request).status()).collect()
}

#[test]
fn requests_above_the_limit_are_refused_and_not_forwarded() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new("limits: [{ name: api, per: ip, rate: 3/hour burst 3 }]");
    let gateway = gateway(&backend, &policy, &["--access-log", "json"]);
    let mut client = gateway.connect();
    assert_eq!(client.get("/").head.get("ratelimit").as_deref(), Some("\"api\";r=2;t=1200"));
    assert_eq!(statuses(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 3), [200, 200, 429]);
    let refused = client.get("/");
    assert_eq!(refused.head.get("retry-after").as_deref(), Some("1200"));
    assert!(refused.body.contains("RATE_LIMITED"), "{}", refused.body);
    assert!(refused.head.get("x-request-id").is_some());
    assert_eq!(backend.requests(), 3);
    let metrics = admin(&gateway, "GET /metrics").body;
    assert!(
        metrics.contains("ratekeeper_decisions_total{limit=\"api\",outcome=\"denied\"} 2"),
        "{metrics}"
    );
    assert!(metrics.contains("ratekeeper_gateway_upstream_up{upstream=\"127.0.0.1:"), "{metrics}");
    wait_until("the access log names the limit", || {
        gateway.output().matches("\"refused_by\":\"api\"").count() == 2
    });
}

#[test]
fn an_invalid_policy_is_rejected_at_start_with_every_error() {
    let policy = PolicyFile::new("limits: [{ name: api, per: ipp, rate: 3/fortnight }]");
    let tried = Gateway::builder().args(["--upstream", "http://127.0.0.1:1", policy.path()]).run();
    let error = String::from_utf8_lossy(&tried.stderr);
    assert_eq!(tried.status.code(), Some(2), "{error}");
    assert!(
        error.contains("policy.yaml:2:28: unknown identity \"ipp\"; did you mean \"ip\"?"),
        "{error}"
    );
    assert!(error.contains("policy.yaml:2:41: unknown period \"fortnight\""), "{error}");
}

#[test]
fn obfuscated_paths_and_forged_addresses_do_not_evade_a_limit() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new(
        "
identify: { ip: { client_ip: { trusted_proxies: [ 10.0.0.0/8 ] } } }
limits: [{ name: checkout, match: { path: /checkout }, per: ip, rate: 1/hour burst 1 }]",
    );
    let gateway = gateway(&backend, &policy, &[]);
    assert_eq!(gateway.connect().get("/checkout").status(), 200);
    let obfuscated = [
        "//checkout",
        "/%63heckout",
        "/a/../checkout",
        "/checkout/",
        "/./checkout",
        "/checkout?x=1",
        "/checkout;v=1",
        "/%2e%2e/checkout",
        "/checkout//",
        "/a/%2e%2e/%63heckout",
        "http://x/checkout",
    ];
    for path in obfuscated {
        assert_eq!(gateway.connect().get(path).status(), 429, "{path}");
    }
    for forged in ["X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "X-Real-IP: 1.2.3.4"] {
        let request = format!("GET /checkout HTTP/1.1\r\nHost: a\r\n{forged}\r\n\r\n");
        assert_eq!(gateway.connect().request(&request).status(), 429, "{forged}");
    }
    assert_eq!(gateway.connect().get("/elsewhere").status(), 200);
}

#[test]
fn the_client_ip_is_taken_from_a_trusted_proxy() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new("limits: [{ name: a, per: ip, rate: 1/hour burst 1 }]");
    let gateway = gateway(&backend, &policy, &["--trusted-proxy", "127.0.0.0/8"]);
    let of = |client: &str| {
        let header = format!("X-Forwarded-For: 6.6.6.6, {client}");
        gateway
            .connect()
            .request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n"))
            .status()
    };
    assert_eq!([of("192.0.2.1"), of("192.0.2.1"), of("192.0.2.2")], [200, 429, 200]);
    // IPv6 clients are counted by their /64 network.
    assert_eq!([of("2001:db8::1"), of("2001:db8::2"), of("2001:db8:0:1::1")], [200, 429, 200]);
}

#[test]
fn a_valid_policy_is_reloaded_and_an_invalid_one_is_reported_and_rejected() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new("limits: [{ name: api, rate: 2/hour }]");
    let gateway = gateway(&backend, &policy, &[]);
    let mut client = gateway.connect();
    assert_eq!(client.get("/").status(), 200);

    policy.write("limits: [{ name: api, rat: 3/hour }]");
    gateway.wait_for_log("policy not reloaded");
    assert!(gateway.log().contains("did you mean \"rate\"?"));
    let state = admin(&gateway, "GET /v1/policy").body;
    assert!(state.contains("did you mean") && state.contains("\"version\": 1"), "{state}");
    let metrics = admin(&gateway, "GET /metrics").body;
    assert!(metrics.contains("ratekeeper_policy_ok 0"), "{metrics}");
    assert!(metrics.contains("ratekeeper_policy_failures_total 1"), "{metrics}");
    assert_eq!(admin(&gateway, "POST /v1/policy/reload").status(), 422);
    assert_eq!([client.get("/").status(), client.get("/").status()], [200, 429]);

    policy.write("limits: [{ name: api, rate: 3/hour }]");
    gateway.wait_for_log("version=2");
    assert_eq!([client.get("/").status(), client.get("/").status()], [200, 429], "usage is kept");
    let metrics = admin(&gateway, "GET /metrics").body;
    assert!(metrics.contains("ratekeeper_policy_ok 1"), "{metrics}");

    gateway.signal("-HUP");
    gateway.wait_for_log("version=3");
}

#[test]
fn a_reload_under_load_loses_no_request_and_no_count() {
    const QUOTA: u64 = 50_000_000;
    let text = |other: u32| {
        format!(
            "limits: [{{ name: all, rate: {QUOTA}/day, algorithm: sliding_counter }}, {{ name: l{other}, rate: {}/s }}]",
            60_000_000 + other
        )
    };
    let backend = Backend::says("hello");
    let policy = PolicyFile::new(&text(0));
    let gateway = gateway(&backend, &policy, &[]);
    let (sent, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = gateway.connect();
                while !is_done.load(Ordering::Relaxed) {
                    assert_eq!(client.get("/").status(), 200);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for version in 2..=20 {
            policy.write(&text(version));
            assert_eq!(admin(&gateway, "POST /v1/policy/reload").status(), 200);
            let before = sent.load(Ordering::Relaxed);
            wait_until("requests go on", || sent.load(Ordering::Relaxed) > before + 20);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let sent = sent.into_inner();
    assert_eq!(backend.requests() as u64, sent);
    let left = gateway.connect().get("/").head.get("ratelimit").unwrap();
    assert!(left.starts_with(&format!("\"all\";r={};", QUOTA - sent - 1)), "{left} after {sent}");
    let policy_state = admin(&gateway, "GET /v1/policy").body;
    assert!(policy_state.contains(&format!("\"allowed\": {}", sent + 1)), "{policy_state}");
}

#[test]
fn serve_stale_serves_a_cached_response_instead_of_a_refusal() {
    let backend = Backend::start(|head, wire| {
        let (control, text) = match head.line.contains("/private") {
            true => ("private, max-age=60", "mine"),
            false => ("public, max-age=60", "news"),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nContent-Length: 4\r\n\r\n");
        wire.try_send(head + text).is_ok()
    });
    let policy = PolicyFile::new(
        "limits: [{ name: news, rate: 2/hour burst 2, when_limited: { serve_stale: 10m } }]",
    );
    let gateway = gateway(&backend, &policy, &[]);
    let mut client = gateway.connect();
    assert_eq!((client.get("/news").status(), client.get("/private").status()), (200, 200));
    let stale = client.get("/news");
    assert_eq!((stale.status(), stale.body.as_str()), (200, "news"));
    assert_eq!(stale.head.get("age").as_deref(), Some("0"));
    let left = stale.head.get("ratelimit").unwrap();
    assert!(left.starts_with("\"news\";r=0;"), "the present quota, not the cached one: {left}");
    let status = stale.head.get("cache-status");
    assert_eq!(status.as_deref(), Some("ratekeeper; hit; detail=\"limited by news\""));
    assert_eq!(client.get("/private").status(), 429, "private responses are not cached");
    assert_eq!(client.get("/other").status(), 429, "not cached");
    let post = client.request("POST /news HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(post.status(), 429, "only GET is served stale");
    assert_eq!(backend.requests(), 2);
}

#[test]
fn a_request_is_in_flight_until_its_response_is_sent() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let backend = Backend::start(move |head, wire| {
        if head.line.contains("/slow") {
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbe";
            return wire.try_send(head).is_ok()
                && wait.lock().unwrap().recv().is_ok()
                && wire.try_send("fore").is_ok();
        }
        respond(wire, "hello")
    });
    let policy = PolicyFile::new("limits: [{ name: flight, concurrency: 1 }]");
    let gateway = gateway(&backend, &policy, &[]);
    let mut slow = gateway.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = slow.0.head();
    let refused = gateway.connect().get("/");
    assert_eq!(refused.status(), 429);
    assert!(refused.body.contains("TOO_MANY_IN_FLIGHT"), "{}", refused.body);
    go.send(()).unwrap();
    assert_eq!(slow.0.try_body(&head).unwrap(), b"before");
    wait_until("it is no longer in flight", || gateway.connect().get("/").status() == 200);
}

#[test]
fn the_admin_listener_reports_health_and_readiness() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new("limits: []");
    let gateway = gateway(&backend, &policy, &[]);
    assert_eq!(admin(&gateway, "GET /healthz").body, "ok\n");
    let ready = admin(&gateway, "GET /readyz");
    assert_eq!(ready.status(), 200);
    assert!(ready.body.contains("\"store\": \"memory\""), "{}", ready.body);
    let unknown = admin(&gateway, "GET /nothing");
    assert_eq!(unknown.status(), 404);
    assert!(unknown.body.contains("/metrics"));
    assert_eq!(admin(&gateway, "DELETE /v1/policy").status(), 405);
}

#[test]
fn each_limit_follows_its_failure_mode_without_the_store() {
    let backend = Backend::says("hello");
    let policy = PolicyFile::new(
        "
store: { url: 'redis://127.0.0.1:1' }
limits:
  - { name: local, match: { path: /local }, rate: 2/hour }
  - { name: deny, match: { path: /deny }, rate: 2/hour, on_store_failure: closed }",
    );
    let gateway = gateway(&backend, &policy, &[]);
    let mut client = gateway.connect();
    let mut status = |path: &str| client.get(path).status();
    assert_eq!(
        [status("/local"), status("/local"), status("/local"), status("/deny")],
        [200, 200, 429, 429]
    );
    gateway.wait_for_log("the store is down");
    assert!(admin(&gateway, "GET /readyz").body.contains("\"store\": \"down\""));
    assert!(admin(&gateway, "GET /metrics").body.contains("ratekeeper_store_up 0"));
}

#[test]
fn gateways_on_one_store_share_every_limit() {
    let redis = ratekeeper_testkit::RedisServer::start();
    let backend = Backend::says("hello");
    let policy = PolicyFile::new(&format!(
        "store: {{ url: '{}', deadline: 2s }}\nlimits: [{{ name: a, per: ip, rate: 50/hour burst 50 }}]",
        redis.url()
    ));
    let gateways = [gateway(&backend, &policy, &[]), gateway(&backend, &policy, &[])];
    let served: usize = thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|i| {
                let mut client = gateways[i % 2].connect();
                let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
                scope.spawn(move || statuses(&mut client, request, 20))
            })
            .collect();
        let statuses = callers.into_iter().flat_map(|caller| caller.join().unwrap());
        statuses.filter(|status| *status == 200).count()
    });
    assert_eq!((served, backend.requests()), (50, 50));
}

#[test]
fn a_refusal_has_one_id_in_the_header_the_body_the_access_log_and_the_refusal_log() {
    let backend = Backend::start(|_, wire| respond(wire, "ok"));
    let policy = PolicyFile::new(
        "limits:\n  - { name: api, per: ip, rate: 2/hour }\n  - { name: new, per: ip, rate: 1/hour, mode: shadow }",
    );
    let args = ["--request-id-header", "x-trace", "--access-log", "json"];
    let gateway = gateway(&backend, &policy, &args);
    let mut client = Client::connect(gateway.address());
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(statuses(&mut client, get, 2), [200, 200]);
    let refused = client.request(get);
    let id = refused.head.get("x-trace").unwrap();
    assert_eq!((refused.status(), refused.head.get("x-request-id")), (429, None));
    assert!(refused.body.contains(&format!("\"request_id\":\"{id}\"")), "{}", refused.body);
    let found = admin(&gateway, &format!("GET /v1/refusals/{id}"));
    assert!(found.body.contains("\"protocol\": \"gateway\""), "{}", found.body);
    let shadow = admin(&gateway, "GET /v1/refusals?outcome=shadow_denied&limit=new");
    assert!(shadow.body.contains("\"matching\": 1"), "{}", shadow.body);
    wait_until("the access log is written", || gateway.output().lines().count() == 3);
    let lines = gateway.output();
    let of_shadow = lines.lines().filter(|line| line.contains("\"shadow_refused_by\":[\"new\"]"));
    assert_eq!(of_shadow.count(), 1, "{lines}");
    assert!(lines.contains(&format!("\"refused_by\":\"api\",\"id\":\"{id}\"")), "{lines}");
}
