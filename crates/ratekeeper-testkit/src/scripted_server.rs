//! An HTTP/1 server that follows a script, for tests of clients against servers that fail or lie.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::bounded_log::BoundedLog;
use crate::http_server::{CONNECTIONS_MAX, HttpServer, Running, listener_outside_ephemeral_ports};
use crate::http1::{Head, Wire, encode_response_to};
use crate::wait::{TIMEOUT, wait_until};

/// A request as a [`ScriptedServer`] received it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceivedRequest {
    /// Its number: 0 for the first one.
    pub number: u64,
    /// When its head had arrived.
    pub at: Instant,
    /// The request line and the headers.
    pub head: Head,
    /// The body. In the [log](ScriptedServer::requests), its first
    /// [`BODY_BYTES_MAX`](ScriptedServer::BODY_BYTES_MAX).
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// Returns the method.
    pub fn method(&self) -> &str {
        self.head.method()
    }

    /// Returns the path and the query.
    pub fn target(&self) -> &str {
        self.head.target()
    }

    /// Returns all values of a header, joined with ` | `.
    pub fn header(&self, name: &str) -> Option<String> {
        self.head.get(name)
    }
}

/// What a [`ScriptedServer`] does with a request.
#[derive(Clone, Debug)]
#[must_use]
pub struct ScriptedResponse {
    delay: Duration,
    action: ScriptedAction,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum ScriptedAction {
    Respond { status: u16 },
    RespondInPart { status: u16, body_bytes: usize },
    Close,
    Reset,
    BlackHole,
}

impl ScriptedResponse {
    /// Responds with this status, and an empty body. The connection stays open, unless the client or a
    /// [`header`](Self::header) `Connection: close` says otherwise.
    pub fn status(status: u16) -> Self {
        Self::new(ScriptedAction::Respond { status })
    }

    /// Closes the connection, without a response.
    pub fn close() -> Self {
        Self::new(ScriptedAction::Close)
    }

    /// Resets the connection, without a response.
    pub fn reset() -> Self {
        Self::new(ScriptedAction::Reset)
    }

    /// Never responds. The connection stays open until the client closes it, or the server stops.
    pub fn black_hole() -> Self {
        Self::new(ScriptedAction::BlackHole)
    }

    fn new(action: ScriptedAction) -> Self {
        Self { delay: Duration::ZERO, action, headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header, whose value is sent as it is.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets how long the server waits before it does anything.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Announces the whole body, sends only this many bytes of it, and closes the connection.
    ///
    /// # Panics
    ///
    /// If this is not a response with a [`status`](Self::status).
    pub fn partial_body(mut self, body_bytes: usize) -> Self {
        let ScriptedAction::Respond { status } = self.action else {
            panic!("only a response has a body");
        };
        self.action = ScriptedAction::RespondInPart { status, body_bytes };
        self
    }

    /// Does it, and returns whether the connection stays open.
    fn perform(&self, head: &Head, wire: &mut Wire, running: &Running) -> bool {
        if !running.wait(self.delay) {
            return false;
        }
        match self.action {
            ScriptedAction::Respond { status } => {
                let response = encode_response_to(head, status, &self.headers, &self.body);
                wire.try_send(response).is_ok() && !head.is_close() && !self.is_close()
            }
            ScriptedAction::RespondInPart { status, body_bytes } => {
                let mut headers = self.headers.clone();
                headers.push(("Content-Length".to_string(), self.body.len().to_string()));
                let sent = &self.body[..body_bytes.min(self.body.len())];
                let response = encode_response_to(head, status, &headers, sent);
                _ = wire.try_send(response);
                false
            }
            ScriptedAction::Close => false,
            ScriptedAction::Reset => {
                // Closing without lingering sends a reset.
                _ = SockRef::from(wire.stream()).set_linger(Some(Duration::ZERO));
                false
            }
            ScriptedAction::BlackHole => {
                _ = wire.stream().set_read_timeout(None);
                wire.discard_rest();
                false
            }
        }
    }

    fn is_close(&self) -> bool {
        let is_close = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close")
        };
        self.headers.iter().any(is_close)
    }
}

/// An HTTP/1.1 server that does with each request what its script says, stopped on drop.
///
/// It has a thread for each connection, up to 512 at a time; further connections are closed. Its port is not
/// one that outgoing connections use, so that it stays free while the server is [closed](Self::close).
///
/// # Examples
///
/// ```
/// use ratekeeper_testkit::{ScriptedResponse, ScriptedServer, http1::Client};
///
/// let server = ScriptedServer::start(|number, _| match number {
///     0 => ScriptedResponse::status(429).header("Retry-After", "99999999"),
///     _ => ScriptedResponse::status(200).body("ok"),
/// });
/// let mut client = Client::connect(server.address());
/// assert_eq!(client.get("/").status(), 429);
/// assert_eq!(client.get("/").body, "ok");
/// assert_eq!(server.requests()[1].target(), "/");
/// ```
pub struct ScriptedServer {
    address: SocketAddr,
    /// `None` while it is closed.
    server: Mutex<Option<HttpServer>>,
    shared: Arc<ScriptedServerShared>,
}

struct ScriptedServerShared {
    script: Box<ScriptFn>,
    log: Mutex<ScriptedServerLog>,
}

type ScriptFn = dyn Fn(u64, &ReceivedRequest) -> ScriptedResponse + Send + Sync;

struct ScriptedServerLog {
    received: u64,
    requests: BoundedLog<ReceivedRequest>,
}

impl ScriptedServer {
    /// How many requests are recorded; older ones are dropped.
    pub const REQUESTS_MAX: usize = 10_000;

