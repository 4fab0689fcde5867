//! Forward-auth with real proxies, in the configurations of `docs/forward-auth.md`.

use ratekeeper_testkit::http1 as client;
use ratekeeper_testkit::upstream as backend;

use std::net::{Ipv4Addr, SocketAddr};

use backend::Backend;
use client::{Client, Response, Wire};
use ratekeeper_testkit::{Caddy, Listener, Nginx, ServerBuilder, Traefik, wait_until};

const DOCUMENT: &str = include_str!("../../../docs/forward-auth.md");

const POLICY: &str = "version: 1
exempt: [{ path: /healthz }]
limits:
  - { name: checkout, match: { method: POST, host: shop, path: /checkout/** }, per: ip, rate: 2/hour }
";

/// A running server with the policy, killed on drop.
struct Server {
    _program: ratekeeper_testkit::Server,
    http: SocketAddr,
    _policy: tempfile::NamedTempFile,
}

impl Server {
    fn start() -> Self {
        let policy = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(policy.path(), POLICY).unwrap();
        let builder = ServerBuilder::serve(env!("CARGO_BIN_EXE_ratekeeper"));
        let program = builder.listen(&[Listener::Http]).args([policy.path()]).start();
        Self { http: program.http(), _program: program, _policy: policy }
    }
}

/// Returns the last block of the document in this language, with the addresses of the test.
fn documented(language: &str, server: &Server, upstream: &Backend) -> String {
    let (_, rest) = DOCUMENT.rsplit_once(&format!("```{language}\n")).expect("it is there");
    let (block, _) = rest.split_once("```").expect("it ends");
    block
        .replace("127.0.0.1:8080", &server.http.to_string())
        .replace("127.0.0.1:3000", &upstream.address().to_string())
}

/// Connects to the proxy from another address of this machine.
fn connect_from(client: [u8; 4], proxy: SocketAddr) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::from(client), 0)).into()).unwrap();
    socket.connect(&proxy.into()).unwrap();
    Client(Wire::new(socket.into()))
}

const ANN: [u8; 4] = [127, 0, 0, 2];
const BOB: [u8; 4] = [127, 0, 0, 3];

fn send(proxy: SocketAddr, client: [u8; 4], line: &str, headers: &str) -> Response {
    let request = format!("{line} HTTP/1.1\r\nHost: shop\r\n{headers}Content-Length: 0\r\n\r\n");
    connect_from(client, proxy).request(&request)
}

/// Asserts that requests through the proxy are decided by the policy.
fn enforces_the_policy(proxy: SocketAddr, upstream: &Backend) {
    let post = |client, headers: &str| send(proxy, client, "POST /checkout/now?a=b", headers);
    let passed = post(ANN, "");
    assert_eq!(passed.status(), 200, "{}", passed.body);
    assert!(passed.body.starts_with("POST /checkout/now?a=b"), "{}", passed.body);
    assert_eq!(send(proxy, ANN, "POST /%63heckout//now", "").status(), 200);
    let before = upstream.requests();
    let denied = post(ANN, "");
    assert_eq!(denied.status(), 429);
    let header = |name: &str| denied.head.get(name).unwrap_or_default();
    assert_eq!(header("ratelimit-policy"), "\"checkout\";q=2;w=3600");
    assert!(header("ratelimit").starts_with("\"checkout\";r=0;t="), "{}", header("ratelimit"));
    assert!((1..=7200).contains(&header("retry-after").parse().unwrap()));
    assert_eq!(upstream.requests(), before, "a denied request does not reach the upstream");
    // Other clients and other requests are not affected.
    assert_eq!(post(BOB, "").status(), 200);
    assert_eq!(send(proxy, ANN, "GET /checkout/now", "").status(), 200);
    assert_eq!(send(proxy, ANN, "POST /", "").status(), 200);
}

/// Asserts that a client that is denied cannot evade the limit by forged headers.
fn ignores_forged_headers(proxy: SocketAddr) {
    let forged = [
        "X-Forwarded-For: 192.0.2.1\r\n",
        "X-Real-Ip: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n",
        "X-Forwarded-Uri: /healthz\r\n",
        "X-Forwarded-Method: GET\r\n",
        "X-Forwarded-Host: elsewhere\r\n",
        "X-Original-URI: /healthz\r\n",
        "X-Original-Method: GET\r\n",
        "X-Original-Host: elsewhere\r\n",
    ];
    for headers in forged {
        let status = send(proxy, ANN, "POST /checkout/now", headers).status();
        assert!([429, 403].contains(&status), "{headers}: {status}");
    }
}

#[test]
fn nginx_enforces_the_policy() {
    let (server, upstream) = (Server::start(), Backend::echo());
    let nginx = Nginx::start(&documented("nginx", &server, &upstream));
    let address = ([127, 0, 0, 1], nginx.port()).into();
    enforces_the_policy(address, &upstream);
    ignores_forged_headers(address);
    assert!(send(address, BOB, "POST /checkout/", "").head.get("ratelimit").is_some());
}

#[test]
fn traefik_enforces_the_policy() {
    let (server, upstream) = (Server::start(), Backend::echo());
    let traefik = Traefik::start(&documented("yaml", &server, &upstream));
    let address = traefik.address();
    wait_until("the route is configured", || {
        send(address, BOB, "GET /healthz", "").status() == 200
    });
    enforces_the_policy(address, &upstream);
    ignores_forged_headers(address);
    let body = send(address, BOB, "POST /checkout/", "").body;
    assert!(
        body.contains("\nratelimit: \"checkout\";r=0"),
        "the upstream gets the headers: {body}"
    );
}

#[test]
fn caddy_enforces_the_policy() {
    let (server, upstream) = (Server::start(), Backend::echo());
    let site = documented("caddyfile", &server, &upstream);
    let caddy = Caddy::start(|address| {
        format!("http://:{} ", address.port()) + site.trim_start_matches("example.com ")
    });
    enforces_the_policy(caddy.address(), &upstream);
    ignores_forged_headers(caddy.address());
    let body = send(caddy.address(), BOB, "POST /checkout/", "").body;
    assert!(
        body.contains("\nratelimit: \"checkout\";r=0"),
        "the upstream gets the headers: {body}"
    );
}
