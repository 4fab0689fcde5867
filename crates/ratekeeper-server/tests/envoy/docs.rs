//! The quick start of `docs/envoy.md`, unchanged except for its ports.

use ratekeeper_testkit::{ANY_PORT, Envoy};

use crate::backend::{Backend, unused_address};
use crate::client::Client;
use crate::process::Server;

const DOCS: &str = include_str!("../../../../docs/envoy.md");

/// Returns the block of YAML that starts with this text.
pub(crate) fn block(start: &str) -> &'static str {
    let mut blocks = DOCS.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.starts_with(start)).expect("the document has it")
}

fn start_server() -> Server {
    Server::start_with(block("domain:"), &["--grpc", ANY_PORT])
}

/// Starts Envoy with the printed configuration, for a rate limit service at this port.
pub(crate) fn start(config: &str, app: &Backend, service: u16) -> Envoy {
    Envoy::start_with(|listen, admin| {
        let ports = [
            (10000, listen.port()),
            (9901, admin.port()),
            (3000, app.address().port()),
            (8081, service),
        ];
        ports.iter().fold(config.to_string(), |text, (printed, used)| {
            let printed = format!("address: 127.0.0.1, port_value: {printed}");
            assert_eq!(text.matches(&printed).count(), 1, "{printed}");
            text.replace(&printed, &format!("address: 127.0.0.1, port_value: {used}"))
        })
    })
}

fn status(envoy: &Envoy, user: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
    Client::connect(envoy.address()).request(&request).status()
}

#[test]
fn the_quick_start_limits_each_user_and_counts_as_documented() {
    let (app, server) = (Backend::says("hello"), start_server());
    let envoy = start(block("admin:"), &app, server.address().port());
    // A minute may end meanwhile, and five more are allowed in the next.
    let allowed = (0..11).take_while(|_| status(&envoy, "ann") == 200).count();
    assert!((5..=10).contains(&allowed), "{allowed}");
    assert_eq!(status(&envoy, "bob"), 200);

    let stats = envoy.stats("ratelimit");
    let ok = allowed + 1;
    assert!(stats.contains(&format!("cluster.app.ratelimit.ok: {ok}")), "{stats}");
    assert!(stats.contains("cluster.app.ratelimit.over_limit: 1"), "{stats}");
}

/// The causes of `ratelimit.error` in the document are distinguished by these counters.
#[test]
fn a_wrong_cluster_shows_in_the_documented_counters() {
    let (app, server) = (Backend::says("hello"), start_server());
    let http1 = block("admin:").replace("http2_protocol_options", "http_protocol_options");
    let envoy = start(&http1, &app, server.address().port());
    assert_eq!(status(&envoy, "ann"), 200, "fail open");
    let stats = envoy.stats("ratekeeper.upstream_cx_protocol_error");
    assert!(stats.contains("upstream_cx_protocol_error: 1"), "{stats}");

    let envoy = start(block("admin:"), &app, unused_address().port());
    assert_eq!(status(&envoy, "ann"), 200, "fail open");
    let stats = envoy.stats("app.ratelimit|upstream_cx_connect_fail");
    assert!(stats.contains("cluster.app.ratelimit.failure_mode_allowed: 1"), "{stats}");
    assert!(stats.contains("cluster.ratekeeper.upstream_cx_connect_fail: 1"), "{stats}");
}
