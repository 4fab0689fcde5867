//! Glob patterns with `*`, matched in time linear in the text.

use std::hash::{Hash, Hasher};

use memchr::memmem::Finder;

/// Maximum length of a text that [`Glob::matches_bounded`] searches, in bytes.
pub(crate) const SEARCHED_MAX: usize = 1024;

/// A pattern for hosts and header values. `*` matches any characters or none; nothing else is special.
///
/// ```
/// # use ratekeeper_policy::path::Glob;
/// assert!(Glob::new("*.example.com").matches_ignoring_case(b"API.example.com"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    literal: Option<String>,
    exact: Pieces,
    lower: Pieces,
}

impl Glob {
    /// Creates a pattern in which `*` matches any characters or none.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self::from_pieces(text.split('*'))
    }

    /// Creates a pattern of pieces in this order, with anything between them. A `*` in a piece is literal.
    pub(super) fn from_pieces<'a>(pieces: impl Iterator<Item = &'a str>) -> Self {
        let pieces: Vec<&str> = pieces.collect();
        Self {
            literal: if let [only] = pieces[..] { Some(only.to_owned()) } else { None },
            exact: Pieces::new(&pieces, str::to_owned),
            lower: Pieces::new(&pieces, str::to_ascii_lowercase),
        }
    }

    /// Returns whether the whole text matches.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        self.middle_of(text).is_some_and(|middle| self.exact.are_in(middle))
    }

    /// Does the same in bounded time: a text of more than [`SEARCHED_MAX`] bytes is not searched. If its
    /// prefix and suffix match, the result is `assumed`.
    pub(crate) fn matches_bounded(&self, text: &[u8], assumed: bool) -> bool {
        match self.middle_of(text) {
            None => false,
            Some(_) if self.needs_search() && text.len() > SEARCHED_MAX => assumed,
            Some(middle) => self.exact.are_in(middle),
        }
    }

    /// Returns whether the whole text matches, ignoring the case of ASCII letters.
    #[must_use]
    pub fn matches_ignoring_case(&self, text: &[u8]) -> bool {
        let Some(middle) = self.lower.middle_of(text, <[u8]>::eq_ignore_ascii_case) else {
            return false;
        };
        !self.needs_search() || self.lower.are_in(&middle.to_ascii_lowercase())
    }

    /// Returns the only text that matches, if there is no `*`.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        self.literal.as_deref()
    }

    /// Returns whether this is known to match everything that another pattern matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        if let Some(literal) = other.literal() {
            return self.matches(literal.as_bytes());
        }
        let ((first, last), (of_first, of_last)) = (self.affixes(), other.affixes());
        let is_wider = self.literal.is_none() && !self.needs_search();
        self == other || is_wider && of_first.starts_with(first) && of_last.ends_with(last)
    }

    /// Returns whether this is known to match nothing that another pattern matches.
    pub(crate) fn is_disjoint(&self, other: &Self) -> bool {
        match (self.literal(), other.literal()) {
            (Some(literal), _) => !other.matches(literal.as_bytes()),
            (_, Some(literal)) => !self.matches(literal.as_bytes()),
            (None, None) => {
                let ((first, last), (of_first, of_last)) = (self.affixes(), other.affixes());
                let is_one_start = first.starts_with(of_first) || of_first.starts_with(first);
                let is_one_end = last.ends_with(of_last) || of_last.ends_with(last);
                !is_one_start || !is_one_end
            }
        }
    }

    /// Returns whether there is text between two `*`. Only that is searched for, in time linear in the
    /// text; the prefix and the suffix are compared.
    pub(crate) fn needs_search(&self) -> bool {
        !self.exact.middle.is_empty()
    }

    fn middle_of<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        self.exact.middle_of(text, |piece, text| piece == text)
    }

    /// Returns the prefix and the suffix that a matching text has.
    pub(super) fn affixes(&self) -> (&[u8], &[u8]) {
        (&self.exact.first, self.exact.last.as_deref().unwrap_or_default())
    }
}

/// The texts between the `*`. The first and the last must be at the ends of the text. The others are
/// searched from left to right; the leftmost match always suffices, so there is no backtracking.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pieces {
    first: Vec<u8>,
    middle: Vec<Needle>,
    /// `None` without a `*`: the first piece is then the whole text.
    last: Option<Vec<u8>>,
}

