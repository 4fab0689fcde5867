//! The lists of `RateLimit` and `RateLimit-Policy` (RFC 9651), and the older forms of them.

use super::values::{decimal_millionths, integer};
use std::time::Duration;

/// One item of a list: `"checkout";q=10;w=2`, or `limit=100` in the older form.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListItem<'a> {
    /// The name, or what comes before `=`; without quotes, with its escapes.
    pub(super) name: &'a [u8],
    /// What comes after `=`.
    pub(super) value: Option<&'a [u8]>,
    pub(super) quota: Option<u64>,
    pub(super) window: Option<Duration>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<&'a [u8]>,
    pub(super) unit: Option<&'a [u8]>,
}

impl<'a> ListItem<'a> {
    /// Returns the quota, which is the item itself in the older form (`100;w=60`).
    pub(super) fn quota(&self) -> Option<u64> {
        self.quota.or_else(|| integer(self.name))
    }

    fn set(&mut self, parameter: &[u8], value: &'a [u8]) {
        match parameter {
            b"q" => self.quota = integer(value),
            b"w" => self.window = seconds(value),
            b"r" => self.remaining = integer(value),
            b"t" => self.reset = Some(value),
            b"qu" => self.unit = Some(value),
            _ => {}
        }
    }
}

/// Reads a window; one of no length is none.
fn seconds(value: &[u8]) -> Option<Duration> {
    decimal_millionths(value).filter(|us| *us > 0).map(Duration::from_micros)
}

/// The items of a list. It ends at the first one that is malformed.
#[derive(Clone, Debug)]
pub(super) struct ListItems<'a> {
    rest: &'a [u8],
}

impl<'a> ListItems<'a> {
    pub(super) fn of(value: &'a [u8]) -> Self {
        Self { rest: value }
    }

    fn item(&mut self) -> Option<ListItem<'a>> {
        self.skip_spaces();
        let mut item = ListItem { name: self.bare_item()?, ..ListItem::default() };
        if self.skip(b'=') {
            item.value = Some(self.bare_item()?);
        }
        loop {
            self.skip_spaces();
            if !self.skip(b';') {
                break;
            }
            self.skip_spaces();
            let parameter = self.bare_item()?;
            if self.skip(b'=') {
                item.set(parameter, self.bare_item()?);
            }
        }
        (self.rest.is_empty() || self.skip(b',')).then_some(item)
    }

    /// Splits off a string, a byte sequence, a token or a number.
    fn bare_item(&mut self) -> Option<&'a [u8]> {
        match self.rest {
            [b'"', text @ ..] => self.split(text, string_len(text)?, 1),
            [b':', bytes @ ..] => {
                self.split(bytes, bytes.iter().position(|byte| *byte == b':')?, 1)
            }
            text => {
                let is_end = |byte: &u8| matches!(byte, b';' | b',' | b'=' | b'"' | b' ' | b'\t');
                let len = text.iter().position(is_end).unwrap_or(text.len());
                if len == 0 { None } else { self.split(text, len, 0) }
            }
        }
    }

    /// Returns the first `len` bytes, and goes on after them and `skipped` more.
    fn split(&mut self, text: &'a [u8], len: usize, skipped: usize) -> Option<&'a [u8]> {
        self.rest = text.get(len + skipped..)?;
        text.get(..len)
    }

    fn skip(&mut self, byte: u8) -> bool {
        match self.rest {
            [first, rest @ ..] if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn skip_spaces(&mut self) {
        while self.skip(b' ') || self.skip(b'\t') {}
    }
}

impl<'a> Iterator for ListItems<'a> {
    type Item = ListItem<'a>;

    fn next(&mut self) -> Option<ListItem<'a>> {
        let item = self.item();
        if item.is_none() {
            self.rest = &[];
        }
        item
    }
}

/// Returns the length of a string up to its closing quote.
fn string_len(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&str> {
        ListItems::of(list.as_bytes()).map(|item| str::from_utf8(item.name).unwrap()).collect()
    }

    #[test]
    fn lists_are_split_at_their_own_commas() {
        for (list, expected) in [
            (r#""a";r=1"#, vec!["a"]),
            (r#""a";r=1, "b";r=2"#, vec!["a", "b"]),
            (r#""a,b;c";r=1,"d";r=2"#, vec!["a,b;c", "d"]),
            (r#""a\"b\\";r=1 , "c""#, vec![r#"a\"b\\"#, "c"]),
            (r#""a";pk=:c29t,ZQ==:;r=1,b"#, vec!["a", "b"]),
            ("100;w=60, 1000;w=3600;comment=\"slow, slower\"", vec!["100", "1000"]),
            ("limit=100, remaining=50, reset=5", vec!["limit", "remaining", "reset"]),
            (r#""a";flag;r=1"#, vec!["a"]),
            // What follows a malformed item is not read.
            (r#""a";r=1, "b"#, vec!["a"]),
            (r#""a";r=1, , "b""#, vec!["a"]),
            (r#""a" "b""#, vec![]),
            (r#""a\"#, vec![]),
            ("", vec![]),
            (";", vec![]),
        ] {
            assert_eq!(names(list), expected, "{list}");
        }
    }

    #[test]
    fn parameters_are_read_by_name() {
        let list = br#""a";q=10;w=2;qu="requests";r=4;t=1;other=5"#;
        let item = ListItems::of(list).next().unwrap();
        assert_eq!((item.quota, item.remaining, item.reset), (Some(10), Some(4), Some(&b"1"[..])));
        assert_eq!(item.window, Some(Duration::from_secs(2)));
        assert_eq!(item.unit, Some(&b"requests"[..]));
    }
}
