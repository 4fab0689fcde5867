//! Writes replies in the client's protocol version.

/// The protocol version of a client. It starts with 2, and `HELLO 3` selects 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

/// Appends replies to a buffer.
pub(in super::super) struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    protocol: RespVersion,
}

impl<'a> ReplyWriter<'a> {
    pub(in super::super) fn new(out: &'a mut Vec<u8>, protocol: RespVersion) -> Self {
        Self { out, protocol }
    }

    pub(in super::super) fn ok(&mut self) {
        self.simple("OK");
    }

    /// Writes a text without line breaks.
    pub(in super::super) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// Writes an error: a code in capitals and a message. Line breaks, which an error cannot contain, become
    /// spaces.
    pub(in super::super) fn error(&mut self, text: &str) {
        let is_break = |c: char| c == '\r' || c == '\n';
        match text.contains(is_break) {
            true => self.line(b'-', &text.replace(is_break, " ")),
            false => self.line(b'-', text),
        }
    }

    #[inline]
    pub(in super::super) fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    /// Writes an unsigned integer, capped at the largest signed one.
    #[inline]
    pub(in super::super) fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(in super::super) fn boolean(&mut self, value: bool) {
        match self.protocol {
            RespVersion::Resp2 => self.integer(value.into()),
            RespVersion::Resp3 => {
                self.out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" });
            }
        }
    }

    pub(in super::super) fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(in super::super) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    pub(in super::super) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of this many replies.
    #[inline]
    pub(in super::super) fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// Begins a map of this many names, each followed by its value. RESP2 has no maps: there it is an array
    /// of both.
    pub(in super::super) fn map(&mut self, len: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.array(2 * len),
            RespVersion::Resp3 => self.number(b'%', len as i64),
        }
    }

    #[inline]
    fn number(&mut self, kind: u8, value: i64) {
        self.out.push(kind);
        if let digit @ 0..=9 = value {
            self.out.extend_from_slice(&[b'0' + digit as u8, b'\r', b'\n']);
            return;
        }
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.out.push(kind);
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}
