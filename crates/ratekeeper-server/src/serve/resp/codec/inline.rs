//! Inline commands: lines of words, which may be quoted, as typed into a terminal.

use super::request::{ProtocolError, Spans};

/// Splits a line into words. In double quotes, `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH` and any other escaped
/// character are one byte; in single quotes only `\'` is. The unquoted word is never longer than the
/// quoted one, so it is written in place.
pub(super) fn split(line: &mut [u8], spans: &mut Spans) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        at += line[at..].iter().take_while(|byte| is_blank(**byte)).count();
        if at == line.len() {
            return Ok(());
        }
        let (len, next) = word(line, at)?;
        if !spans.push(at..at + len) {
            return Err(ProtocolError::TooManyArgs);
        }
        at = next;
    }
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0
}

/// Unquotes the word at `start`. Returns its length, and the index after it.
fn word(line: &mut [u8], start: usize) -> Result<(usize, usize), ProtocolError> {
    let (mut read, mut write) = (start, start);
    while read < line.len() && !is_blank(line[read]) {
        match line[read] {
            quote @ (b'"' | b'\'') => {
                let (written, next) = quoted(line, read + 1, write, quote)?;
                // A closing quote ends the word.
                if line.get(next).is_some_and(|byte| !is_blank(*byte)) {
                    return Err(ProtocolError::UnbalancedQuotes);
                }
                (read, write) = (next, written);
            }
            byte => {
                line[write] = byte;
                read += 1;
                write += 1;
            }
        }
    }
    Ok((write - start, read))
}

/// Unquotes text up to the closing quote. Returns where the unquoted text ends, and the index after the
/// quote.
fn quoted(
    line: &mut [u8],
    mut read: usize,
    mut write: usize,
    quote: u8,
) -> Result<(usize, usize), ProtocolError> {
    loop {
        let (byte, len) = match line.get(read..).unwrap_or_default() {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [byte, ..] if *byte == quote => return Ok((write, read + 1)),
            rest => unescape(rest, quote),
        };
        line[write] = byte;
        read += len;
        write += 1;
    }
}

/// Returns the first byte of the text, unescaped, and the length of its escape sequence.
fn unescape(text: &[u8], quote: u8) -> (u8, usize) {
    match text {
        [b'\\', b'\'', ..] if quote == b'\'' => (b'\'', 2),
        [b'\\', escaped, rest @ ..] if quote == b'"' => match (escaped, hex_pair(rest)) {
            (b'x', Some(byte)) => (byte, 4),
            _ => (unescaped_byte(*escaped), 2),
        },
        [byte, ..] => (*byte, 1),
        [] => (0, 0),
    }
}

fn hex_pair(text: &[u8]) -> Option<u8> {
    let [high, low, ..] = text else { return None };
    Some(hex(*high)? << 4 | hex(*low)?)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

fn unescaped_byte(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}
