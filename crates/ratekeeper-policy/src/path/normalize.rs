//! Path normalization.
//!
//! A limit on `/login` must also count `/./login`, `/%6Cogin`, `//login/` and `/login;x=1`: paths that the
//! upstream treats as one must be one here. Where servers disagree (is `%2F` a slash?), both spellings
//! are one path, so that no spelling has a count of its own. This is not a validator: every text has a
//! normal form.

use std::borrow::Cow;

/// Normalizes the raw path of a request, without its query.
///
/// The result starts with `/`, and has no empty, `.` or `..` segment, no path parameters and no trailing
/// slash. Escapes are decoded once; `%2F`, `\` and `%5C` count as `/`, and `%3B` as `;`. A `%` that does
/// not start an escape stays.
///
/// Decoded bytes that are not UTF-8 stay escaped, in upper case: replacing them would merge different
/// paths, so that one client could use up the limit of another.
///
/// ```
/// # use ratekeeper_policy::path::normalize;
/// assert_eq!(normalize("/a/./b//c%2F..;x=1/%64/"), "/a/b/d");
/// ```
#[must_use]
pub fn normalize(path: &str) -> Cow<'_, str> {
    if is_normal(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    match rewrite(path) {
        normal if normal == "/" => Cow::Borrowed("/"),
        normal => Cow::Owned(normal),
    }
}

fn is_normal(path: &[u8]) -> bool {
    let Some((b'/', rest)) = path.split_first() else { return false };
    let rewritten = |byte: &u8| matches!(byte, b'%' | b'\\' | b';');
    let dropped = |segment: &[u8]| matches!(segment, b"" | b"." | b"..");
    rest.is_empty() || !rest.iter().any(rewritten) && !rest.split(|byte| *byte == b'/').any(dropped)
}

fn rewrite(path: &str) -> String {
    let slash = usize::from(!path.starts_with('/'));
    let mut normal = Segments::with_capacity(path.len() + slash);
    for byte in percent_decoded(path.as_bytes()) {
        normal.push(byte);
    }
    into_text(normal.finish(), path.len() + slash)
}

/// Decodes the escapes of a text, and changes nothing else.
pub(super) fn decode(text: &str) -> String {
    into_text(percent_decoded(text.as_bytes()).collect(), text.len())
}

/// Returns the bytes of a text, with each valid escape decoded.
pub(crate) fn percent_decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    Decoded(text)
}

struct Decoded<'a>(&'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = match *self.0 {
            [b'%', high, low, ref rest @ ..] if is_hex(high) && is_hex(low) => {
                (hex(high) << 4 | hex(low), rest)
            }
            [byte, ref rest @ ..] => (byte, rest),
            [] => return None,
        };
        self.0 = rest;
        Some(byte)
    }
}

fn is_hex(digit: u8) -> bool {
    digit.is_ascii_hexdigit()
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// A normalized path under construction: complete segments, then the current one.
struct Segments {
    path: Vec<u8>,
    /// Start of the current segment, just after a slash.
    start: usize,
    in_parameters: bool,
}

impl Segments {
    fn with_capacity(bytes: usize) -> Self {
        let mut path = Vec::with_capacity(bytes);
        path.push(b'/');
        Self { path, start: 1, in_parameters: false }
    }

    fn push(&mut self, byte: u8) {
        match byte {
            b'/' | b'\\' => {
                if self.end_segment() {
                    self.path.push(b'/');
                    self.start = self.path.len();
                }
                self.in_parameters = false;
            }
            b';' => self.in_parameters = true,
            _ if self.in_parameters => {}
            _ => self.path.push(byte),
        }
    }

    /// Resolves the current segment, and returns whether it stays.
    fn end_segment(&mut self) -> bool {
        match &self.path[self.start..] {
            b"" => false,
            b"." => {
                self.path.truncate(self.start);
                false
            }
            b".." => {
                self.drop_parent();
                false
            }
            _ => true,
        }
    }

    fn drop_parent(&mut self) {
        let before = &self.path[..self.start - 1];
        self.start = before.iter().rposition(|byte| *byte == b'/').map_or(1, |slash| slash + 1);
        self.path.truncate(self.start);
    }

    fn finish(mut self) -> Vec<u8> {
        if !self.end_segment() && self.path.len() > 1 {
            self.path.pop();
        }
        self.path
    }
}

/// Escapes bytes that are not UTF-8. Each was three bytes of the request, so `bytes_max` suffices.
fn into_text(path: Vec<u8>, bytes_max: usize) -> String {
    let path = match String::from_utf8(path) {
        Ok(text) => return text,
        Err(error) => error.into_bytes(),
    };
    let mut text = String::with_capacity(bytes_max);
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            escape(*byte, &mut text);
        }
    }
    text
}

