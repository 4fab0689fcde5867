//! The usage that a response states is found however the response is cut into pieces, and hostile bytes
//! neither panic nor fill the memory.

use proptest::prelude::*;
use ratekeeper_policy::json_fields::{JsonFields, JsonPaths, JsonScanner};
use ratekeeper_policy::usage::{Metered, TokenUsage, UsageFormat, UsageMeter};
use serde_json::{Value, json};

const SSE: Option<&[u8]> = Some(b"text/event-stream; charset=utf-8");
const JSON: Option<&[u8]> = Some(b"application/json");

fn metered(format: &UsageFormat, content_type: Option<&[u8]>, pieces: &[&[u8]]) -> Metered {
    let mut meter = UsageMeter::new(format.clone(), content_type);
    pieces.iter().for_each(|piece| meter.feed(piece));
    meter.finish(true)
}

#[track_caller]
fn assert_usage(format: &UsageFormat, of: Option<&[u8]>, body: &str, usage: TokenUsage) {
    let metered = metered(format, of, &[body.as_bytes()]);
    assert_eq!((metered.usage, metered.is_final), (Some(usage), true), "{body}");
}

fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

fn anthropic_stream() -> String {
    let start = json!({ "type": "message_start", "message": { "id": "m", "usage": {
        "input_tokens": 10, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 1
    } } });
    let text = json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "\"usage\": {" } });
    let delta = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 42 } });
    let stop = json!({ "type": "message_stop" });
    [start, text, delta, stop]
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()))
        .collect()
}

const ANTHROPIC_STREAMED: TokenUsage =
    TokenUsage { input: 10, cached: 100, cache_write: 5, output: 42, total: None };

#[test]
fn the_usage_of_openai_is_found() {
    let usage = json!({ "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
        "prompt_tokens_details": { "cached_tokens": 64 }, "completion_tokens_details": { "reasoning_tokens": 5 } });
    let expected =
        TokenUsage { input: 36, cached: 64, cache_write: 0, output: 20, total: Some(120) };
    let body = json!({ "choices": [{ "message": { "content": "{\"usage\":{\"prompt_tokens\":1}}" } }], "usage": usage });
    assert_usage(&UsageFormat::OpenAi, JSON, &body.to_string(), expected);
    assert_usage(&UsageFormat::OpenAi, JSON, &format!("{body:#}\n"), expected);
    let delta = json!({ "choices": [{ "delta": { "content": "hi" } }], "usage": null });
    let last = json!({ "choices": [], "usage": usage });
    let stream = events(&[delta.clone(), last]) + "data: [DONE]\n\n";
    assert_usage(&UsageFormat::OpenAi, SSE, &stream, expected);
    let embeddings =
        json!({ "data": [[0.1, -2e-3]], "usage": { "prompt_tokens": 8, "total_tokens": 8 } });
    let expected = TokenUsage { input: 8, total: Some(8), ..TokenUsage::default() };
    assert_usage(&UsageFormat::OpenAi, JSON, &embeddings.to_string(), expected);
    let unused = events(&[delta]) + "data: [DONE]\n\n";
    assert_eq!(metered(&UsageFormat::OpenAi, SSE, &[unused.as_bytes()]).usage, None);
}

#[test]
fn the_usage_of_openais_responses_is_found() {
    let usage = json!({ "input_tokens": 50, "input_tokens_details": { "cached_tokens": 10 }, "output_tokens": 7, "total_tokens": 57 });
    let expected = TokenUsage { input: 40, cached: 10, cache_write: 0, output: 7, total: Some(57) };
    let body = json!({ "object": "response", "usage": usage });
    assert_usage(&UsageFormat::OpenAi, JSON, &body.to_string(), expected);
    let created = json!({ "type": "response.created", "response": { "usage": null } });
    let completed = json!({ "type": "response.completed", "response": { "usage": usage } });
    assert_usage(&UsageFormat::OpenAi, SSE, &events(&[created, completed]), expected);
}

