//! Where the messages of an HTTP/1 client start and end, read strictly.
//!
//! hyper is lenient where the standard allows it: it takes a bare line feed for the end of a line,
//! drops a length beside `Transfer-Encoding`, and merges two equal lengths. A proxy before the gateway
//! may read such a message differently, which is how requests are smuggled. So the bytes are checked
//! before hyper sees them. The line end at which a message breaks the
//! rules, and everything after it, is overwritten: hyper then rejects the message and closes the
//! connection, and whatever it makes of the message, it never sees another one.

use memchr::memchr;

/// What is kept of a line that does not arrive in one piece. No line that matters is longer.
const LINE_MAX: usize = 256;

/// No line end, and not allowed anywhere in a head.
const INVALID: u8 = 0;

/// Follows one connection.
#[derive(Default)]
pub(super) struct Framing {
    state: FramingState,
    /// The beginning of a line whose end is yet to come.
    line: Vec<u8>,
    /// The last byte of that line so far, which may be beyond what is kept.
    last: u8,
    length: Option<u64>,
    chunked: bool,
    requests_upgrade: bool,
    /// Messages whose head is complete.
    messages: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum FramingState {
    /// Between messages.
    #[default]
    Start,
    RequestLine,
    Field,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// The message requested another protocol: what follows may be that, or the next message.
    Upgrade,
    /// The rules were broken: there is nothing to follow any more.
    Broken,
}

/// The rules are broken.
#[derive(Debug, PartialEq)]
struct Violation;

impl Framing {
    /// Whether a head has begun and is not complete.
    pub(super) fn in_head(&self) -> bool {
        matches!(self.state, FramingState::RequestLine | FramingState::Field)
    }

    /// Whether everything up to here was whole messages.
    pub(super) fn is_between_messages(&self) -> bool {
        self.state == FramingState::Start
    }

    /// If the last message requested another protocol: how many messages there were up to it. What
    /// follows cannot be read before the response to that one is known.
    pub(super) fn awaits_response(&self) -> Option<u64> {
        (self.state == FramingState::Upgrade).then_some(self.messages)
    }

    /// The response has not switched protocols: the next message follows.
    pub(super) fn resume(&mut self) {
        self.state = FramingState::Start;
    }

    /// Takes what came next, and spoils it where it breaks the rules. Returns how much it took: all, but
    /// for what follows a message that requested another protocol.
    pub(super) fn follow(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.state != FramingState::Upgrade {
            at += match self.state {
                FramingState::Broken => {
                    bytes[at..].fill(INVALID);
                    bytes.len() - at
                }
                FramingState::Body(left) => {
                    self.skip(left, bytes.len() - at, FramingState::Body, self.after())
                }
                FramingState::Chunk(left) => {
                    self.skip(left, bytes.len() - at, FramingState::Chunk, FramingState::ChunkEnd)
                }
                FramingState::Start => self.start(bytes[at]),
                _ => self.take_line(&mut bytes[at..]),
            };
        }
        at
    }

    fn start(&mut self, first: u8) -> usize {
        // Empty lines before a request are to be ignored.
        if first == b'\r' || first == b'\n' {
            return 1;
        }
        (self.length, self.chunked, self.requests_upgrade) = (None, false, false);
        self.state = FramingState::RequestLine;
        0
    }

    fn skip(
        &mut self,
        left: u64,
        there: usize,
        more: fn(u64) -> FramingState,
        then: FramingState,
    ) -> usize {
        let there_u64 = there as u64;
        self.state = if left > there_u64 { more(left - there_u64) } else { then };
        left.min(there_u64) as usize
    }