    /// How much of a body is recorded.
    pub const BODY_BYTES_MAX: usize = 16 * 1024;

    /// Starts a server that does what `script` returns for the number of a request, from 0, and the request.
    pub fn start(
        script: impl Fn(u64, &ReceivedRequest) -> ScriptedResponse + Send + Sync + 'static,
    ) -> Self {
        let log = ScriptedServerLog { received: 0, requests: BoundedLog::new(Self::REQUESTS_MAX) };
        let shared =
            Arc::new(ScriptedServerShared { script: Box::new(script), log: Mutex::new(log) });
        let server = shared.listen(listener_outside_ephemeral_ports());
        Self { address: server.address(), server: Mutex::new(Some(server)), shared }
    }

    /// Starts a server that does the same with every request.
    pub fn always(response: ScriptedResponse) -> Self {
        Self::start(move |_, _| response.clone())
    }

    /// Starts a server that goes through a list, and repeats its last entry.
    ///
    /// # Panics
    ///
    /// If the list is empty.
    pub fn sequence(responses: impl IntoIterator<Item = ScriptedResponse>) -> Self {
        let responses: Vec<_> = responses.into_iter().collect();
        assert!(!responses.is_empty(), "a script has at least one response");
        Self::start(move |number, _| {
            let last = responses.len() - 1;
            responses[usize::try_from(number).map_or(last, |number| number.min(last))].clone()
        })
    }

    /// Returns its address, which stays the same when it is closed and opened again.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://ADDRESS`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns how many requests it has received.
    pub fn received(&self) -> u64 {
        self.shared.log().received
    }

    /// Returns the newest [`REQUESTS_MAX`](Self::REQUESTS_MAX) requests, oldest first.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.log().requests.to_vec()
    }

    /// Closes the listener and all connections. New connections are refused when this returns.
    pub fn close(&self) {
        drop(self.server().take());
    }

    /// Listens again, on the same port. The numbers of requests go on.
    ///
    /// # Panics
    ///
    /// If another process uses the port after [`TIMEOUT`].
    pub fn open(&self) {
        let mut server = self.server();
        if server.is_some() {
            return;
        }
        wait_until("the port is free", || {
            let listener = TcpListener::bind(self.address).ok();
            *server = listener.map(|listener| self.shared.listen(listener));
            server.is_some()
        });
    }

    /// Closes the listener and all connections, and listens again on the same port after `down_time`,
    /// or after [`TIMEOUT`] if that is shorter.
    pub fn restart(&self, down_time: Duration) {
        self.close();
        thread::sleep(down_time.min(TIMEOUT));
        self.open();
    }

    fn server(&self) -> MutexGuard<'_, Option<HttpServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptedServerShared {
    fn log(&self) -> MutexGuard<'_, ScriptedServerLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>, listener: TcpListener) -> HttpServer {
        let shared = Arc::clone(self);
        HttpServer::start(listener, CONNECTIONS_MAX, move |head, wire, running| {
            shared.serve(head, wire, running)
        })
    }

