//! Parses requests: arrays of bulk strings, or inline commands.

use std::ops::Range;

use memchr::memchr;

use super::{ARGS_MAX, BULK_MAX, COMMAND_MAX, INLINE_MAX, inline};

/// The longest header, such as `*3` or `$65536`.
const HEADER_MAX: usize = 32;

/// The positions of a command's arguments in the input. Reused for every command, so that none allocates.
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

    /// Adds an argument. Returns `false` if there are too many.
    pub(super) fn push(&mut self, span: Range<usize>) -> bool {
        let Some(slot) = self.spans.get_mut(self.len) else { return false };
        // A command has at most `COMMAND_MAX` bytes, so positions fit.
        *slot = (span.start as u32, span.end as u32);
        self.len += 1;
        true
    }

    /// Returns the arguments in these bytes.
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

    /// Returns the argument at `index`, which must exist.
    #[inline]
    pub(in super::super) fn at(&self, index: usize) -> &'a [u8] {
        let (start, end) = self.spans[index];
        &self.bytes[start as usize..end as usize]
    }

    pub(in super::super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.len()).then(|| self.at(index))
    }

    /// Returns the arguments from `index` on.
    pub(in super::super) fn from(self, index: usize) -> impl Iterator<Item = &'a [u8]> {
        (index..self.len()).map(move |index| self.at(index))
    }
}

/// The start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Parsed {
    /// A command of this many bytes. It may be empty, and then it gets no reply.
    Command(usize),
    /// Part of a command.
    Incomplete,
}

/// Why the input is not a command. The texts are those of Redis, with the bounds of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum ProtocolError {
    #[error("too big {0} count string")]
    HeaderTooLong(&'static str),
    #[error("invalid multibulk length; a command has at most {ARGS_MAX} arguments")]
    InvalidArrayLength,
    #[error("invalid bulk length; an argument has at most {BULK_MAX} bytes")]
    InvalidBulkLength,
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    ExpectedDollar(u8),
    #[error("expected CRLF after a bulk string")]
    ExpectedCrlf,
    #[error("too big request; a command has at most {COMMAND_MAX} bytes")]
    CommandTooLong,
    #[error("too big inline request")]
    InlineTooLong,
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    #[error("too many arguments; a command has at most {ARGS_MAX}")]
    TooManyArgs,
}

/// Parses the command at the start of the input. An incomplete command is parsed again from its start, which
/// only reads the header of each argument.
///
/// Quoted arguments of an inline command are unquoted in place, so the input may change; the line is then
/// complete, and is not parsed a second time.
///
/// # Errors
///
/// Returns an error if the input is not a command. The connection must then be closed, because the start of
/// the next command is unknown.
#[inline]
pub(in super::super) fn parse(
    input: &mut [u8],
    spans: &mut Spans,
) -> Result<Parsed, ProtocolError> {
    spans.clear();
    match input.first() {
        None => Ok(Parsed::Incomplete),
        Some(b'*') => array(input, spans),
        Some(_) => line(input, spans),
    }
}

#[inline]
fn array(input: &[u8], spans: &mut Spans) -> Result<Parsed, ProtocolError> {
    let Some((count, mut at)) = header(input, 0, "mbulk")? else { return Ok(Parsed::Incomplete) };
    let count = match count {
        Some(count) if count <= ARGS_MAX as i64 => count,
        _ => return Err(ProtocolError::InvalidArrayLength),
    };
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(Parsed::Incomplete),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::ExpectedDollar(*other)),
        }
        let Some((length, start)) = header(input, at, "bulk")? else {
            return Ok(Parsed::Incomplete);
        };
        let length = length.and_then(|length| usize::try_from(length).ok());
        let length =
            length.filter(|length| *length <= BULK_MAX).ok_or(ProtocolError::InvalidBulkLength)?;
        let end = start + length;
        if end + 2 > COMMAND_MAX {
            return Err(ProtocolError::CommandTooLong);
        }
        match input.get(end..end + 2) {
            None => return Ok(Parsed::Incomplete),
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::ExpectedCrlf),
        }
        spans.push(start..end);
        at = end + 2;
    }
    Ok(Parsed::Command(at))
}

/// Returns the number in a header such as `*3` or `$11`, if it is valid, and the index after the header; `None`
/// if the header is incomplete.
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
        return if is_too_long { Err(ProtocolError::HeaderTooLong(what)) } else { Ok(None) };
    };
    let text = rest[..end].strip_suffix(b"\r").unwrap_or(b"");
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    Ok(Some((number, end + 1)))
}

#[cold]
fn line(input: &mut [u8], spans: &mut Spans) -> Result<Parsed, ProtocolError> {
    let Some(end) = memchr(b'\n', &input[..input.len().min(INLINE_MAX)]) else {
        let is_too_long = input.len() >= INLINE_MAX;
        return if is_too_long {
            Err(ProtocolError::InlineTooLong)
        } else {
            Ok(Parsed::Incomplete)
        };
    };
    inline::split(&mut input[..end], spans)?;
    Ok(Parsed::Command(end + 1))
}