    /// Takes bytes up to the end of the line, or all of them if it does not end here.
    fn take_line(&mut self, bytes: &mut [u8]) -> usize {
        let Some(end) = memchr(b'\n', bytes) else {
            self.keep(bytes);
            return bytes.len();
        };
        let (has_return, next) = if self.line.is_empty() {
            let whole = bytes[..end].strip_suffix(b"\r");
            (whole.is_some(), self.next(whole))
        } else {
            self.keep(&bytes[..end]);
            let line = std::mem::take(&mut self.line);
            let whole = (self.last == b'\r').then(|| line.strip_suffix(b"\r").unwrap_or(&line));
            (whole.is_some(), self.next(whole))
        };
        self.state = next.unwrap_or_else(|Violation| {
            // hyper rejects a bare line feed where a chunk begins, and takes any other byte for a part of
            // the chunk's extension.
            let is_bare_in_chunk_size = self.state == FramingState::ChunkSize && !has_return;
            if !is_bare_in_chunk_size {
                bytes[end] = INVALID;
            }
            FramingState::Broken
        });
        end + 1
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// What follows after this line, which is `None` if it did not end in a carriage return.
    fn next(&mut self, line: Option<&[u8]>) -> Result<FramingState, Violation> {
        let line = line.ok_or(Violation)?;
        match self.state {
            FramingState::RequestLine => Ok(FramingState::Field),
            FramingState::Field if line.is_empty() => {
                self.messages += 1;
                Ok(self.after_head())
            }
            FramingState::Field => self.field(line).map(|()| FramingState::Field),
            FramingState::ChunkSize => chunk_size(line).map(|size| match size {
                0 => FramingState::Trailer,
                size => FramingState::Chunk(size),
            }),
            FramingState::ChunkEnd if line.is_empty() => Ok(FramingState::ChunkSize),
            FramingState::Trailer if line.is_empty() => Ok(self.after()),
            FramingState::Trailer => Ok(FramingState::Trailer),
            _ => Err(Violation),
        }
    }

    fn after_head(&self) -> FramingState {
        match self.length {
            _ if self.chunked => FramingState::ChunkSize,
            None | Some(0) => self.after(),
            Some(length) => FramingState::Body(length),
        }
    }

    /// What follows a message.
    fn after(&self) -> FramingState {
        if self.requests_upgrade { FramingState::Upgrade } else { FramingState::Start }
    }

    fn field(&mut self, line: &[u8]) -> Result<(), Violation> {
        match line[0] {
            b' ' | b'\t' => Err(Violation),
            b'c' | b'C' => {
                value(line, b"content-length").map_or(Ok(()), |value| self.length(value))
            }
            b't' | b'T' => {
                value(line, b"transfer-encoding").map_or(Ok(()), |value| self.coding(value))
            }
            b'u' | b'U' => {
                self.requests_upgrade |= value(line, b"upgrade").is_some();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Violation> {
        if self.chunked || self.length.is_some() {
            return Err(Violation);
        }
        self.length = Some(number(value, 10)?);
        Ok(())
    }

    /// Only `chunked`: a body with another coding could not be forwarded.
    fn coding(&mut self, value: &[u8]) -> Result<(), Violation> {
        if self.chunked || self.length.is_some() || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Violation);
        }
        self.chunked = true;
        Ok(())
    }
}

/// The value, if the field has that name. Spaces before the colon do not hide a name.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    if !start.eq_ignore_ascii_case(name) {
        return None;
    }
    let rest = rest.trim_ascii_start().strip_prefix(b":")?;
    Some(rest.trim_ascii())
}

fn chunk_size(line: &[u8]) -> Result<u64, Violation> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, extension) = line.split_at(digits);
    let extension = extension.trim_ascii_start();
    let is_clean = extension.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control());
    if !(extension.is_empty() || extension[0] == b';') || !is_clean {
        return Err(Violation);
    }
    number(size, 16)
}

fn number(text: &[u8], radix: u32) -> Result<u64, Violation> {
    // `from_str_radix` would take a plus sign.
    if text.is_empty() || !text.iter().all(u8::is_ascii_alphanumeric) {
        return Err(Violation);
    }
    let text = std::str::from_utf8(text).map_err(|_| Violation)?;
    u64::from_str_radix(text, radix).map_err(|_| Violation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows the text at once and byte by byte: where is it spoilt, and what is the state after?
    fn follow(text: &str) -> (Option<usize>, FramingState) {
        let (mut whole, mut framing) = (text.as_bytes().to_vec(), Framing::default());
        assert_eq!(framing.follow(&mut whole), text.len());
        let (mut pieces, mut slow) = (text.as_bytes().to_vec(), Framing::default());
        pieces.chunks_mut(1).for_each(|piece| assert_eq!(slow.follow(piece), 1));
        assert_eq!((&whole, framing.state), (&pieces, slow.state), "{text:?}");
        (whole.iter().position(|byte| *byte == INVALID), framing.state)
    }

    #[test]
    fn whole_messages_pass() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\na\nbGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=\"y\"\r\na\nb\r\n0\r\nT: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(follow(text), (None, FramingState::Start), "{text:?}");
        }
    }

    #[test]
    fn what_follows_a_request_for_another_protocol_is_left_until_its_response_is_known() {
        let first = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for upgrade in [
            "GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nab",
            "GET / HTTP/1.1\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            let mut framing = Framing::default();
            let mut bytes = format!("{first}{upgrade}\n\x00\n").into_bytes();
            let before = bytes.clone();
            assert_eq!(framing.follow(&mut bytes), first.len() + upgrade.len(), "{upgrade:?}");
            assert_eq!((framing.awaits_response(), &bytes), (Some(2), &before), "{upgrade:?}");
            framing.resume();
            let mut next = b"GET / HTTP/1.1\nHost: a\r\n\r\n".to_vec();
            assert_eq!(framing.follow(&mut next), next.len());
            assert_eq!((next[14], framing.state), (INVALID, FramingState::Broken));
        }
    }

    #[test]
    fn what_is_unfinished_is_not_between_messages() {
        assert_eq!(follow("GET / HT").1, FramingState::RequestLine);
        assert_eq!(follow("GET / HTTP/1.1\r\nHos").1, FramingState::Field);
        assert_eq!(
            follow("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc").1,
            FramingState::Body(6)
        );
    }

    #[test]
    fn a_message_that_breaks_the_rules_is_spoilt() {
        for head in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            "Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
            "Content-Length: 3, 3\r\n\r\n",
            "Content-Length: +3\r\n\r\n",
            "Content-Length: 0x3\r\n\r\n",
            "Content-Length:\r\n\r\n",
            "Content-Length: 18446744073709551616\r\n\r\n",
            "Content-Length : 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding: xchunked\r\n\r\n",
            "Transfer-Encoding: gzip, chunked\r\n\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n3 junk\r\nabc\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
            "Host: a\nX: b\r\n\r\n",
            "Host: a\r\n folded\r\n\r\n",
            "Host: a\r\n\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\n{head}");
            let (_, state) = follow(&text);
            assert_eq!(state, FramingState::Broken, "{text:?}");
            let next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
            let mut bytes = format!("{text}{next}").into_bytes();
            Framing::default().follow(&mut bytes);
            let after = &bytes[text.len()..];
            assert!(after.iter().all(|byte| *byte == INVALID), "{text:?} lets the next one pass");
        }
    }
}