#[test]
fn the_usage_of_anthropic_is_found() {
    let body = json!({ "type": "message", "usage": { "input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 7 } });
    let expected = TokenUsage { input: 10, cached: 7, output: 3, ..TokenUsage::default() };
    assert_usage(&UsageFormat::Anthropic, JSON, &body.to_string(), expected);
    assert_usage(&UsageFormat::Anthropic, SSE, &anthropic_stream(), ANTHROPIC_STREAMED);
}

#[test]
fn any_field_can_be_the_usage() {
    let format = UsageFormat::Json("meta.billed.units".parse().unwrap());
    let body = json!({ "meta": { "billed": { "units": 7 }, "units": 1 }, "units": 2 });
    let expected = TokenUsage { total: Some(7), ..TokenUsage::default() };
    assert_usage(&format, JSON, &body.to_string(), expected);
    let first = json!({ "meta": { "billed": { "units": 3 } } });
    assert_usage(&format, SSE, &events(&[first, body, json!({ "done": true })]), expected);
}

/// Such a stream has used at least what it has stated so far.
#[test]
fn a_whole_number_may_be_written_as_a_decimal() {
    let body = r#"{"usage":{"total_tokens":150.0,"prompt_tokens":1e2,"completion_tokens":50}}"#;
    let usage = TokenUsage { input: 100, output: 50, total: Some(150), ..TokenUsage::default() };
    assert_usage(&UsageFormat::OpenAi, JSON, body, usage);
    let format = UsageFormat::Json("n".parse().unwrap());
    let total = |text: &str| {
        let body = format!(r#"{{"n":{text}}}"#);
        metered(&format, JSON, &[body.as_bytes()]).usage.map(|usage| usage.total())
    };
    let numbers = [
        ("0", 0),
        ("0.000", 0),
        ("0e99999", 0),
        ("1.5E+2", 150),
        ("1500e-1", 150),
        ("18446744073709551615", u64::MAX),
        ("18446744073709551615.0", u64::MAX),
    ];
    for (text, number) in numbers {
        assert_eq!(total(text), Some(number), "{text}");
    }
    let others =
        ["0.5", "1e-1", "-1", "18446744073709551616", "1e20", "1e9999999999", "\"\"", "\".5\""];
    for text in others {
        assert_eq!(total(text), None, "{text}");
    }
}

#[test]
fn a_usage_with_a_number_that_cannot_be_read_is_not_a_sum_of_the_others() {
    for unreadable in [json!(1.5), json!(-1), json!("many"), json!([1]), json!({ "n": 1 })] {
        let body = json!({ "usage": { "prompt_tokens": unreadable, "completion_tokens": 50 } });
        let stated = metered(&UsageFormat::OpenAi, JSON, &[body.to_string().as_bytes()]);
        assert_eq!((stated.usage, stated.is_final), (None, false), "{body}");
        let body = json!({ "usage": { "input_tokens": unreadable, "output_tokens": 50 } });
        let stated = metered(&UsageFormat::Anthropic, JSON, &[body.to_string().as_bytes()]);
        assert_eq!((stated.usage, stated.is_final), (None, false), "{body}");
    }
    let stream = anthropic_stream().replace("\"input_tokens\":10", "\"input_tokens\":1.5");
    assert!(!metered(&UsageFormat::Anthropic, SSE, &[stream.as_bytes()]).is_final);
    let absent =
        json!({ "usage": { "prompt_tokens": 8, "completion_tokens": null, "total_tokens": 8 } });
    let usage = TokenUsage { input: 8, total: Some(8), ..TokenUsage::default() };
    assert_usage(&UsageFormat::OpenAi, JSON, &absent.to_string(), usage);
}

#[test]
fn a_stream_that_is_cut_is_not_final() {
    let stream = anthropic_stream();
    let last = stream.find("event: message_stop").unwrap();
    let delta = stream.find("event: message_delta").unwrap();
    let read = |body: &str, is_complete| {
        let mut meter = UsageMeter::new(UsageFormat::Anthropic, SSE);
        meter.feed(body.as_bytes());
        let metered = meter.finish(is_complete);
        (metered.usage.map(|usage| usage.output), metered.is_final)
    };
    assert_eq!(read(&stream, false), (Some(42), true), "message_stop ends it");
    assert_eq!(read(&stream[..last], false), (Some(42), false));
    assert_eq!(read(&stream[..last], true), (Some(42), true));
    assert_eq!(read(&stream[..delta], true), (Some(1), false), "the output is not known");
    assert_eq!(read("", true), (None, false));
    let mut meter = UsageMeter::new(UsageFormat::OpenAi, JSON);
    meter.feed(br#"{"usage":{"prompt_tokens":1,"total_tokens":1}"#);
    assert_eq!(meter.finish(true).usage, None, "the document is not whole");
}

#[test]
fn all_line_ends_and_fields_of_events_are_understood() {
    let format = UsageFormat::Json("n".parse().unwrap());
    for (body, total) in [
        ("data: {\"n\":1}\n\n", Some(1)),
        ("data:{\"n\":1}\r\n\r\n", Some(1)),
        ("data: {\"n\":1}\r\r", Some(1)),
        ("\u{feff}data: {\"n\":1}\n\n", Some(1)),
        ("data: {\ndata: \"n\":\ndata:1}\n\n", Some(1)),
        (": comment\nid: 7\nretry: 10\nevent: x\ndata: {\"n\":1}\n\n", Some(1)),
        ("data: {\"n\":1}", Some(1)),
        ("data: {\"n\":1}\n\ndata: {\"n\":2}\n\n", Some(2)),
        ("data: {\"n\":1}\n\ndata: not JSON\n\n", Some(1)),
        ("data: {\"n\":1}\n\ndata: {\"n\":2\n\n", Some(1)),
        ("data: {\"n\":1}{\"n\":2}\n\n", None),
        ("datax: {\"n\":1}\n\n", None),
        (" data: {\"n\":1}\n\n", None),
        ("data: {\"n\":\"1a\"}\n\n", None),
        ("data: {\"n\":1.0}\n\n", Some(1)),
        ("data: {\"n\":1.5}\n\n", None),
        ("data: {\"n\":-1}\n\n", None),
        ("data: {\"n\":99999999999999999999999}\n\n", None),
        ("data\n\n", None),
        ("\n\n\n", None),
    ] {
        let usage = metered(&format, SSE, &[body.as_bytes()]).usage;
        assert_eq!(usage.map(|usage| usage.total()), total, "{body:?}");
    }
}

#[test]
fn documents_that_are_nested_too_deeply_are_invalid() {
    let paths = JsonPaths::new(["a".parse().unwrap()]);
    let nested =
        |depth: usize| format!("{{\"a\":1,\"b\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(JsonFields::of(nested(127).as_bytes(), &paths).is_some());
    assert!(JsonFields::of(nested(128).as_bytes(), &paths).is_none());
    assert!(JsonFields::of(nested(1_000_000).as_bytes(), &paths).is_none());
}

#[test]
fn a_field_that_is_sent_twice_has_both_values() {
    let paths = JsonPaths::new(["model".parse().unwrap(), "o.p".parse().unwrap()]);
    let values = |text: &str, path: &str| {
        let fields = JsonFields::of(text.as_bytes(), &paths).expect("valid");
        let values = fields.get(path).unwrap().clone();
        let known = values.known.iter().map(|value| String::from_utf8_lossy(value).into_owned());
        (known.collect::<Vec<_>>().join("|"), values.are_more)
    };
    let is = |known: &str, are_more| (known.to_string(), are_more);
    assert_eq!(values(r#"{"model":"a","model":"b"}"#, "model"), is("a|b", false));
    assert_eq!(values(r#"{"model":"a","\u006dodel":"b"}"#, "model"), is("a|b", false));
    assert_eq!(values(r#"{"model":"a","Model":"b"}"#, "model"), is("a|b", false));
    assert_eq!(values(r#"{"model":"a","model":"a"}"#, "model"), is("a", false));
    assert_eq!(values(r#"{"model":{"x":1}}"#, "model"), is("", true));
    assert_eq!(values(r#"{"model":null}"#, "model"), is("", false));
    assert_eq!(values(r#"{"model":true}"#, "model"), is("true", false));
    assert_eq!(values(r#"{"o":{"p":1},"o":{"p":2}}"#, "o.p"), is("1|2", false));
    assert_eq!(values(r#"{"o":[{"p":1}],"p":3,"x":{"o":{"p":4}}}"#, "o.p"), is("", false));
    assert_eq!(values(r#"{"model":"\ud83d\ude00\u00e9"}"#, "model"), is("😀é", false));
    assert_eq!(values(r#"{"model":"\ud83d!"}"#, "model"), is("\u{fffd}!", false));
    let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(2_000));
    assert_eq!(values(&long, "model"), is("", true));
    let many: String = (0..20).map(|n| format!(r#""model":{n},"#)).collect();
    assert!(values(&format!("{{{many}\"x\":1}}"), "model").1);
}

/// Any JSON value, in which the fields that are looked for occur often.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a\"\\\\/\n\u{e9}]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let name = prop_oneof![Just("a".to_string()), Just("b".to_string()), any::<String>()];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::hash_map(name, inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Cuts bytes at these places.
fn cut<'b>(bytes: &'b [u8], places: &[prop::sample::Index]) -> Vec<&'b [u8]> {
    let mut ends: Vec<_> = places.iter().map(|place| place.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut start = 0;
    let piece = |end| &bytes[std::mem::replace(&mut start, end)..end];
    ends.into_iter().map(piece).collect()
}

fn ab_paths() -> JsonPaths {
    JsonPaths::new(["a", "b", "a.b", "a.a.b"].map(|path| path.parse().unwrap()))
}

proptest! {
    #[test]
    fn fields_are_those_that_serde_json_finds(document in document(), places in any::<[prop::sample::Index; 4]>(), is_pretty: bool) {
        let text = if is_pretty { format!("{document:#}") } else { document.to_string() };
        let mut scanner = JsonScanner::new(&ab_paths());
        cut(text.as_bytes(), &places).into_iter().for_each(|piece| scanner.feed(piece));
        let fields = scanner.finish().expect("serde_json wrote it");
        for path in ["a", "b", "a.b", "a.a.b"] {
            // Names are compared without case.
            let found = path.split('.').try_fold(&document, |value, name| {
                let members = value.as_object()?;
                let same = members.keys().filter(|other| other.eq_ignore_ascii_case(name)).count();
                if same == 1 { members.get(name) } else { None }
            });
            let Some(found) = found else { continue };
            let values = fields.get(path).unwrap();
            let text = match found {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                Value::Array(_) | Value::Object(_) => {
                    prop_assert!(values.are_more);
                    continue;
                }
                other => Some(other.to_string()),
            };
            let known = values.known.first().map(|value| String::from_utf8_lossy(value).into_owned());
            prop_assert_eq!(known, text, "{} in {}", path, &document);
        }
    }

    #[test]
    fn what_is_valid_is_what_serde_json_accepts(text in "[\\[\\]{}:,\"ab\\\\n10.eE+\\- tru]{0,14}") {
        let is_valid = JsonFields::of(text.as_bytes(), &ab_paths()).is_some();
        match serde_json::from_str::<Value>(&text) {
            Ok(_) => prop_assert!(is_valid, "{}", text),
            // Numbers that do not fit a float are grammatical.
            Err(error) => prop_assert!(!is_valid || error.to_string().contains("out of range"), "{}", text),
        }
    }

    #[test]
    fn usage_does_not_depend_on_the_pieces(places in any::<[prop::sample::Index; 8]>(), line_end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")]) {
        let stream = anthropic_stream().replace('\n', line_end);
        let metered = metered(&UsageFormat::Anthropic, SSE, &cut(stream.as_bytes(), &places));
        prop_assert_eq!(metered.usage, Some(ANTHROPIC_STREAMED));
        prop_assert!(metered.is_final);
    }

    #[test]
    fn hostile_bytes_in_any_pieces_give_the_same_result(bytes in prop_oneof![
        any::<Vec<u8>>(),
        "(data: ?|event: x|:|\r|\n|\\[DONE\\]|\\{\"usage\":|\\{\"type\":\"message_stop\"|\\{\"prompt_tokens\":|\\{\"output_tokens\":|[0-9]{1,3}|\\}|,|null|\\[|\\]){0,40}".prop_map(String::into_bytes),
    ], places in any::<[prop::sample::Index; 8]>(), is_complete: bool) {
        for format in [UsageFormat::OpenAi, UsageFormat::Anthropic, UsageFormat::Json("usage".parse().unwrap())] {
            for content_type in [SSE, JSON] {
                let finish = |pieces: &[&[u8]]| {
                    let mut meter = UsageMeter::new(format.clone(), content_type);
                    pieces.iter().for_each(|piece| meter.feed(piece));
                    meter.finish(is_complete)
                };
                prop_assert_eq!(finish(&[&bytes]), finish(&cut(&bytes, &places)));
            }
        }
    }
}