fn escape(byte: u8, text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(raw: &str, normal: &str) {
        assert_eq!(normalize(raw), normal, "{raw:?}");
    }

    #[test]
    fn a_normal_path_is_borrowed() {
        for path in ["/", "/a", "/a/b", "/a.b/..c/...", "/a b", "/é", "/a\0\n", "/~user/*"] {
            assert!(matches!(normalize(path), Cow::Borrowed(same) if same == path), "{path:?}");
        }
    }

    #[test]
    fn slashes_of_all_kinds_separate_and_collapse() {
        check("", "/");
        check("//", "/");
        check("a", "/a");
        check("*", "/*");
        check("/a/", "/a");
        check("//a///b//", "/a/b");
        check("/a\\b", "/a/b");
        check("/a%2Fb%2fc%5Cd%5ce", "/a/b/c/d/e");
        check("/a/%2F/b", "/a/b");
    }

    #[test]
    fn dot_segments_are_resolved_in_every_spelling() {
        check("/.", "/");
        check("/..", "/");
        check("/../..", "/");
        check("/a/./b", "/a/b");
        check("/a/../b", "/b");
        check("/a/b/../../c", "/c");
        check("/a/b/..", "/a");
        check("/a/%2e%2E/b", "/b");
        check("/a/.%2e/b", "/b");
        check("/a/..%2fb", "/b");
        check("/a/b/..\\c", "/a/c");
        check("/../../../../a", "/a");
        check("/a/.../b", "/a/.../b");
        check("..", "/");
    }

    #[test]
    fn path_parameters_are_removed() {
        check("/a;x=1", "/a");
        check("/a;x=1;y=2/b;z", "/a/b");
        check("/a/..;/b", "/b");
        check("/a/.;x/b", "/a/b");
        check("/;x/a", "/a");
        check("/a%3Bx=1/b", "/a/b");
        check("/a;x=%2Fb", "/a/b");
    }

    #[test]
    fn escapes_are_decoded_once() {
        check("/%6Cogin", "/login");
        check("/%41%62", "/Ab");
        check("/caf%C3%A9", "/café");
        check("/%252e%252e/a", "/%2e%2e/a");
        check("/%25", "/%");
        check("/%", "/%");
        check("/%4", "/%4");
        check("/%zz%4x", "/%zz%4x");
        check("/%00a", "/\0a");
        check("/%%41", "/%A");
    }

    #[test]
    fn bytes_that_are_not_utf_8_stay_escaped() {
        check("/%ff", "/%FF");
        check("/%fF/a", "/%FF/a");
        check("/%C3/%A9", "/%C3/%A9");
        check("/%C0%AF", "/%C0%AF");
        check("/%E2%82é", "/%E2%82é");
        check("/%C3%A9%C3", "/é%C3");
    }

    /// Texts made of pieces of paths and of attacks on them.
    fn paths() -> impl Strategy<Value = String> {
        let pieces = [
            "/", "//", "\\", ".", "..", ";", ";x=1", "%2F", "%2f", "%5c", "%2e", "%2E", "%3b",
            "%25", "%", "%f", "%ff", "%C3%A9", "%00", "é", "a", "b", "A", "\0", " ", "*", "?",
            "\u{7f}",
        ];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..24)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_text_has_a_normal_form(path in any::<String>()) {
            holds(&path)?;
        }

        #[test]
        fn any_attack_has_a_normal_form(path in paths()) {
            holds(&path)?;
        }

        #[test]
        fn an_escaped_path_is_the_same_path(path in paths(), upper in any::<bool>()) {
            let escaped: String = path
                .bytes()
                .map(|byte| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") })
                .collect();
            // Decoding twice gives another path, so only texts without escapes.
            if !path.contains('%') {
                prop_assert_eq!(normalize(&escaped), normalize(&path));
            }
        }
    }

    fn holds(path: &str) -> Result<(), TestCaseError> {
        let normal = normalize(path);
        prop_assert!(normal.starts_with('/'));
        prop_assert!(normal == "/" || !normal.ends_with('/'));
        prop_assert!(!normal.contains("//") && !normal.contains(['\\', ';']));
        prop_assert!(!normal.split('/').any(|segment| segment == "." || segment == ".."));
        if let Cow::Owned(text) = &normal {
            prop_assert!(text.capacity() <= path.len() + usize::from(!path.starts_with('/')));
        }
        if !normal.contains('%') {
            prop_assert!(matches!(normalize(&normal), Cow::Borrowed(same) if same == normal));
        }
        Ok(())
    }
}
