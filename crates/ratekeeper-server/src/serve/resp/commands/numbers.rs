//! Numbers that clients send.

use super::quote;

/// A whole number that is not negative, or what is wrong with it.
#[inline]
pub(super) fn whole(what: &str, text: &[u8]) -> Result<u64, String> {
    // So many digits cannot overflow.
    const SAFE: usize = 18;
    let is_plain = !text.is_empty() && text.len() <= SAFE && text.iter().all(u8::is_ascii_digit);
    match is_plain {
        true => Ok(text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))),
        false => Err(complaint(what, text)),
    }
}

#[cold]
fn complaint(what: &str, text: &[u8]) -> String {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let why = match !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        true if digits.len() < text.len() => "is negative",
        true => "is too large",
        false => "is not a whole number",
    };
    format!("{what} {why}: '{}'", quote(text))
}
