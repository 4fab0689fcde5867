//! A server like those of language model APIs, with limits on requests and on tokens.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http_server::{CONNECTIONS_MAX, HttpServer, Running, listener};
use crate::http1::{Head, Wire, encode_chunk, encode_head, encode_response_to};
use crate::llm::{Tokens, anthropic_events, anthropic_json, openai_events, openai_json};
use crate::quota::{Quota, QuotaCounter, milliseconds_ceil, seconds_ceil};
use crate::quota_server::since_epoch;

/// `max_tokens` of a request that has none.
const MAX_TOKENS_DEFAULT: u64 = 16;

/// Completion tokens of a request are at most this many, because a stream has an event for each of them.
const COMPLETION_TOKENS_MAX: u64 = 100_000;

/// How to start an [`LlmServer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct LlmServerBuilder {
    requests: Quota,
    tokens: Quota,
    delay: Duration,
    event_interval: Duration,
}

impl LlmServerBuilder {
    /// Sets how long after its decision the server responds.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets the time between the events of a stream, of which there is one for each completion token.
    pub fn event_interval(mut self, interval: Duration) -> Self {
        self.event_interval = interval;
        self
    }

    /// Starts the server on any free port. Its first windows begin now.
    pub fn start(self) -> LlmServer {
        let state = LlmServerState {
            requests: QuotaCounter::new(self.requests),
            tokens: QuotaCounter::new(self.tokens),
            accepted: 0,
            refused: 0,
            tokens_used: 0,
            streams: 0,
            streams_max: 0,
        };
        let started = Instant::now();
        let shared = Arc::new(LlmServerShared { setup: self, started, state: Mutex::new(state) });
        let serve = {
            let shared = Arc::clone(&shared);
            move |head: Head, wire: &mut Wire, running: &Running| shared.serve(&head, wire, running)
        };
        LlmServer { server: HttpServer::start(listener(), CONNECTIONS_MAX, serve), shared }
    }
}

/// An HTTP/1.1 server with the API of OpenAI's chat completions (`POST /v1/chat/completions`) and of
/// Anthropic's messages (`POST /v1/messages`), as JSON or as a stream of events. Stopped on drop.
///
/// What a request uses follows from its fields:
///
/// - prompt tokens: a quarter of the bytes of all `content` (and `system`), rounded up, at least 1;
/// - completion tokens: `metadata.use`, a number or a string, but at most `max_tokens` (or
///   `max_completion_tokens`, or 16). Without `metadata.use`, half of `max_tokens`, rounded up.
///
/// The estimate of a request is its prompt tokens and `max_tokens`. A request is accepted if one request and
/// its estimate remain in the quotas. Then the tokens that it uses are counted, at once and even if the client
/// closes the connection; the rest of the estimate is not reserved. A refusal takes nothing from either quota.
///
/// Refusals have status 429 and an error in the body. Those of chat completions have `retry-after-ms`,
/// `Retry-After` and `x-should-retry`; the latter is `false`, and the times are absent, if the estimate is above
/// what the quota can ever hold. Both APIs have their rate limit headers on all responses; their resets
/// say when a quota is whole again.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_testkit::{LlmServer, Quota, http1::Client};
///
/// let window = Duration::from_secs(2);
/// let server =
///     LlmServer::builder(Quota::token_bucket(10, window), Quota::token_bucket(1000, window)).start();
/// let body = r#"{"max_tokens":50,"metadata":{"use":"20"},"messages":[{"role":"user","content":"hi"}]}"#;
/// let response = Client::connect(server.address()).request(&format!(
///     "POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}", body.len(),
/// ));
/// assert_eq!(response.head.get("x-ratelimit-remaining-tokens").unwrap(), "979");
/// assert_eq!(server.tokens_used(), 21);
/// ```
pub struct LlmServer {
    server: HttpServer,
    shared: Arc<LlmServerShared>,
}

struct LlmServerShared {
    setup: LlmServerBuilder,
    started: Instant,
    state: Mutex<LlmServerState>,
}

