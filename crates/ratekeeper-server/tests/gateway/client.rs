//! A client that says exactly what it is told to, and messages as they look on the wire.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use ratekeeper_testkit::LIMIT;

/// The start of a message: its first line and its headers.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// All values of a header, joined.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let of_name = self.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let values: Vec<&str> = of_name.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(" | "))
    }

    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    }

    fn is_chunked(&self) -> bool {
        self.get("transfer-encoding").is_some_and(|coding| coding.contains("chunked"))
    }
}

/// One end of a connection that speaks HTTP/1.
pub(crate) struct Wire {
    reader: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub(crate) fn try_send(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_ref().write_all(bytes.as_ref())
    }

    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the other end takes it");
    }

    pub(crate) fn end(&self) {
        _ = self.stream().shutdown(Shutdown::Write);
    }

    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_string())
    }

    pub(crate) fn try_head(&mut self) -> io::Result<Head> {
        let mut head = Head { line: self.line()?, headers: self.fields()? };
        if head.line.starts_with("HTTP/1.1 100") {
            head = Head { line: self.line()?, headers: self.fields()? };
        }
        Ok(head)
    }

    pub(crate) fn head(&mut self) -> Head {
        self.try_head().expect("a head")
    }

    /// Headers or trailers, up to the empty line.
    pub(crate) fn fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(fields) };
            fields.push((name.to_string(), value.trim().to_string()));
        }
    }

    pub(crate) fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).expect("so many bytes");
        bytes
    }

    /// A chunk of a body; the last one is empty.
    pub(crate) fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let size = usize::from_str_radix(&self.line()?, 16).expect("a chunk's size");
        let mut bytes = vec![0; size];
        self.reader.read_exact(&mut bytes)?;
        if size > 0 {
            self.line()?;
        }
        Ok(bytes)
    }

    pub(crate) fn try_body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
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

    /// Everything until the other end closes.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end as well.
        _ = self.reader.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Whether the other end has closed and said nothing more.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.reader.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// A client's connection.
pub(crate) struct Client(pub(crate) Wire);

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self(Wire::new(TcpStream::connect(address).expect("the gateway accepts")))
    }

    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes);
    }

    pub(crate) fn try_answer(&mut self) -> io::Result<Answer> {
        let head = self.0.try_head()?;
        let body = self.0.try_body(&head)?;
        Ok(Answer { head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
    }

    pub(crate) fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.answer()
    }
}