    fn serve(&self, head: Head, wire: &mut Wire, running: &Running) -> bool {
        let at = Instant::now();
        let Ok(body) = wire.try_body(&head) else { return false };
        let request = self.record(at, head, body);
        (self.script)(request.number, &request).perform(&request.head, wire, running)
    }

    fn record(&self, at: Instant, head: Head, body: Vec<u8>) -> ReceivedRequest {
        let mut log = self.log();
        let request = ReceivedRequest { number: log.received, at, head, body };
        log.received += 1;
        let mut recorded = request.clone();
        recorded.body.truncate(ScriptedServer::BODY_BYTES_MAX);
        log.requests.push(recorded);
        request
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;
    use crate::http1::Client;

    #[test]
    fn a_sequence_is_followed_and_its_last_response_repeated() {
        let server = ScriptedServer::sequence([
            ScriptedResponse::status(429).header("Retry-After", "-1").body("later"),
            ScriptedResponse::status(503).header("Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ScriptedResponse::status(200),
        ]);
        let mut client = Client::connect(server.address());
        let first = client.request(
            "POST /a?b HTTP/1.1\r\nHost: test\r\nX-Attempt: 1\r\nContent-Length: 2\r\n\r\nhi",
        );
        assert_eq!(first.head.get("retry-after").unwrap(), "-1");
        assert_eq!((first.status(), first.body.as_str()), (429, "later"));
        let statuses: Vec<u16> = (0..3).map(|_| client.get("/").status()).collect();
        assert_eq!(statuses, [503, 200, 200]);

        let requests = server.requests();
        assert_eq!((server.received(), requests.len()), (4, 4));
        assert_eq!((requests[0].method(), requests[0].target()), ("POST", "/a?b"));
        assert_eq!(requests[0].header("x-attempt").unwrap(), "1");
        assert_eq!(requests[0].body, b"hi");
        assert!(requests.is_sorted_by_key(|request| request.at));
        assert_eq!(requests[3].number, 3);
    }

    #[test]
    fn connections_end_as_the_script_says() {
        let server = ScriptedServer::start(|_, request| match request.target() {
            "/close" => ScriptedResponse::close(),
            "/reset" => ScriptedResponse::reset(),
            "/partial" => ScriptedResponse::status(200).body("0123456789").partial_body(4),
            _ => ScriptedResponse::status(200).header("Connection", "close"),
        });
        let get = |path: &str| {
            let client = Client::connect(server.address());
            client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
            client
        };
        assert_eq!(get("/close").0.rest(), "");
        let reset = get("/reset").try_response().err().unwrap();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        let partial = get("/partial").0.rest();
        assert!(partial.contains("Content-Length: 10\r\n") && partial.ends_with("\r\n\r\n0123"));
        assert_eq!(get("/").response().status(), 200);
        assert!(get("/").0.rest().starts_with("HTTP/1.1 200 OK\r\n"));
    }

    #[test]
    fn a_black_hole_reads_and_is_silent_until_the_server_stops() {
        let server = ScriptedServer::always(ScriptedResponse::black_hole());
        let mut client = Client::connect(server.address());
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        wait_until("the request arrives", || server.received() == 1);
        client.0.stream().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(client.try_response().err().unwrap().kind(), ErrorKind::WouldBlock);
        client.0.stream().set_read_timeout(Some(TIMEOUT)).unwrap();
        drop(server);
        assert!(client.0.is_closed());
    }

    #[test]
    fn a_restart_closes_connections_and_keeps_the_port() {
        let server = ScriptedServer::always(ScriptedResponse::status(200));
        let mut old = Client::connect(server.address());
        assert_eq!(old.get("/").status(), 200);
        server.close();
        assert!(old.0.is_closed());
        let refused = TcpStream::connect(server.address()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        server.open();
        let mut new = Client::connect(server.address());
        assert_eq!(new.get("/").status(), 200);
        server.restart(Duration::from_millis(20));
        assert!(new.0.is_closed());
        assert_eq!(Client::connect(server.address()).get("/").status(), 200);
        assert_eq!(server.received(), 3);
    }

    #[test]
    fn a_head_request_gets_no_body() {
        let server = ScriptedServer::always(ScriptedResponse::status(200).body("text"));
        let mut client = Client::connect(server.address());
        client.send("HEAD / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let response = client.0.rest();
        assert!(response.contains("Content-Length: 4\r\n") && response.ends_with("\r\n\r\n"));
    }
}