impl Pieces {
    fn new(pieces: &[&str], fold: impl Fn(&str) -> String) -> Self {
        let bytes = |piece: &&str| fold(piece).into_bytes();
        let (first, others) = pieces.split_first().unwrap_or((&"", &[]));
        let (last, middle) = match others.split_last() {
            Some((last, middle)) => (Some(bytes(last)), middle),
            None => (None, others),
        };
        let middle = middle.iter().filter(|piece| !piece.is_empty()).map(bytes);
        Self {
            first: bytes(first),
            middle: middle.map(|piece| Needle::new(&piece)).collect(),
            last,
        }
    }

    /// Returns the text between the first and the last piece, if it begins and ends with them.
    fn middle_of<'t>(
        &self,
        text: &'t [u8],
        is_same: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Option<&'t [u8]> {
        let Some(last) = &self.last else { return is_same(&self.first, text).then_some(&[]) };
        let (start, rest) = text.split_at_checked(self.first.len())?;
        let (middle, end) = rest.split_at_checked(rest.len().checked_sub(last.len())?)?;
        (is_same(&self.first, start) && is_same(last, end)).then_some(middle)
    }

    /// Returns whether the middle pieces are in the text, in this order.
    fn are_in(&self, mut text: &[u8]) -> bool {
        if self.middle.is_empty() {
            return true;
        }
        #[cfg(test)]
        work::note(text.len());
        self.middle.iter().all(|needle| {
            let end = needle.find_end(text);
            text = &text[end.unwrap_or_default()..];
            end.is_some()
        })
    }
}

/// A text to search for, in linear time.
#[derive(Clone, Debug)]
struct Needle(Finder<'static>);

impl Needle {
    fn new(bytes: &[u8]) -> Self {
        Self(Finder::new(bytes).into_owned())
    }

    /// Returns where the first match ends.
    fn find_end(&self, text: &[u8]) -> Option<usize> {
        self.0.find(text).map(|at| at + self.0.needle().len())
    }
}

impl PartialEq for Needle {
    fn eq(&self, other: &Self) -> bool {
        self.0.needle() == other.0.needle()
    }
}

impl Eq for Needle {}

impl Hash for Needle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.needle().hash(state);
    }
}

/// Counts searches, for tests of their bound.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    /// The searches of a thread, and the maximum number of bytes that they read.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Work {
        pub(crate) searches: usize,
        pub(crate) bytes: usize,
    }

    thread_local! {
        static WORK: Cell<Work> = const { Cell::new(Work { searches: 0, bytes: 0 }) };
    }

    pub(super) fn note(bytes: usize) {
        let Work { searches, bytes: before } = WORK.get();
        WORK.set(Work { searches: searches + 1, bytes: before + bytes });
    }

    /// Returns the work that the task caused on this thread.
    pub(crate) fn of(task: impl FnOnce()) -> Work {
        WORK.set(Work::default());
        task();
        WORK.get()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, matching: &[&str], other: &[&str]) {
        let glob = Glob::new(pattern);
        for text in matching {
            assert!(glob.matches(text.as_bytes()), "{pattern} {text}");
        }
        for text in other {
            assert!(!glob.matches(text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn a_star_matches_any_characters_or_none() {
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
    fn a_pattern_of_many_stars_takes_linear_time() {
        let glob = Glob::new(&"*aaaaaaaab".repeat(40));
        assert!(!glob.matches(&b"a".repeat(1 << 20)));
    }

    /// The definition, in exponential time.
    fn matches_by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => {
                (0..=text.len()).any(|skip| matches_by_definition(rest, &text[skip..]))
            }
            ([a, pattern @ ..], [b, text @ ..]) if a == b => matches_by_definition(pattern, text),
            _ => pattern.is_empty() && text.is_empty(),
        }
    }

    proptest! {
        #[test]
        fn a_glob_matches_by_definition(pattern in "[ab*]{0,8}", text in "[abA]{0,10}") {
            let glob = Glob::new(&pattern);
            let expected = matches_by_definition(pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(glob.matches(text.as_bytes()), expected);
            let lower = text.to_ascii_lowercase();
            let expected = matches_by_definition(pattern.as_bytes(), lower.as_bytes());
            prop_assert_eq!(glob.matches_ignoring_case(text.as_bytes()), expected);
        }

        #[test]
        fn a_glob_never_panics(pattern in any::<String>(), text in any::<Vec<u8>>()) {
            let _ = Glob::new(&pattern).matches(&text);
            let _ = Glob::new(&pattern).matches_ignoring_case(&text);
        }
    }
}