struct LlmServerState {
    requests: QuotaCounter,
    tokens: QuotaCounter,
    accepted: u64,
    refused: u64,
    tokens_used: u64,
    streams: u64,
    streams_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LlmApi {
    ChatCompletions,
    Messages,
}

/// What a request's body says.
struct LlmRequest {
    is_stream: bool,
    has_usage: bool,
    estimate: u64,
    tokens: Tokens,
}

/// The decision on a request, and what its headers say.
struct LlmDecision {
    refusal: Option<LlmRefusal>,
    requests: QuotaLeft,
    tokens: QuotaLeft,
}

struct LlmRefusal {
    /// `requests` or `tokens`, whichever was exceeded.
    limit: &'static str,
    /// `None` if the request never fits.
    retry_after: Option<Duration>,
}

struct QuotaLeft {
    limit: u64,
    remaining: u64,
    reset_after: Duration,
}

/// Counts a stream until it is dropped.
struct OpenStream<'a>(&'a LlmServerShared);

impl LlmServer {
    /// Prepares a server with these quotas of requests and of tokens.
    pub fn builder(requests: Quota, tokens: Quota) -> LlmServerBuilder {
        let (delay, event_interval) = (Duration::ZERO, Duration::ZERO);
        LlmServerBuilder { requests, tokens, delay, event_interval }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns `http://ADDRESS`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns how many requests it has accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// Returns how many requests it has refused because of a quota.
    pub fn refused(&self) -> u64 {
        self.shared.state().refused
    }

    /// Returns how many tokens the accepted requests have used.
    pub fn tokens_used(&self) -> u64 {
        self.shared.state().tokens_used
    }

    /// Returns how many streams were open at a time, at most.
    pub fn streams_max(&self) -> u64 {
        self.shared.state().streams_max
    }

    /// Returns on how many connections it has received requests.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}

impl LlmServerShared {
    fn state(&self) -> MutexGuard<'_, LlmServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, head: &Head, wire: &mut Wire, running: &Running) -> bool {
        let Ok(body) = wire.try_body(head) else { return false };
        let respond = |status: u16, mut headers: Vec<(String, String)>, body: &str| {
            headers.push(header("Content-Type", "application/json"));
            let response = encode_response_to(head, status, &headers, body.as_bytes());
            wire.try_send(response).is_ok() && !head.is_close()
        };
        let api = match (head.method(), head.target()) {
            ("POST", "/v1/chat/completions") => LlmApi::ChatCompletions,
            ("POST", "/v1/messages") => LlmApi::Messages,
            _ => return respond(404, Vec::new(), "{\"error\":{\"message\":\"unknown path\"}}"),
        };
        let Some(request) = LlmRequest::parse(&body) else {
            return respond(400, Vec::new(), &api.error("invalid_request_error", None, "not JSON"));
        };
        let decision = self.decide(&request);
        if !running.wait(self.setup.delay) {
            return false;
        }
        let headers = api.headers(&decision);
        if let Some(refusal) = &decision.refusal {
            return respond(429, headers, &api.refusal(refusal, &decision, &request));
        }
        if request.is_stream {
            return self.stream(&api.events(&request), headers, wire, running) && !head.is_close();
        }
        let body = match api {
            LlmApi::ChatCompletions => openai_json(request.tokens),
            LlmApi::Messages => anthropic_json(request.tokens),
        };
        respond(200, headers, &body)
    }

    fn decide(&self, request: &LlmRequest) -> LlmDecision {
        let mut state = self.state();
        // Under the lock, so that times never decrease.
        let now = self.started.elapsed();
        let waits = [state.requests.wait_for(1, now), state.tokens.wait_for(request.estimate, now)];
        let refused = waits.iter().position(|wait| *wait != Some(Duration::ZERO));
        let refusal = refused.map(|binding| LlmRefusal {
            limit: ["requests", "tokens"][binding],
            retry_after: waits[0].zip(waits[1]).map(|(requests, tokens)| requests.max(tokens)),
        });
        if refusal.is_some() {
            state.refused += 1;
        } else {
            let used = request.tokens.total();
            state.requests.take(1, now);
            state.tokens.take(used, now);
            state.accepted += 1;
            state.tokens_used += used;
        }
        let (requests, tokens) =
            (QuotaLeft::of(&mut state.requests, now), QuotaLeft::of(&mut state.tokens, now));
        LlmDecision { refusal, requests, tokens }
    }

    /// Sends events, and returns whether the connection is still open.
    fn stream(
        &self,
        events: &[String],
        mut headers: Vec<(String, String)>,
        wire: &Wire,
        running: &Running,
    ) -> bool {
        let _open = OpenStream::new(self);
        headers.push(header("Content-Type", "text/event-stream"));
        headers.push(header("Transfer-Encoding", "chunked"));
        let mut unsent = encode_head(200, &headers);
        for event in events {
            unsent.extend(encode_chunk(event.as_bytes()));
            if self.setup.event_interval.is_zero() {
                continue;
            }
            if wire.try_send(&unsent).is_err() || !running.wait(self.setup.event_interval) {
                return false;
            }
            unsent.clear();
        }
        unsent.extend(encode_chunk(b""));
        wire.try_send(unsent).is_ok()
    }
}

impl<'a> OpenStream<'a> {
    fn new(server: &'a LlmServerShared) -> Self {
        let mut state = server.state();
        state.streams += 1;
        state.streams_max = state.streams_max.max(state.streams);
        Self(server)
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.state().streams -= 1;
    }
}

impl QuotaLeft {
    fn of(counter: &mut QuotaCounter, now: Duration) -> Self {
        let (remaining, reset_after) = (counter.remaining(now), counter.reset_after(now));
        Self { limit: counter.quota().limit(), remaining, reset_after }
    }
}

impl LlmRequest {
    /// Parses a body; `None` if it is not a JSON object.
    fn parse(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        body.as_object()?;
        let max_tokens = ["max_tokens", "max_completion_tokens"]
            .into_iter()
            .find_map(|name| number(&body[name]))
            .unwrap_or(MAX_TOKENS_DEFAULT);
        let used = number(&body["metadata"]["use"]).unwrap_or(max_tokens.div_ceil(2));
        let output = used.min(max_tokens).min(COMPLETION_TOKENS_MAX);
        let messages = body["messages"].as_array().into_iter().flatten();
        let contents = messages.map(|message| &message["content"]).chain([&body["system"]]);
        let input = contents.map(text_bytes).sum::<usize>().div_ceil(4).max(1) as u64;
        Some(Self {
            is_stream: body["stream"] == true,
            has_usage: body["stream_options"]["include_usage"] == true,
            estimate: input.saturating_add(max_tokens),
            tokens: Tokens { input, cached: 0, output },
        })
    }
}

/// Returns a number that is written as such or as a string.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Returns the length of a text, or of the texts of content blocks.
fn text_bytes(content: &Value) -> usize {
    let blocks = content.as_array().into_iter().flatten();
    let texts = blocks.map(|block| &block["text"]).chain([content]);
    texts.filter_map(Value::as_str).map(str::len).sum()
}

impl LlmApi {
    fn events(self, request: &LlmRequest) -> Vec<String> {
        match self {
            LlmApi::ChatCompletions => openai_events(request.tokens, request.has_usage),
            LlmApi::Messages => anthropic_events(request.tokens),
        }
    }

