//! Patterns of paths, as a policy writes them.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use super::glob::Glob;
use super::normalize::decode;
use super::split_first;

/// As many segments as a pattern may have. A deeper path can only match one that ends in `**`.
const SEGMENTS_MAX: usize = 64;

/// A pattern of paths such as `/users/{id}/orders`, `/static/**` or `/files/*.png`.
///
/// `*` and `{name}` are exactly one segment, a `*` within a segment is any run of characters, and
/// `**` at the end is any rest, none included. All else is literal, in the case it is written in,
/// and escapes are decoded as they are in requests: `%2A` is a literal `*`.
///
/// ```
/// # use ratekeeper_policy::path::PathPattern;
/// let pattern = PathPattern::parse("/users/{id}/orders")?;
/// assert!(pattern.matches("/users/7/orders"));
/// # Ok::<(), ratekeeper_policy::path::PatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: String,
    pub(super) segments: Vec<Segment>,
    /// Whether any rest may follow the segments.
    pub(super) open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Literal(String),
    Any,
    Glob(Glob),
}

impl Segment {
    /// What follows this segment of a path, if the path begins with it. A literal is compared without
    /// a look for the end of the path's own segment, which may be far.
    fn rest_of<'p>(&self, path: &'p str, when_too_long: Option<bool>) -> Option<&'p str> {
        if let Self::Literal(literal) = self {
            let rest = path.strip_prefix(literal)?;
            return if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') };
        }
        let (segment, rest) = split_first(path)?;
        let fits = match (self, when_too_long) {
            (Self::Glob(glob), Some(assumed)) => glob.matches_bounded(segment.as_bytes(), assumed),
            (Self::Glob(glob), None) => glob.matches(segment.as_bytes()),
            _ => true,
        };
        fits.then_some(rest)
    }
}

impl PathPattern {
    /// Reads a pattern. One that could never match a path is refused.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(PatternError::new(0..text.len(), "a path pattern starts with `/`"));
        };
        let mut pattern = Self { text: text.to_owned(), segments: Vec::new(), open: false };
        if path.is_empty() {
            return Ok(pattern);
        }
        // A slash at the end is cut, as it is in requests.
        let mut at = 1;
        for segment in path.strip_suffix('/').unwrap_or(path).split('/') {
            pattern.push(segment, at)?;
            at += segment.len() + 1;
        }
        Ok(pattern)
    }

    fn push(&mut self, raw: &str, at: usize) -> Result<(), PatternError> {
        let span = at..at + raw.len();
        if self.open {
            return Err(PatternError::new(at - 3..at - 1, "`**` can only be at the end"));
        }
        if raw.is_empty() {
            let message = "this can never match: repeated slashes count as one";
            return Err(PatternError::new(at - 1..at + 1, message));
        }
        if raw == "**" {
            self.open = true;
            return Ok(());
        }
        if self.segments.len() == SEGMENTS_MAX {
            let message = format!("a path pattern has at most {SEGMENTS_MAX} segments");
            return Err(PatternError::new(span, message));
        }
        let segment = parse_segment(raw);
        self.segments.push(segment.map_err(|message| PatternError::new(span, message))?);
        Ok(())
    }

    /// Whether a path that went through [`normalize`](super::normalize) fits.
    pub fn matches(&self, normalized: &str) -> bool {
        self.fits(normalized, None)
    }

    /// The same in bounded time: where text between two `*` would have to be searched for in a long
    /// segment, `assumed` is the result. A limit assumes that the path fits, an
    /// exemption that it does not, so that nobody gains by a long path.
    pub(crate) fn matches_bounded(&self, normalized: &str, assumed: bool) -> bool {
        self.fits(normalized, Some(assumed))
    }

    /// How many of its segments have to be searched for text between two `*`.
    pub(crate) fn searches(&self) -> usize {
        let searched =
            |segment: &&Segment| matches!(segment, Segment::Glob(glob) if glob.needs_search());
        self.segments.iter().filter(searched).count()
    }

    fn fits(&self, normalized: &str, when_too_long: Option<bool>) -> bool {
        let mut rest = normalized.strip_prefix('/').unwrap_or(normalized);
        for segment in &self.segments {
            match segment.rest_of(rest, when_too_long) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        self.open || rest.is_empty()
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether only one path fits.
    pub fn is_literal(&self) -> bool {
        let literal = |segment: &Segment| matches!(segment, Segment::Literal(_));
        !self.open && self.segments.iter().all(literal)
    }
}

fn parse_segment(raw: &str) -> Result<Segment, String> {
    if raw == "*" || is_name(raw)? {
        return Ok(Segment::Any);
    }
    if raw.contains("**") {
        return Err("`**` takes a whole segment, at the end of the pattern".into());
    }
    let pieces = raw.split('*').map(literal).collect::<Result<Vec<_>, _>>()?;
    match &pieces[..] {
        [only] => whole_literal(only),
        _ => Ok(Segment::Glob(Glob::from_pieces(pieces.iter().map(String::as_str)))),
    }
}

fn is_name(raw: &str) -> Result<bool, String> {
    if !raw.contains(['{', '}']) {
        return Ok(false);
    }
    let Some(name) = raw.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        let remedy = "write `*` for a part of a segment, or `%7B` and `%7D` for the characters";
        return Err(format!("`{{name}}` takes a whole segment: {remedy}"));
    };
    let in_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match name {
        "" => Err("a name is missing between `{` and `}`".into()),
        _ if name.chars().all(in_names) => Ok(true),
        _ => Err("a name has only letters, digits, `_` and `-`".into()),
    }
}

