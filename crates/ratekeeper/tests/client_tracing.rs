//! What was waited for, and why, can be seen. Alone in a program: what is traced is decided once for all threads.
#![cfg(feature = "client")]

#[path = "client/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use support::*;

type Fields = BTreeMap<&'static str, String>;

/// Records events, and the attributes of spans.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Vec<Fields>>>);

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Recorded {
    fn add(&self, name: &str, read: impl FnOnce(&mut Reader<'_>)) {
        let mut fields = Fields::from([("span", name.to_string())]);
        read(&mut Reader(&mut fields));
        self.0.lock().unwrap().push(fields);
    }

    /// Returns the values of a field of the events with this message, in order.
    fn of(&self, message: &str, field: &str) -> Vec<String> {
        let all = self.0.lock().unwrap();
        let of_message = all.iter().filter(|fields| {
            fields.get("message").is_some_and(|it| it == message) || fields["span"] == message
        });
        of_message.filter_map(|fields| fields.get(field).cloned()).collect()
    }
}

impl Subscriber for Recorded {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("ratekeeper")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(span.metadata().name(), |reader| span.record(reader));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.add("outbound_attempt", |reader| values.record(reader));
    }

    fn event(&self, event: &Event<'_>) {
        self.add("", |reader| event.record(reader));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn waits_pauses_and_attempts_are_traced() {
    let recorded = Recorded::default();
    let _guard = tracing::subscriber::set_default(recorded.clone());
    let refusal = response(429, &[("retry-after", "2")]);
    let upstream = Upstream::sequence([refusal, response(200, &[])]);
    let outbound = outbound(&["1/s burst 1 per host"]);
    let client = upstream.behind(&outbound);
    for after in [0, 0, 10, 0] {
        tokio::time::sleep(after * SEC).await;
        send(&client, get("https://a.example.com/")).await.unwrap();
    }
    assert_eq!(recorded.of("outbound_attempt", "attempt"), ["1", "2", "1", "1", "1"]);
    assert_eq!(recorded.of("outbound_attempt", "status"), ["429", "200", "200", "200", "200"]);
    assert_eq!(recorded.of("outbound quota is paused", "wait_ms"), ["2000"]);
    assert_eq!(recorded.of("outbound request is retried", "attempt"), ["1"]);
    // A request may wait more than once for the same.
    let waits = |field| {
        let mut values = recorded.of("outbound request waits", field);
        values.dedup();
        values
    };
    assert_eq!(waits("reason"), ["\"recovery\"", "\"rate_limit\""]);
    assert_eq!(waits("limit"), ["\"\"", "\"default\""]);
}