    fn headers(self, decision: &LlmDecision) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        for (name, left) in [("requests", &decision.requests), ("tokens", &decision.tokens)] {
            let values = [
                ("limit", left.limit.to_string()),
                ("remaining", left.remaining.to_string()),
                ("reset", self.reset(left.reset_after)),
            ];
            for (field, value) in values {
                let name = match self {
                    LlmApi::ChatCompletions => format!("x-ratelimit-{field}-{name}"),
                    LlmApi::Messages => format!("anthropic-ratelimit-{name}-{field}"),
                };
                headers.push((name, value));
            }
        }
        let Some(refusal) = &decision.refusal else { return headers };
        if self == LlmApi::ChatCompletions {
            headers.push(header("x-should-retry", &refusal.retry_after.is_some().to_string()));
        }
        if let Some(time) = refusal.retry_after {
            headers.push(header("Retry-After", &seconds_ceil(time).to_string()));
            if self == LlmApi::ChatCompletions {
                headers.push(header("retry-after-ms", &milliseconds_ceil(time).to_string()));
            }
        }
        headers
    }

    fn reset(self, time: Duration) -> String {
        match self {
            LlmApi::ChatCompletions => go_duration(time),
            LlmApi::Messages => rfc3339(seconds_ceil(since_epoch() + time)),
        }
    }

