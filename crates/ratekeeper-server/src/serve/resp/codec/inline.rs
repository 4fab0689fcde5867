//! Plain lines, as people type them into a terminal: words, some of them in quotes.

use super::request::{ProtocolError, Spans};

/// Splits a line into words. In double quotes, `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH` and an escaped
/// anything stand for a byte; in single quotes only `\'` does. What a word stands for is never longer
/// than the word, so it is written over it.
pub(super) fn split(line: &mut [u8], spans: &mut Spans) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        at += line[at..].iter().take_while(|byte| is_blank(**byte)).count();
        if at == line.len() {
            return Ok(());
        }
        let (len, next) = word(line, at)?;
        if !spans.push(at..at + len) {
            return Err(ProtocolError::TooMany);
        }
        at = next;
    }
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0
}

/// The length of the word that begins at `start`, unquoted, and where the next may begin.
fn word(line: &mut [u8], start: usize) -> Result<(usize, usize), ProtocolError> {
    let (mut read, mut write) = (start, start);
    while read < line.len() && !is_blank(line[read]) {
        match line[read] {
            quote @ (b'"' | b'\'') => {
                let (written, next) = quoted(line, read + 1, write, quote)?;
                // A closing quote ends the word.
                if line.get(next).is_some_and(|byte| !is_blank(*byte)) {
                    return Err(ProtocolError::Quotes);
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

/// Where the unquoted text ends, and what comes after the closing quote.
fn quoted(
    line: &mut [u8],
    mut read: usize,
    mut write: usize,
    quote: u8,
) -> Result<(usize, usize), ProtocolError> {
    loop {
        let (byte, len) = match line.get(read..).unwrap_or_default() {
            [] => return Err(ProtocolError::Quotes),
            [byte, ..] if *byte == quote => return Ok((write, read + 1)),
            rest => unescape(rest, quote),
        };
        line[write] = byte;
        read += len;
        write += 1;
    }
}

/// The byte that the text begins with, and how long its name is.
fn unescape(text: &[u8], quote: u8) -> (u8, usize) {
    match text {
        [b'\\', b'\'', ..] if quote == b'\'' => (b'\'', 2),
        [b'\\', escaped, rest @ ..] if quote == b'"' => match (escaped, hex_pair(rest)) {
            (b'x', Some(byte)) => (byte, 4),
            _ => (meaning(*escaped), 2),
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

fn meaning(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}
