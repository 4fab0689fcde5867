//! Real proxies that ask before they pass a request on, with the configurations of
//! `docs/forward-auth.md`.

use ratekeeper_testkit::http1 as client;
use ratekeeper_testkit::upstream as backend;

use std::net::{Ipv4Addr, SocketAddr};

use backend::Backend;
use client::{Answer, Client, Wire};
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

/// The configuration in this language, with the addresses of the test.
fn documented(language: &str, server: &Server, upstream: &Backend) -> String {
    let (_, rest) = DOCUMENT.split_once(&format!("```{language}\n")).expect("it is there");
    let (block, _) = rest.split_once("```").expect("it ends");
    block
        .replace("127.0.0.1:8080", &server.http.to_string())
        .replace("127.0.0.1:3000", &upstream.address().to_string())
}

/// A connection to the proxy from another address of this machine.
fn connect_from(client: [u8; 4], proxy: SocketAddr) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::from(client), 0)).into()).unwrap();
    socket.connect(&proxy.into()).unwrap();
    Client(Wire::new(socket.into()))
}

const ANN: [u8; 4] = [127, 0, 0, 2];
const BOB: [u8; 4] = [127, 0, 0, 3];

fn ask(proxy: SocketAddr, client: [u8; 4], line: &str, headers: &str) -> Answer {
    let request = format!("{line} HTTP/1.1\r\nHost: shop\r\n{headers}Content-Length: 0\r\n\r\n");
    connect_from(client, proxy).ask(&request)
}

/// What every proxy has to do with its configuration.
fn keeps_the_policy(proxy: SocketAddr, upstream: &Backend) {
    let post = |client, headers: &str| ask(proxy, client, "POST /checkout/now?a=b", headers);
    let passed = post(ANN, "");
    assert_eq!(passed.status(), 200, "{}", passed.body);
    assert!(passed.body.starts_with("POST /checkout/now?a=b"), "{}", passed.body);
    assert_eq!(ask(proxy, ANN, "POST /%63heckout//now", "").status(), 200);
    let before = upstream.requests();
    let refused = post(ANN, "");
    assert_eq!(refused.status(), 429);
    let told = |name: &str| refused.head.get(name).unwrap_or_default();
    assert_eq!(told("ratelimit-policy"), "\"checkout\";q=2;w=3600");
    assert!(told("ratelimit").starts_with("\"checkout\";r=0;t="), "{}", told("ratelimit"));
    assert!((1..=7200).contains(&told("retry-after").parse().unwrap()));
    assert_eq!(upstream.requests(), before, "what is refused does not reach the upstream");
    // Others, and other requests, are not touched by that.
    assert_eq!(post(BOB, "").status(), 200);
    assert_eq!(ask(proxy, ANN, "GET /checkout/now", "").status(), 200);
    assert_eq!(ask(proxy, ANN, "POST /", "").status(), 200);
}

/// A caller who is refused is refused whatever it writes.
fn believes_no_caller(proxy: SocketAddr) {
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
        let status = ask(proxy, ANN, "POST /checkout/now", headers).status();
        assert!([429, 403].contains(&status), "{headers}: {status}");
    }
}

#[test]
fn nginx_asks_before_it_passes_a_request_on() {
    let (server, upstream) = (Server::start(), Backend::echo());
    let nginx = Nginx::start(&documented("nginx", &server, &upstream));
    let address = ([127, 0, 0, 1], nginx.port()).into();
    keeps_the_policy(address, &upstream);
    believes_no_caller(address);
    assert!(ask(address, BOB, "POST /checkout/", "").head.get("ratelimit").is_some());
}

#[test]
fn traefik_asks_before_it_passes_a_request_on() {
    let (server, upstream) = (Server::start(), Backend::echo());
    let traefik = Traefik::start(&documented("yaml", &server, &upstream));
    let address = traefik.address();
    wait_until("there is a route", || ask(address, BOB, "GET /healthz", "").status() == 200);
    keeps_the_policy(address, &upstream);
    believes_no_caller(address);
    let told = ask(address, BOB, "POST /checkout/", "").body;
    assert!(told.contains("\nratelimit: \"checkout\";r=0"), "the upstream is told too: {told}");
}

#[test]
fn caddy_asks_before_it_passes_a_request_on() {
    let (server, upstream) = (Server::start(), Backend::echo());
    let site = documented("caddyfile", &server, &upstream);
    let caddy = Caddy::start(|address| {
        format!("http://:{} ", address.port()) + site.trim_start_matches("example.com ")
    });
    keeps_the_policy(caddy.address(), &upstream);
    believes_no_caller(caddy.address());
    let told = ask(caddy.address(), BOB, "POST /checkout/", "").body;
    assert!(told.contains("\nratelimit: \"checkout\";r=0"), "the upstream is told too: {told}");
}
