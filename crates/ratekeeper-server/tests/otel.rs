//! Traces that a server exports, as received by a collector.
#![cfg(feature = "otel")]

use ratekeeper_testkit::http1 as client;
#[path = "envoy/grpc.rs"]
#[allow(dead_code, reason = "the tests of the gRPC service use all of it")]
mod grpc;
#[path = "observe/page.rs"]
#[allow(dead_code, reason = "the tests of metrics use all of it")]
mod page;
#[path = "observe/process.rs"]
#[allow(dead_code, reason = "the tests of metrics use all of it")]
mod process;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use client::{Client, Wire};
use process::Server;
use prost::Message;
use ratekeeper_testkit::{RedisServer, wait_until};

/// The fields of OpenTelemetry's messages that these tests use.
mod otlp {
    use prost::{Message, Oneof};

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Request {
        #[prost(message, repeated, tag = "1")]
        pub(crate) resources: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(crate) resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) scopes: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub(crate) attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub(crate) spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(crate) trace: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub(crate) parent: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(crate) name: String,
        #[prost(fixed64, tag = "7")]
        pub(crate) started_ns: u64,
        #[prost(fixed64, tag = "8")]
        pub(crate) ended_ns: u64,
        #[prost(message, repeated, tag = "9")]
        pub(crate) attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Attribute {
        #[prost(string, tag = "1")]
        pub(crate) key: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) value: Option<Value>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Value {
        #[prost(oneof = "Kind", tags = "1, 2")]
        pub(crate) kind: Option<Kind>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub(crate) enum Kind {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(bool, tag = "2")]
        Flag(bool),
    }
}

/// A collector that receives `/v1/traces`.
struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Vec<otlp::ResourceSpans>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&received);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sink = Arc::clone(&sink);
                thread::spawn(move || {
                    let mut wire = Wire::new(stream);
                    while let Ok(head) = wire.try_head() {
                        assert!(head.line.starts_with("POST /v1/traces "), "{}", head.line);
                        let body = wire.try_body(&head).unwrap();
                        let request = otlp::Request::decode(&*body).unwrap();
                        sink.lock().unwrap().extend(request.resources);
                        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    }
                });
            }
        });
        Self { address, received }
    }

    fn spans(&self) -> Vec<otlp::Span> {
        let received = self.received.lock().unwrap();
        let scopes = received.iter().flat_map(|resource| &resource.scopes);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

fn attributes(of: &[otlp::Attribute]) -> BTreeMap<String, String> {
    let text = |attribute: &otlp::Attribute| match attribute.value.as_ref()?.kind.as_ref()? {
        otlp::Kind::Text(text) => Some(text.clone()),
        otlp::Kind::Flag(flag) => Some(flag.to_string()),
    };
    of.iter().map(|one| (one.key.clone(), text(one).unwrap_or_default())).collect()
}

/// Counts spans by protocol, limit, outcome and whether the decision was degraded.
fn tally(spans: &[otlp::Span]) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for span in spans {
        let attributes = attributes(&span.attributes);
        let part =
            |name: &str| attributes.get(&format!("ratekeeper.{name}")).cloned().unwrap_or_default();
        let line = ["protocol", "limit", "outcome", "degraded"].map(part).join(" ");
        *tally.entry(line).or_default() += 1;
    }
    tally
}

#[test]
fn every_request_is_a_span_and_pending_spans_are_exported_at_shutdown() {
    let collector = Collector::start();
    let url = format!("http://{}", collector.address);
    let mut server = Server::start_with("", &["--otlp", &url]);
    server.send_to_every_listener();
    server.program.signal("-TERM");
    assert!(server.program.wait().success());
    let spans = collector.spans();
    let expected = [
        ("forward_auth  allowed false", 1),
        ("forward_auth checkout allowed false", 5),
        ("forward_auth checkout denied false", 1),
        ("grpc  error false", 1),
        ("grpc test.user allowed false", 5),
        ("grpc test.user denied false", 1),
        ("http  error false", 1),
        ("http login allowed false", 3),
        ("http login denied false", 1),
        ("http login other false", 1),
        ("resp api allowed false", 3),
        ("resp api denied false", 1),
    ];
    assert_eq!(tally(&spans), expected.map(|(line, n)| (line.to_string(), n)).into());
    for span in &spans {
        assert_eq!(span.name, "ratekeeper.decide");
        assert!(span.started_ns > 0 && span.started_ns <= span.ended_ns);
    }
    let received = collector.received.lock().unwrap();
    let resource = attributes(&received[0].resource.as_ref().unwrap().attributes);
    assert_eq!(resource["service.name"], "ratekeeper");
}

#[test]
fn a_span_joins_the_trace_of_its_traceparent() {
    let collector = Collector::start();
    let url = format!("http://{}/", collector.address);
    let mut server = Server::start_with("", &["--otlp", &url]);
    let body = r#"{"key":"ann","rate":"3/hour"}"#;
    let parents = ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "invalid"];
    for parent in parents {
        let length = body.len();
        let head = format!("POST /v1/check HTTP/1.1\r\nHost: a\r\nTraceparent: {parent}\r\n");
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        assert_eq!(Client::connect(server.http).request(&request).status(), 200);
    }
    server.program.signal("-TERM");
    assert!(server.program.wait().success());
    let spans = collector.spans();
    assert_eq!(spans.len(), 2);
    assert_eq!(spans[0].trace[..4], [0x4b, 0xf9, 0x2f, 0x35]);
    assert_eq!(spans[0].parent, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert!(spans[1].parent.is_empty(), "an invalid parent is ignored");
}

#[test]
fn a_decision_without_the_store_is_marked_degraded() {
    let (collector, redis) = (Collector::start(), RedisServer::start());
    let url = format!("http://{}", collector.address);
    let store = format!("store: {{ url: '{}', deadline: 2s }}", redis.url());
    let mut server = Server::start_with(&store, &["--otlp", &url]);
    wait_until("the store is up", || server.page().value("ratekeeper_store_up") == 1.0);
    redis.kill();
    wait_until("the store is down", || server.page().value("ratekeeper_store_up") == 0.0);
    server.send_to_every_listener();
    server.program.signal("-TERM");
    assert!(server.program.wait().success());
    let tally = tally(&collector.spans());
    for line in [
        "forward_auth checkout allowed true",
        "grpc test.user allowed true",
        "http login allowed true",
        "resp api allowed true",
    ] {
        assert!(tally.contains_key(line), "{line} is not in {tally:?}");
    }
}
