//! Requests: arrays of bulk strings, or plain lines.

use std::fmt;
use std::ops::Range;

use memchr::memchr;

use super::{ARGS_MAX, BULK_MAX, COMMAND_MAX, INLINE_MAX, inline};

/// The longest header, such as `*3` or `$65536`.
const HEADER_MAX: usize = 32;

/// Where the arguments of a command are in the input. Kept from command to command, so that none of
/// them allocates.
#[derive(Debug)]
pub(in super::super) struct Spans {
    spans: [(u32, u32); ARGS_MAX],
    len: usize,
}

impl Default for Spans {
    fn default() -> Self {
        Self { spans: [(0, 0); ARGS_MAX], len: 0 }
    }
}

impl Spans {
    fn clear(&mut self) {
        self.len = 0;
    }

    /// Says `false` if there are too many.
    pub(super) fn push(&mut self, span: Range<usize>) -> bool {
        let Some(slot) = self.spans.get_mut(self.len) else { return false };
        // What is longer than a command may be is never parsed.
        *slot = (span.start as u32, span.end as u32);
        self.len += 1;
        true
    }

    /// The arguments, which are in these bytes.
    pub(in super::super) fn of<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes, spans: &self.spans[..self.len] }
    }
}

/// The arguments of a command, the first of which is its name.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [(u32, u32)],
}

impl<'a> Args<'a> {
    pub(in super::super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`, which there must be.
    #[inline]
    pub(in super::super) fn at(&self, index: usize) -> &'a [u8] {
        let (start, end) = self.spans[index];
        &self.bytes[start as usize..end as usize]
    }

    pub(in super::super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.len()).then(|| self.at(index))
    }

    /// All of them from `index` on.
    pub(in super::super) fn from(self, index: usize) -> impl Iterator<Item = &'a [u8]> {
        (index..self.len()).map(move |index| self.at(index))
    }
}

/// What the input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Parsed {
    /// A command of this many bytes. It may be empty, and then it is not answered.
    Command(usize),
    /// A part of a command.
    Part,
}

/// Input that makes no sense. It is told, and the connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ProtocolError {
    Header(&'static str),
    Count,
    Bulk,
    NoDollar(u8),
    NoEnd,
    TooLong,
    Inline,
    Quotes,
    TooMany,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(what) => write!(f, "too big {what} count string"),
            Self::Count => {
                write!(f, "invalid multibulk length; a command has at most {ARGS_MAX} arguments")
            }
            Self::Bulk => {
                write!(f, "invalid bulk length; an argument has at most {BULK_MAX} bytes")
            }
            Self::NoDollar(got) => write!(f, "expected '$', got '{}'", got.escape_ascii()),
            Self::NoEnd => write!(f, "expected CRLF after a bulk string"),
            Self::TooLong => {
                write!(f, "too big request; a command has at most {COMMAND_MAX} bytes")
            }
            Self::Inline => write!(f, "too big inline request"),
            Self::Quotes => write!(f, "unbalanced quotes in request"),
            Self::TooMany => write!(f, "too many arguments; a command has at most {ARGS_MAX}"),
        }
    }
}

/// Parses the command that the input begins with. Of a command that is not all there, nothing is
/// remembered: to begin again takes no more than a look at each argument's header.
///
/// Quoted arguments of a plain line are unquoted in place, which is why the input may change; a line
/// is complete then, and is not parsed a second time.
#[inline]
pub(in super::super) fn parse(
    input: &mut [u8],
    spans: &mut Spans,
) -> Result<Parsed, ProtocolError> {
    spans.clear();
    match input.first() {
        None => Ok(Parsed::Part),
        Some(b'*') => array(input, spans),
        Some(_) => line(input, spans),
    }
}

#[inline]
fn array(input: &[u8], spans: &mut Spans) -> Result<Parsed, ProtocolError> {
    let Some((count, mut at)) = header(input, 0, "mbulk")? else { return Ok(Parsed::Part) };
    let count = match count {
        Some(count) if count <= ARGS_MAX as i64 => count,
        _ => return Err(ProtocolError::Count),
    };
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(Parsed::Part),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NoDollar(*other)),
        }
        let Some((length, start)) = header(input, at, "bulk")? else { return Ok(Parsed::Part) };
        let length = length.and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|length| *length <= BULK_MAX).ok_or(ProtocolError::Bulk)?;
        let end = start + length;
        if end + 2 > COMMAND_MAX {
            return Err(ProtocolError::TooLong);
        }
        match input.get(end..end + 2) {
            None => return Ok(Parsed::Part),
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::NoEnd),
        }
        spans.push(start..end);
        at = end + 2;
    }
    Ok(Parsed::Command(at))
}

/// The number in a line such as `*3` or `$11`, if it is one, and where the next line begins; `None` if
/// the line is not all there.
#[inline]
fn header(
    input: &[u8],
    at: usize,
    what: &'static str,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let rest = &input[at + 1..];
    // Nearly every header is a digit or two.
    let (mut number, mut digits) = (0, 0);
    while let Some(digit @ b'0'..=b'9') = rest.get(digits) {
        if digits == 9 {
            break;
        }
        number = number * 10 + i64::from(digit - b'0');
        digits += 1;
    }
    if digits > 0 && rest.get(digits..digits + 2) == Some(b"\r\n") {
        return Ok(Some((Some(number), at + digits + 3)));
    }
    unusual_header(rest, what).map(|found| found.map(|(number, len)| (number, at + 1 + len)))
}

#[cold]
fn unusual_header(
    rest: &[u8],
    what: &'static str,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let Some(end) = memchr(b'\n', &rest[..rest.len().min(HEADER_MAX)]) else {
        let is_too_long = rest.len() >= HEADER_MAX;
        return if is_too_long { Err(ProtocolError::Header(what)) } else { Ok(None) };
    };
    let text = rest[..end].strip_suffix(b"\r").unwrap_or(b"");
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    Ok(Some((number, end + 1)))
}

#[cold]
fn line(input: &mut [u8], spans: &mut Spans) -> Result<Parsed, ProtocolError> {
    let Some(end) = memchr(b'\n', &input[..input.len().min(INLINE_MAX)]) else {
        let is_too_long = input.len() >= INLINE_MAX;
        return if is_too_long { Err(ProtocolError::Inline) } else { Ok(Parsed::Part) };
    };
    inline::split(&mut input[..end], spans)?;
    Ok(Parsed::Command(end + 1))
}
