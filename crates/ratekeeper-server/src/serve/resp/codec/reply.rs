//! Replies, in the client's version of the protocol.

/// The version that a client speaks. It begins with 2, and asks for 3 with `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Protocol {
    #[default]
    Two,
    Three,
}

/// Writes replies behind each other.
pub(in super::super) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    pub(in super::super) fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    pub(in super::super) fn ok(&mut self) {
        self.simple("OK");
    }

    /// A word without line breaks.
    pub(in super::super) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: a code in capitals and a message. Line breaks, which an error cannot have, become
    /// blanks.
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

    /// The same for what cannot be negative. Nothing here comes near the difference.
    #[inline]
    pub(in super::super) fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(in super::super) fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Two => self.integer(value.into()),
            Protocol::Three => {
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
            Protocol::Two => b"$-1\r\n",
            Protocol::Three => b"_\r\n",
        });
    }

    /// So many replies follow.
    #[inline]
    pub(in super::super) fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// So many names follow, each with its value. The old protocol has no maps: there it is an array
    /// of both.
    pub(in super::super) fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Two => self.array(2 * len),
            Protocol::Three => self.number(b'%', len as i64),
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
