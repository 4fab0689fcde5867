//! Parses integer arguments.

use super::{CommandError, quote};

/// Parses an integer that is not negative. `name` is the name of the argument, for errors.
#[inline]
pub(super) fn parse_u64(name: &'static str, text: &[u8]) -> Result<u64, CommandError> {
    // This many digits cannot overflow.
    const DIGITS_MAX: usize = 18;
    let is_valid =
        !text.is_empty() && text.len() <= DIGITS_MAX && text.iter().all(u8::is_ascii_digit);
    match is_valid {
        true => Ok(text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))),
        false => Err(invalid(name, text)),
    }
}

#[cold]
fn invalid(name: &'static str, text: &[u8]) -> CommandError {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_integer = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let is_negative = digits.len() < text.len();
    let text = quote(text);
    match (is_integer, is_negative) {
        (true, true) => CommandError::Negative { name, text },
        (true, false) => CommandError::TooLarge { name, text },
        (false, _) => CommandError::NotAnInteger { name, text },
    }
}
