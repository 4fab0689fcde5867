//! HTTP/1 on a raw connection: a client that sends exactly the given bytes, and messages as received.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use crate::wait::TIMEOUT;

/// The head of a message: its first line and its headers.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The request line or the status line.
    pub line: String,
    /// The headers, in order.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// Returns all values of a header, joined with ` | `.
    pub fn get(&self, name: &str) -> Option<String> {
        let of_name = self.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let values: Vec<&str> = of_name.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(" | "))
    }

    /// Returns the status code.
    pub fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    /// Returns the method of a request.
    pub fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// Returns the path and the query of a request.
    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns whether the sender closes the connection after this message.
    pub fn is_close(&self) -> bool {
        self.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    fn is_chunked(&self) -> bool {
        self.get("transfer-encoding").is_some_and(|coding| coding.contains("chunked"))
    }
}

/// One end of a connection, read as HTTP/1.
pub struct Wire {
    reader: BufReader<SharedStream>,
}

/// A stream that others may shut down meanwhile.
struct SharedStream(Arc<TcpStream>);

impl Read for SharedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

impl Wire {
    /// Wraps a stream, with timeouts.
    pub fn new(stream: TcpStream) -> Self {
        Self::shared(Arc::new(stream))
    }

    /// Wraps a stream that others may shut down, with timeouts.
    pub(crate) fn shared(stream: Arc<TcpStream>) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self { reader: BufReader::new(SharedStream(stream)) }
    }

    /// Returns the stream.
    pub fn stream(&self) -> &TcpStream {
        &self.reader.get_ref().0
    }

    /// Sends bytes.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn try_send(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream().write_all(bytes.as_ref())
    }

    /// Sends bytes.
    pub fn send(&self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the connection is open");
    }

    /// Shuts down the sending half.
    pub fn end(&self) {
        _ = self.stream().shutdown(Shutdown::Write);
    }

    /// Reads a line, without its end.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_string())
    }

    /// Reads a head, after an interim `100 Continue` if there is one.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn try_head(&mut self) -> io::Result<Head> {
        let mut head = Head { line: self.line()?, headers: self.fields()? };
        if head.line.starts_with("HTTP/1.1 100") {
            head = Head { line: self.line()?, headers: self.fields()? };
        }
        Ok(head)
    }

    /// Reads a head.
    pub fn head(&mut self) -> Head {
        self.try_head().expect("a head")
    }

    /// Reads headers or trailers, up to the empty line.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(fields) };
            fields.push((name.to_string(), value.trim().to_string()));
        }
    }

    /// Reads exactly `length` bytes.
    pub fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).expect("so many bytes");
        bytes
    }

    /// Reads a chunk of a body; the last one is empty.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let size = usize::from_str_radix(&self.line()?, 16).expect("a chunk's size");
        let mut bytes = vec![0; size];
        self.reader.read_exact(&mut bytes)?;
        if size > 0 {
            self.line()?;
        }
        Ok(bytes)
    }

    /// Reads the body that belongs to `head`.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn try_body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if head.is_chunked() {
            loop {
                let chunk = self.chunk()?;
                if chunk.is_empty() {
                    self.fields()?;
                    return Ok(body);
                }
                body.extend(chunk);
            }
        }
        if let Some(length) = head.get("content-length") {
            body.resize(length.parse().expect("a length"), 0);
            self.reader.read_exact(&mut body)?;
        }
        Ok(body)
    }

    /// Reads until the peer closes the connection.
    pub fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset ends the connection as well.
        _ = self.reader.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Reads until the peer closes the connection, and discards what is read.
    pub(crate) fn discard_rest(&mut self) {
        // A reset ends the connection as well.
        _ = io::copy(&mut self.reader, &mut io::sink());
    }

    /// Returns whether the peer closed the connection and sent nothing more.
    pub fn is_closed(&mut self) -> bool {
        match self.reader.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// A client's connection.
pub struct Client(
    /// The connection.
    pub Wire,
);

/// A response with its body.
pub struct Response {
    /// The head.
    pub head: Head,
    /// The body, as text.
    pub body: String,
}

impl Response {
    /// Returns the status code.
    pub fn status(&self) -> u16 {
        self.head.status()
    }
}

impl Client {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> Self {
        Self(Wire::new(TcpStream::connect(address).expect("the server accepts connections")))
    }

    /// Sends bytes.
    pub fn send(&self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes);
    }

    /// Reads a response.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn try_response(&mut self) -> io::Result<Response> {
        let head = self.0.try_head()?;
        let body = self.0.try_body(&head)?;
        Ok(Response { head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Reads a response.
    pub fn response(&mut self) -> Response {
        self.try_response().expect("a response")
    }

    /// Sends a GET request, and reads the response.
    pub fn get(&mut self, path: &str) -> Response {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// Sends a request, and reads the response.
    pub fn request(&mut self, request: &str) -> Response {
        self.send(request);
        self.response()
    }
}

/// Returns the bytes of a response. Unless `headers` has a `Content-Length`, that of the body is added.
pub fn encode_response(status: u16, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut bytes = encode_head(status, headers);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        bytes.truncate(bytes.len() - 2);
        bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Returns the bytes of a response to `request`: as [`encode_response`], but without the body for `HEAD`.
pub fn encode_response_to(
    request: &Head,
    status: u16,
    headers: &[(String, String)],
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = encode_response(status, headers, body);
    if request.method() == "HEAD" {
        bytes.truncate(bytes.len() - body.len());
    }
    bytes
}

/// Returns the bytes of the head of a response with these headers only.
pub fn encode_head(status: u16, headers: &[(String, String)]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    head.into_bytes()
}

/// Returns the bytes of a chunk; the last one is empty.
pub fn encode_chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// Returns the reason phrase, which clients ignore.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        404 => "Not Found",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
