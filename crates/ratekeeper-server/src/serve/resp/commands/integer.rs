//! Parses integer arguments.

use super::{CommandError, quote};

/// Parses an integer that is not negative. `name` is the name of the argument, for errors. As in redis-cell,
/// a plus sign and leading zeros are accepted, up to the largest signed integer.
#[inline]
pub(super) fn parse_u64(name: &'static str, text: &[u8]) -> Result<u64, CommandError> {
    // This many digits cannot overflow.
    const DIGITS_MAX: usize = 18;
    let is_plain =
        !text.is_empty() && text.len() <= DIGITS_MAX && text.iter().all(u8::is_ascii_digit);
    match is_plain {
        true => Ok(text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))),
        false => parse_unusual(name, text),
    }
}

#[cold]
fn parse_unusual(name: &'static str, text: &[u8]) -> Result<u64, CommandError> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    match parsed.map(u64::try_from) {
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => Err(CommandError::Negative { name, text: quote(text) }),
        None => Err(invalid(name, text)),
    }
}

fn invalid(name: &'static str, text: &[u8]) -> CommandError {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let is_integer = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let (is_negative, text) = (text.starts_with(b"-"), quote(text));
    match (is_integer, is_negative) {
        (true, true) => CommandError::Negative { name, text },
        (true, false) => CommandError::TooLarge { name, text },
        (false, _) => CommandError::NotAnInteger { name, text },
    }
}
