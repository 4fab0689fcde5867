//! A text of fixed size.

use std::fmt;

/// The first `N` bytes of a text.
#[derive(Clone)]
pub(super) struct FixedText<const N: usize> {
    bytes: [u8; N],
    len: u8,
    is_truncated: bool,
}

impl<const N: usize> FixedText<N> {
    pub(super) fn new(text: &[u8]) -> Self {
        const { assert!(N <= u8::MAX as usize) };
        let len = text.len().min(N);
        let mut bytes = [0; N];
        bytes[..len].copy_from_slice(&text[..len]);
        Self { bytes, len: len as u8, is_truncated: text.len() > N }
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

impl<const N: usize> fmt::Display for FixedText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.len)]).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_truncated_and_says_so() {
        let text = FixedText::<4>::new("löwe".as_bytes());
        assert_eq!((text.to_string().as_str(), text.is_truncated()), ("löw", true));
        let text = FixedText::<4>::new(b"lion");
        assert_eq!((text.to_string().as_str(), text.is_truncated()), ("lion", false));
        assert_eq!(FixedText::<4>::new(&[0xff, b'a']).to_string(), "\u{fffd}a");
    }
}
