//! Texts with `*`. Matching takes time in proportion to the text, whatever the pattern.

/// A pattern for hosts and header values: `*` is any run of characters, none included. Nothing
/// else is special.
///
/// ```
/// # use tollgate_rules::path::Glob;
/// assert!(Glob::new("*.example.com").matches_ignoring_case(b"API.example.com"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    literal: Option<String>,
    exact: Pieces,
    lower: Pieces,
}

impl Glob {
    /// A pattern with `*` for any run of characters.
    pub fn new(text: &str) -> Self {
        Self::from_pieces(text.split('*'))
    }

    /// What must be found in this order, with anything between the pieces. A `*` in a piece is
    /// itself.
    pub(super) fn from_pieces<'a>(pieces: impl Iterator<Item = &'a str>) -> Self {
        let pieces: Vec<&str> = pieces.collect();
        Self {
            literal: if let [only] = pieces[..] { Some(only.to_owned()) } else { None },
            exact: Pieces::new(&pieces, str::to_owned),
            lower: Pieces::new(&pieces, str::to_ascii_lowercase),
        }
    }

    /// Whether all of `text` fits.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.exact.matches(text, |byte| byte)
    }

    /// Whether all of `text` fits, with ASCII letters of either case.
    pub fn matches_ignoring_case(&self, text: &[u8]) -> bool {
        self.lower.matches(text, |byte| byte.to_ascii_lowercase())
    }

    /// The only text that fits, if there is no `*`.
    pub fn literal(&self) -> Option<&str> {
        self.literal.as_deref()
    }
}

/// The first and the last piece are tied to the ends; those between are found from left to right.
/// The leftmost find is always good enough, so nothing is ever tried twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pieces {
    first: Vec<u8>,
    middle: Vec<Needle>,
    /// `None` without a `*`: the first piece is then the whole text.
    last: Option<Vec<u8>>,
}

impl Pieces {
    fn new(pieces: &[&str], spell: impl Fn(&str) -> String) -> Self {
        let bytes = |piece: &&str| spell(piece).into_bytes();
        let (first, others) = pieces.split_first().unwrap_or((&"", &[]));
        let (last, middle) = match others.split_last() {
            Some((last, middle)) => (Some(bytes(last)), middle),
            None => (None, others),
        };
        let middle = middle.iter().filter(|piece| !piece.is_empty()).map(bytes);
        Self { first: bytes(first), middle: middle.map(Needle::new).collect(), last }
    }

    fn matches(&self, text: &[u8], fold: impl Fn(u8) -> u8 + Copy) -> bool {
        let same =
            |piece: &[u8], text: &[u8]| text.iter().map(|b| fold(*b)).eq(piece.iter().copied());
        let Some(last) = &self.last else { return same(&self.first, text) };
        let Some((start, text)) = text.split_at_checked(self.first.len()) else { return false };
        let Some(middle_len) = text.len().checked_sub(last.len()) else { return false };
        let (mut text, end) = text.split_at(middle_len);
        same(&self.first, start)
            && same(last, end)
            && self.middle.iter().all(|needle| match needle.find_end(text, fold) {
                Some(end) => {
                    text = &text[end..];
                    true
                }
                None => false,
            })
    }
}

/// A text to look for, with how far to fall back at each mismatch (Knuth, Morris and Pratt).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Needle {
    bytes: Vec<u8>,
    fallback: Vec<usize>,
}

impl Needle {
    fn new(bytes: Vec<u8>) -> Self {
        let mut needle = Self { fallback: vec![0], bytes };
        let mut matched = 0;
        for at in 1..needle.bytes.len() {
            matched = needle.advance(matched, needle.bytes[at]);
            needle.fallback.push(matched);
        }
        needle
    }

    /// How many bytes are matched after one more byte of the text.
    fn advance(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes[matched] != byte {
            matched = self.fallback[matched - 1];
        }
        matched + usize::from(self.bytes[matched] == byte)
    }

    /// Where the first find ends.
    fn find_end(&self, text: &[u8], fold: impl Fn(u8) -> u8) -> Option<usize> {
        let mut matched = 0;
        for (at, byte) in text.iter().enumerate() {
            matched = self.advance(matched, fold(*byte));
            if matched == self.bytes.len() {
                return Some(at + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, fits: &[&str], does_not: &[&str]) {
        let glob = Glob::new(pattern);
        for text in fits {
            assert!(glob.matches(text.as_bytes()), "{pattern} {text}");
        }
        for text in does_not {
            assert!(!glob.matches(text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn a_star_is_any_run() {
        check("", &[""], &["a"]);
        check("*", &["", "a", "é/*"], &[]);
        check("**", &["", "a"], &[]);
        check("a", &["a"], &["", "A", "aa", "ab"]);
        check("a*", &["a", "ab"], &["", "ba"]);
        check("*a", &["a", "ba"], &["", "ab"]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check(
            "*.example.com",
            &["a.example.com", "a.b.example.com", ".example.com"],
            &["example.com", "a.example.com.evil"],
        );
        check("*ab*ab*", &["abab", "xabyabz"], &["ab", "aab"]);
        check("a?c", &["a?c"], &["abc"]);
        check("a*bc*d", &["abcd", "abbcbcd"], &["abcbd!", "abd"]);
        check("*aab*", &["aaab", "xaaaaab"], &["abab"]);
    }

    #[test]
    fn case_can_be_ignored() {
        let glob = Glob::new("API.*.Example.com");
        assert!(glob.matches_ignoring_case(b"api.EU.example.COM"));
        assert!(!glob.matches(b"api.EU.example.COM"));
        assert!(glob.matches(b"API.eu.Example.com"));
    }

    #[test]
    fn only_a_text_without_stars_is_literal() {
        assert_eq!(Glob::new("a?b").literal(), Some("a?b"));
        assert_eq!(Glob::new("").literal(), Some(""));
        assert_eq!(Glob::new("a*").literal(), None);
    }

    #[test]
    fn bytes_that_are_not_text_are_only_matched_by_stars() {
        assert!(Glob::new("a*").matches(b"a\xff\0"));
        assert!(!Glob::new("a").matches(b"\xff"));
    }

    #[test]
    fn a_pattern_of_many_stars_does_not_blow_up() {
        let glob = Glob::new(&"*aaaaaaaab".repeat(40));
        assert!(!glob.matches(&b"a".repeat(1 << 20)));
    }

    /// By definition, in time that may explode.
    fn fits(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skip| fits(rest, &text[skip..])),
            ([a, pattern @ ..], [b, text @ ..]) if a == b => fits(pattern, text),
            _ => pattern.is_empty() && text.is_empty(),
        }
    }

    proptest! {
        #[test]
        fn a_glob_matches_by_definition(pattern in "[ab*]{0,8}", text in "[abA]{0,10}") {
            let glob = Glob::new(&pattern);
            prop_assert_eq!(glob.matches(text.as_bytes()), fits(pattern.as_bytes(), text.as_bytes()));
            let lower = text.to_ascii_lowercase();
            let fits = fits(pattern.as_bytes(), lower.as_bytes());
            prop_assert_eq!(glob.matches_ignoring_case(text.as_bytes()), fits);
        }

        #[test]
        fn a_glob_never_panics(pattern in any::<String>(), text in any::<Vec<u8>>()) {
            let _ = Glob::new(&pattern).matches(&text);
            let _ = Glob::new(&pattern).matches_ignoring_case(&text);
        }
    }
}