fn whole_literal(segment: &str) -> Result<Segment, String> {
    match segment {
        "." | ".." => Err(format!("this can never match: `{segment}` is resolved in requests")),
        _ => Ok(Segment::Literal(segment.to_owned())),
    }
}

fn literal(raw: &str) -> Result<String, String> {
    if raw.contains('?') {
        return Err("this can never match: a path has no query (write `%3F` for a `?`)".into());
    }
    let text = decode(raw);
    match text.chars().find(|c| matches!(c, '/' | '\\' | ';')) {
        Some(';') => Err("this can never match: `;` and what follows is cut in requests".into()),
        Some(_) => Err("this can never match: `\\`, `%2F` and `%5C` count as `/`".into()),
        None => Ok(text),
    }
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    at: Range<usize>,
    message: String,
}

impl PatternError {
    fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }

    /// The bytes of the text that are wrong.
    pub fn span(&self) -> Range<usize> {
        self.at.clone()
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PatternError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::glob::SEARCHED_MAX;
    use super::super::normalize;
    use super::*;

    fn check(pattern: &str, fits: &[&str], does_not: &[&str]) {
        let parsed = PathPattern::parse(pattern).unwrap();
        assert_eq!(parsed.as_str(), pattern);
        for path in fits {
            assert!(parsed.matches(&normalize(path)), "{pattern} {path}");
        }
        for path in does_not {
            assert!(!parsed.matches(&normalize(path)), "{pattern} {path}");
        }
    }

    fn refuse(pattern: &str, wrong: &str, part: &str) {
        let error = PathPattern::parse(pattern).unwrap_err();
        assert_eq!(&pattern[error.span()], wrong, "{pattern}: {error}");
        assert!(error.to_string().contains(part), "{pattern}: {error}");
    }

    #[test]
    fn literals_match_their_path_only() {
        check("/", &["/", "", "//", "/a/.."], &["/a"]);
        check(
            "/login",
            &["/login", "/%6cogin", "/login/", "/login;x"],
            &["/Login", "/", "/login/a"],
        );
        check("/login/", &["/login", "/login/"], &["/login/a"]);
        check("/Check%6Fut", &["/Checkout"], &["/checkout"]);
        check("/caf%c3%a9", &["/café"], &["/cafe"]);
        check("/%ff", &["/%FF", "/%fF"], &["/%FE"]);
        check("/a%2Ab%7B", &["/a*b{"], &["/aab{"]);
        check("/%2A", &["/*"], &["/a"]);
    }

    #[test]
    fn wildcards_match_segments() {
        check("/*", &["/a", "/a/"], &["/", "/a/b"]);
        check("/users/{id}/orders", &["/users/7/orders"], &["/users/orders", "/users/7/8/orders"]);
        check(
            "/files/*.png",
            &["/files/a.png", "/files/.png"],
            &["/files/a.jpg", "/files/a/b.png"],
        );
        check("/a*b*c", &["/abc", "/axbxbc"], &["/ab", "/a/bc"]);
        check("/v*/x", &["/v1/x", "/v/x"], &["/w/x"]);
    }

    #[test]
    fn a_long_segment_is_not_searched_but_its_ends_are_compared() {
        let pattern = PathPattern::parse("/files/a*b*c/d").unwrap();
        let path = |start: &str, bytes: usize| format!("/files/{start}{}c/d", "x".repeat(bytes));
        for assumed in [true, false] {
            assert_eq!(pattern.matches_bounded(&path("a", SEARCHED_MAX - 1), assumed), assumed);
            assert!(
                !pattern.matches_bounded(&path("a", SEARCHED_MAX - 2), assumed),
                "it is searched"
            );
            assert!(
                pattern.matches_bounded(&path("ab", SEARCHED_MAX - 3), assumed),
                "it is searched"
            );
            assert!(
                !pattern.matches_bounded(&path("z", SEARCHED_MAX), assumed),
                "another beginning"
            );
            assert!(!pattern.matches_bounded(&(path("ab", SEARCHED_MAX) + "/e"), assumed));
        }
        assert!(pattern.matches(&path("ab", 1 << 20)));
        let ends = PathPattern::parse("/a*c").unwrap();
        assert!(ends.matches_bounded(&format!("/a{}c", "x".repeat(1 << 20)), false));
    }

    #[test]
    fn an_open_end_matches_any_rest() {
        check("/**", &["/", "/a", "/a/b/c"], &[]);
        check(
            "/static/**",
            &["/static", "/static/a", "/static/a/b"],
            &["/", "/statics", "/a/static"],
        );
        check("/{a}/**", &["/x", "/x/y"], &["/"]);
        check("/static/**/", &["/static/a"], &[]);
    }

    #[test]
    fn deep_paths_match_open_patterns_only() {
        let deep = "/a".repeat(1000);
        check("/a/**", &[&deep], &[]);
        check(&format!("{}/**", "/*".repeat(64)), &[&deep, &"/a".repeat(64)], &[&"/a".repeat(63)]);
        check(&"/*".repeat(64), &[&"/a".repeat(64)], &[&deep]);
        refuse(&"/*".repeat(65), "*", "at most 64");
    }

    #[test]
    fn what_can_never_match_is_refused() {
        refuse("", "", "starts with `/`");
        refuse("a/b", "a/b", "starts with `/`");
        refuse("**", "**", "starts with `/`");
        refuse("//", "//", "repeated slashes");
        refuse("/a//b", "//", "repeated slashes");
        refuse("/a//", "//", "repeated slashes");
        refuse("/a/../b", "..", "resolved");
        refuse("/a/%2e", "%2e", "resolved");
        refuse("/a;x/b", "a;x", "cut");
        refuse("/a%3b*", "a%3b*", "cut");
        refuse("/a%2Fb", "a%2Fb", "count as `/`");
        refuse("/a\\b", "a\\b", "count as `/`");
        refuse("/search?q=*", "search?q=*", "query");
        refuse("/a/**/b", "**", "at the end");
        refuse("/a**", "a**", "whole segment");
        refuse("/{}", "{}", "name is missing");
        refuse("/{a b}", "{a b}", "only letters");
        refuse("/{id}.json", "{id}.json", "whole segment");
        refuse("/a}", "a}", "whole segment");
    }

    #[test]
    fn only_patterns_of_one_path_are_literal() {
        let literal = |text| PathPattern::parse(text).unwrap().is_literal();
        assert!(literal("/") && literal("/a/b") && literal("/%2A"));
        assert!(!literal("/*") && !literal("/{a}") && !literal("/a/**") && !literal("/a*"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in any::<String>(), path in any::<String>()) {
            if let Ok(pattern) = PathPattern::parse(&text) {
                pattern.matches(&path);
            }
        }

        #[test]
        fn an_error_points_into_the_text(text in "[/a*{};.%2é]{0,12}") {
            if let Err(error) = PathPattern::parse(&text) {
                prop_assert!(text.get(error.span()).is_some());
            }
        }

        #[test]
        fn a_literal_pattern_matches_itself(text in "(/[a-zé%0-9A-F.]{1,6}){1,4}") {
            if let Ok(pattern) = PathPattern::parse(&text) {
                prop_assert!(pattern.matches(&normalize(&text)));
            }
        }
    }
}
