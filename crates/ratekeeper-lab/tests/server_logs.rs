//! Logs that real servers write in this test.

use std::io::Cursor;
use std::net::UdpSocket;
use std::sync::Arc;

use ratekeeper_lab::replay::{Logs, ReadOptions, ReplayOptions, replay};
use ratekeeper_policy::Policy;
use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::{Caddy, Envoy, HaProxy, Nginx, Traefik, wait_until};

const REQUESTS: u64 = 12;

/// Sends requests, waits until all are logged, and replays the log.
fn check(address: std::net::SocketAddr, format: &str, mut log: impl FnMut() -> String) {
    let mut client = Client::connect(address);
    // Traefik accepts connections before it has routes, and logs no request without one.
    wait_until("requests are served", || client.get("/").status() == 200);
    for number in 0..REQUESTS {
        client.get(&format!("/items/{number}?a=b"));
    }
    let is_request = |line: &&str| line.contains("/items/");
    wait_until("the requests are logged", || {
        log().lines().filter(is_request).count() as u64 == REQUESTS
    });
    let lines: Vec<String> =
        log().lines().filter(is_request).map(|line| format!("{line}\n")).collect();
    let policy = Arc::new(Policy::one_line("5/minute per ip for GET /items/**").unwrap());
    let inputs = [("log", Cursor::new(lines.concat()))];
    let logs = Logs::open(inputs, ReadOptions::default(), &[&policy]).unwrap();
    assert_eq!(logs.formats().collect::<Vec<_>>(), [("log", format)]);
    let result = replay(logs, &policy, None, ReplayOptions::default());
    assert_eq!((result.read.requests, result.read.skipped), (REQUESTS, 0), "{}", lines[0]);
    assert_eq!((result.policies[0].admitted, result.policies[0].refused), (5, 7));
    if format != "envoy" {
        assert_eq!(result.policies[0].limits[0].most_refused[0].key, "ip=127.0.0.1");
    }
}

#[test]
fn a_log_of_nginx_is_replayed() {
    let nginx = Nginx::start("access_log access.log combined; location / { return 200 'ok'; }");
    check(nginx.address(), "combined", || nginx.access_log());
}

#[test]
fn a_log_of_caddy_is_replayed() {
    let caddy = Caddy::start(|address| format!("http://{address} {{\nlog\nrespond ok\n}}\n"));
    check(caddy.address(), "caddy", || caddy.log());
}

#[test]
fn a_log_of_traefik_is_replayed() {
    let upstream = Nginx::start("location / { return 200 'ok'; }");
    let url = format!("http://{}", upstream.address());
    let traefik = Traefik::start(&format!(
        "http: {{ routers: {{ all: {{ rule: 'PathPrefix(`/`)', service: web }} }}, \
         services: {{ web: {{ loadBalancer: {{ servers: [{{ url: '{url}' }}] }} }} }} }}"
    ));
    check(traefik.address(), "traefik", || traefik.log());
}

const HTTPLOG: &str = "option httplog";
const OK: &str = "http-request return status 200 content-type text/plain string ok";

#[test]
fn a_log_of_haproxy_is_replayed() {
    let haproxy = HaProxy::start(&["log stdout format raw local0", HTTPLOG, OK]);
    check(haproxy.address(), "haproxy", || haproxy.log());
}

#[test]
fn a_log_of_haproxy_by_syslog_is_replayed() {
    for format in ["rfc3164", "rfc5424"] {
        let syslog = UdpSocket::bind("127.0.0.1:0").unwrap();
        syslog.set_nonblocking(true).unwrap();
        let log = format!("log {} format {format} local0", syslog.local_addr().unwrap());
        let haproxy = HaProxy::start(&[&log, HTTPLOG, OK]);
        let (mut lines, mut datagram) = (String::new(), [0; 4096]);
        check(haproxy.address(), "haproxy", || {
            while let Ok(length) = syslog.recv(&mut datagram) {
                lines.push_str(&String::from_utf8_lossy(&datagram[..length]));
            }
            lines.clone()
        });
    }
}

/// Starts Envoy with an access log to standard output, and a direct response to every request.
fn envoy(log: &str) -> Envoy {
    Envoy::start_with(|address, admin| {
        let socket = |address: std::net::SocketAddr| {
            let (ip, port) = (address.ip(), address.port());
            format!("{{ socket_address: {{ address: {ip}, port_value: {port} }} }}")
        };
        let types = "type.googleapis.com/envoy.extensions";
        format!(
            r#"admin: {{ address: {admin} }}
static_resources:
  listeners:
    - address: {address}
      filter_chains:
        - filters:
            - name: http
              typed_config:
                "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: main
                access_log:
                  - name: log
                    typed_config:
                      "@type": {types}.access_loggers.stream.v3.StdoutAccessLog
                      {log}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 200 }} }}]
                http_filters:
                  - name: router
                    typed_config: {{ "@type": {types}.filters.http.router.v3.Router }}
"#,
            admin = socket(admin),
            address = socket(address),
        )
    })
}

#[test]
fn a_log_of_envoy_is_replayed() {
    let text = envoy("");
    check(text.address(), "envoy", || text.log());
}

#[test]
fn a_log_of_envoy_in_json_is_replayed() {
    let json = envoy(
        "log_format: { json_format: { start_time: '%START_TIME%', method: '%REQ(:METHOD)%', path: '%REQ(:PATH)%', \
         authority: '%REQ(:AUTHORITY)%', response_code: '%RESPONSE_CODE%', response_flags: '%RESPONSE_FLAGS%', \
         duration: '%DURATION%', downstream_remote_address: '%DOWNSTREAM_REMOTE_ADDRESS%' } }",
    );
    check(json.address(), "envoy-json", || json.log());
}