    fn refusal(self, refusal: &LlmRefusal, decision: &LlmDecision, request: &LlmRequest) -> String {
        let (left, requested) = match refusal.limit {
            "requests" => (&decision.requests, 1),
            _ => (&decision.tokens, request.estimate),
        };
        let advice = refusal.retry_after.map_or_else(
            || "Request too large.".to_string(),
            |time| format!("Please try again in {}.", go_duration(time)),
        );
        let message = format!(
            "Rate limit reached on {}: Limit {}, Remaining {}, Requested {requested}. {advice}",
            refusal.limit, left.limit, left.remaining
        );
        match self {
            LlmApi::ChatCompletions => {
                self.error(refusal.limit, Some("rate_limit_exceeded"), &message)
            }
            LlmApi::Messages => self.error("rate_limit_error", None, &message),
        }
    }

    fn error(self, kind: &str, code: Option<&str>, message: &str) -> String {
        let body = match self {
            LlmApi::ChatCompletions => {
                json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
            LlmApi::Messages => {
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
        };
        body.to_string()
    }
}

fn header(name: &str, value: &str) -> (String, String) {
    (name.to_string(), value.to_string())
}

/// Formats a time as Go does, in milliseconds, rounded up: `0s`, `120ms`, `1.5s`, `6m0s`, `1h0m0s`.
fn go_duration(time: Duration) -> String {
    let ms = milliseconds_ceil(time);
    if ms == 0 {
        return "0s".to_string();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
    let seconds = format!("{}.{:03}", ms / 1000 % 60, ms % 1000);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Formats seconds since 1970 as a date of RFC 3339 in UTC.
fn rfc3339(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (day, hour, minute, second) = (days + 1, time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::http1::{Client, Response};

    const HOUR: Duration = Duration::from_secs(3600);
    const CHAT: &str = "/v1/chat/completions";

    fn server(requests: u64, tokens: u64) -> LlmServer {
        let quota = |limit| Quota::token_bucket(limit, HOUR);
        LlmServer::builder(quota(requests), quota(tokens)).start()
    }

    fn post(client: &mut Client, path: &str, body: &str) -> Response {
        let length = body.len();
        client.request(&format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// A request with 2 prompt tokens.
    fn body(max_tokens: u64, used: u64, more: &str) -> String {
        format!(
            "{{\"max_tokens\":{max_tokens},\"metadata\":{{\"use\":\"{used}\"}},\
             \"messages\":[{{\"role\":\"user\",\"content\":\"12345\"}}]{more}}}"
        )
    }

    #[test]
    fn what_is_used_is_counted_and_the_estimate_has_to_remain() {
        let server = server(100, 100);
        let mut client = Client::connect(server.address());
        let accepted = post(&mut client, CHAT, &body(98, 28, ""));
        assert_eq!(accepted.status(), 200);
        let usage: Value = serde_json::from_str(&accepted.body).unwrap();
        assert_eq!(usage["usage"]["total_tokens"], 30);
        assert_eq!(accepted.head.get("x-ratelimit-limit-tokens").unwrap(), "100");
        assert_eq!(accepted.head.get("x-ratelimit-remaining-tokens").unwrap(), "70");
        assert_eq!(accepted.head.get("x-ratelimit-reset-tokens").unwrap(), "18m0s");
        assert_eq!(accepted.head.get("x-ratelimit-remaining-requests").unwrap(), "99");

        let refused = post(&mut client, CHAT, &body(78, 1, ""));
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.head.get("x-should-retry").unwrap(), "true");
        let number = |name| refused.head.get(name).unwrap().parse::<u64>().unwrap();
        // 10 tokens are missing, at 36 seconds each.
        assert!((300..=360).contains(&number("retry-after")));
        assert!((300_000..=360_000).contains(&number("retry-after-ms")));
        let error: Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(error["error"]["code"], "rate_limit_exceeded");
        assert_eq!(error["error"]["type"], "tokens");

        let too_large = post(&mut client, CHAT, &body(1000, 1, ""));
        assert_eq!(too_large.head.get("x-should-retry").unwrap(), "false");
        assert_eq!(too_large.head.get("retry-after"), None);
        assert_eq!((server.accepted(), server.refused(), server.tokens_used()), (1, 2, 30));
        assert_eq!(post(&mut client, CHAT, "{").status(), 400);
        assert_eq!(post(&mut client, "/other", "{}").status(), 404);
    }

    #[test]
    fn sixteen_threads_get_exactly_the_quotas() {
        // Each request needs 12 tokens and uses 7: the last one that is accepted finds at least 12.
        for (requests, tokens, accepted) in [(40, 100_000, 40), (100_000, 12 + 7 * 39, 40)] {
            let server = server(requests, tokens);
            thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| {
                        let mut client = Client::connect(server.address());
                        (0..5).for_each(|_| _ = post(&mut client, CHAT, &body(10, 5, "")));
                    });
                }
            });
            assert_eq!((server.accepted(), server.refused()), (accepted, 80 - accepted));
            assert_eq!(server.tokens_used(), accepted * 7);
        }
    }

    #[test]
    fn a_stream_ends_with_its_usage_if_asked_for() {
        let server = server(100, 1000);
        let mut client = Client::connect(server.address());
        let with = ",\"stream\":true,\"stream_options\":{\"include_usage\":true}";
        let response = post(&mut client, CHAT, &body(10, 3, with));
        assert_eq!(response.head.get("content-type").unwrap(), "text/event-stream");
        let events: Vec<&str> =
            response.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!((events.len(), events[4]), (5, "[DONE]"));
        let usage: Value = serde_json::from_str(events[3]).unwrap();
        assert_eq!(usage["usage"]["prompt_tokens"], 2);
        assert_eq!(usage["usage"]["completion_tokens"], 3);

        let without = post(&mut client, CHAT, &body(10, 3, ",\"stream\":true"));
        assert!(!without.body.contains("total_tokens") && without.body.ends_with("[DONE]\n\n"));
        assert_eq!((server.tokens_used(), server.streams_max()), (10, 1));
        assert_eq!(server.connections(), 1);
    }

    #[test]
    fn open_streams_are_counted() {
        let quota = Quota::fixed_window(100_000, HOUR);
        let server = LlmServer::builder(quota, quota).event_interval(HOUR).start();
        let clients: Vec<Client> = (0..4)
            .map(|_| {
                let mut client = Client::connect(server.address());
                let body = body(10, 5, ",\"stream\":true");
                let length = body.len();
                client.send(format!(
                    "POST {CHAT} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}"
                ));
                assert_eq!(client.0.head().status(), 200);
                assert!(client.0.chunk().unwrap().starts_with(b"data: "));
                client
            })
            .collect();
        assert_eq!(server.streams_max(), 4);
        drop(server);
        assert!(clients.into_iter().all(|mut client| client.0.is_closed()));
    }

    #[test]
    fn messages_have_the_headers_and_events_of_their_api() {
        let server = server(2, 1000);
        let mut client = Client::connect(server.address());
        let accepted = post(&mut client, "/v1/messages", &body(10, 3, ",\"stream\":true"));
        assert!(
            accepted.body.contains("\"output_tokens\":3") && accepted.body.contains("message_stop")
        );
        assert_eq!(accepted.head.get("anthropic-ratelimit-requests-remaining").unwrap(), "1");
        assert_eq!(accepted.head.get("anthropic-ratelimit-tokens-remaining").unwrap(), "995");
        let reset = accepted.head.get("anthropic-ratelimit-requests-reset").unwrap();
        assert!(reset.len() == 20 && reset.ends_with('Z'), "{reset}");
        post(&mut client, "/v1/messages", &body(10, 3, ""));
        let refused = post(&mut client, "/v1/messages", &body(10, 3, ""));
        assert_eq!(refused.status(), 429);
        assert!(refused.head.get("retry-after").is_some());
        assert!(refused.body.contains("rate_limit_error"));
        assert_eq!(server.tokens_used(), 10);
    }

    #[test]
    fn times_are_formatted_as_the_apis_do() {
        let go = |ms| go_duration(Duration::from_millis(ms));
        assert_eq!([0, 120, 1000, 8640].map(go), ["0s", "120ms", "1s", "8.64s"]);
        assert_eq!([360_000, 90_500, 3_600_000].map(go), ["6m0s", "1m30.5s", "1h0m0s"]);
        assert_eq!(go_duration(Duration::from_nanos(1)), "1ms");
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
