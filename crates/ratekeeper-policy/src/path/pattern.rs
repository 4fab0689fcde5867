//! Path patterns of a policy.

use std::ops::Range;

use super::glob::Glob;
use super::normalize::decode;
use super::split_first;

/// Maximum number of segments of a pattern. A deeper path can only match a pattern that ends in `**`.
const SEGMENTS_MAX: usize = 64;

/// A path pattern such as `/users/{id}/orders`, `/static/**` or `/files/*.png`.
///
/// `*` and `{name}` match exactly one segment, a `*` within a segment matches any characters or none,
/// and `**` at the end matches any number of segments. Everything else is literal and case-sensitive.
/// Escapes are decoded as in requests: `%2A` is a literal `*`.
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
    /// Whether further segments may follow (`**`).
    pub(super) open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Literal(String),
    Any,
    Glob(Glob),
}

impl Segment {
    /// Returns what follows this segment in a path, if the path begins with it. A literal is compared
    /// without searching for the end of the path's segment, which may be long.
    fn rest_of<'p>(&self, path: &'p str, if_too_long: Option<bool>) -> Option<&'p str> {
        if let Self::Literal(literal) = self {
            let rest = path.strip_prefix(literal)?;
            return if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') };
        }
        let (segment, rest) = split_first(path)?;
        let matches = match (self, if_too_long) {
            (Self::Glob(glob), Some(assumed)) => glob.matches_bounded(segment.as_bytes(), assumed),
            (Self::Glob(glob), None) => glob.matches(segment.as_bytes()),
            _ => true,
        };
        matches.then_some(rest)
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Literal(one), Self::Literal(other)) => one == other,
            (Self::Glob(glob), Self::Literal(other)) => glob.matches(other.as_bytes()),
            (Self::Glob(glob), Self::Glob(other)) => glob.covers(other),
            (Self::Literal(_) | Self::Glob(_), _) => false,
        }
    }

    fn is_disjoint(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => false,
            (Self::Literal(one), Self::Literal(other)) => one != other,
            (Self::Literal(one), Self::Glob(glob)) | (Self::Glob(glob), Self::Literal(one)) => {
                !glob.matches(one.as_bytes())
            }
            (Self::Glob(one), Self::Glob(other)) => one.is_disjoint(other),
        }
    }
}

impl PathPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// If the text is not a pattern, or could never match a normalized path.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(PatternErrorKind::NoSlash.at(0..text.len()));
        };
        let mut pattern = Self { text: text.to_owned(), segments: Vec::new(), open: false };
        if path.is_empty() {
            return Ok(pattern);
        }
        // A trailing slash is removed, as in requests.
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
            return Err(PatternErrorKind::DoubleStarNotLast.at(at - 3..at - 1));
        }
        if raw.is_empty() {
            return Err(PatternErrorKind::RepeatedSlash.at(at - 1..at + 1));
        }
        if raw == "**" {
            self.open = true;
            return Ok(());
        }
        if self.segments.len() == SEGMENTS_MAX {
            return Err(PatternErrorKind::TooManySegments.at(span));
        }
        let segment = parse_segment(raw);
        self.segments.push(segment.map_err(|kind| kind.at(span))?);
        Ok(())
    }

    /// Returns whether a path matches that was [normalized](super::normalize).
    #[must_use]
    pub fn matches(&self, normalized: &str) -> bool {
        self.matches_inner(normalized, None)
    }

    /// Does the same in bounded time: where text between two `*` would have to be searched for in a long
    /// segment, the result is `assumed`. A limit assumes a match and an exemption none, so that a long
    /// path never evades a limit.
    pub(crate) fn matches_bounded(&self, normalized: &str, assumed: bool) -> bool {
        self.matches_inner(normalized, Some(assumed))
    }

    /// Returns how many segments need a search for text between two `*`.
    pub(crate) fn searches(&self) -> usize {
        let searched =
            |segment: &&Segment| matches!(segment, Segment::Glob(glob) if glob.needs_search());
        self.segments.iter().filter(searched).count()
    }

    fn matches_inner(&self, normalized: &str, if_too_long: Option<bool>) -> bool {
        let mut rest = normalized.strip_prefix('/').unwrap_or(normalized);
        for segment in &self.segments {
            match segment.rest_of(rest, if_too_long) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        self.open || rest.is_empty()
    }

    /// Returns whether this is known to match every path that another pattern matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let is_long_enough = match self.open {
            true => other.segments.len() >= self.segments.len(),
            false => other.segments.len() == self.segments.len() && !other.open,
        };
        let mut pairs = self.segments.iter().zip(&other.segments);
        is_long_enough && pairs.all(|(one, other)| one.covers(other))
    }

    /// Returns whether this is known to match no path that another pattern matches.
    pub(crate) fn is_disjoint(&self, other: &Self) -> bool {
        let (len, of_len) = (self.segments.len(), other.segments.len());
        let differs_in_length = !self.open && of_len > len || !other.open && len > of_len;
        let mut pairs = self.segments.iter().zip(&other.segments);
        differs_in_length || pairs.any(|(one, other)| one.is_disjoint(other))
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether exactly one path matches.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        let literal = |segment: &Segment| matches!(segment, Segment::Literal(_));
        !self.open && self.segments.iter().all(literal)
    }
}

fn parse_segment(raw: &str) -> Result<Segment, PatternErrorKind> {
    if raw == "*" || is_name(raw)? {
        return Ok(Segment::Any);
    }
    if raw.contains("**") {
        return Err(PatternErrorKind::DoubleStarInSegment);
    }
    let pieces = raw.split('*').map(literal).collect::<Result<Vec<_>, _>>()?;
    match &pieces[..] {
        [only] => whole_literal(only),
        _ => Ok(Segment::Glob(Glob::from_pieces(pieces.iter().map(String::as_str)))),
    }
}

/// Returns whether the segment is `{name}`.
fn is_name(raw: &str) -> Result<bool, PatternErrorKind> {
    if !raw.contains(['{', '}']) {
        return Ok(false);
    }
    let Some(name) = raw.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return Err(PatternErrorKind::NameInSegment);
    };
    let in_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match name {
        "" => Err(PatternErrorKind::EmptyName),
        _ if name.chars().all(in_names) => Ok(true),
        _ => Err(PatternErrorKind::InvalidName),
    }
}

fn whole_literal(segment: &str) -> Result<Segment, PatternErrorKind> {
    match segment {
        "." | ".." => Err(PatternErrorKind::DotSegment(segment.to_owned())),
        _ => Ok(Segment::Literal(segment.to_owned())),
    }
}

fn literal(raw: &str) -> Result<String, PatternErrorKind> {
    if raw.contains('?') {
        return Err(PatternErrorKind::Query);
    }
    let text = decode(raw);
    match text.chars().find(|c| matches!(c, '/' | '\\' | ';')) {
        Some(';') => Err(PatternErrorKind::PathParameter),
        Some(_) => Err(PatternErrorKind::EscapedSlash),
        None => Ok(text),
    }
}

/// Why a text is not a path pattern, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct PatternError {
    span: Range<usize>,
    kind: PatternErrorKind,
}

impl PatternError {
    /// Returns the bytes of the text that are wrong.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns what is wrong.
    #[must_use]
    pub fn kind(&self) -> &PatternErrorKind {
        &self.kind
    }
}

/// What is wrong with a path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternErrorKind {
    /// It does not start with a slash.
    #[error("a path pattern starts with `/`")]
    NoSlash,
    /// It has two slashes in a row.
    #[error("this can never match: repeated slashes count as one")]
    RepeatedSlash,
    /// It has too many segments.
    #[error("a path pattern has at most {SEGMENTS_MAX} segments")]
    TooManySegments,
    /// `**` is not the last segment.
    #[error("`**` can only be at the end")]
    DoubleStarNotLast,
    /// `**` is a part of a segment.
    #[error("`**` must be a whole segment, at the end of the pattern")]
    DoubleStarInSegment,
    /// `{name}` is a part of a segment.
    #[error(
        "`{{name}}` must be a whole segment; use `*` for a part of a segment, or `%7B` and `%7D` for \
         the characters"
    )]
    NameInSegment,
    /// The braces are empty.
    #[error("the name between `{{` and `}}` is missing")]
    EmptyName,
    /// The name has other characters.
    #[error("a name has only letters, digits, `_` and `-`")]
    InvalidName,
    /// A segment is `.` or `..`.
    #[error("this can never match: `{0}` is resolved in requests")]
    DotSegment(String),
    /// It has a query.
    #[error("this can never match: a path has no query; use `%3F` for the character `?`")]
    Query,
    /// It has a path parameter.
    #[error("this can never match: `;` and what follows is removed from requests")]
    PathParameter,
    /// A segment has an escaped slash.
    #[error("this can never match: `\\`, `%2F` and `%5C` count as `/`")]
    EscapedSlash,
}

impl PatternErrorKind {
    fn at(self, span: Range<usize>) -> PatternError {
        PatternError { span, kind: self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::glob::SEARCHED_MAX;
    use super::super::normalize;
    use super::*;

    fn check(pattern: &str, matching: &[&str], other: &[&str]) {
        let parsed = PathPattern::parse(pattern).unwrap();
        assert_eq!(parsed.as_str(), pattern);
        for path in matching {
            assert!(parsed.matches(&normalize(path)), "{pattern} {path}");
        }
        for path in other {
            assert!(!parsed.matches(&normalize(path)), "{pattern} {path}");
        }
    }

    fn reject(pattern: &str, wrong: &str, part: &str) {
        let error = PathPattern::parse(pattern).unwrap_err();
        assert_eq!(&pattern[error.span()], wrong, "{pattern}: {error}");
        assert!(error.to_string().contains(part), "{pattern}: {error}");
    }

    #[test]
    fn literals_match_only_their_path() {
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
    fn a_long_segment_is_not_searched_but_its_affixes_are_compared() {
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
            assert!(!pattern.matches_bounded(&path("z", SEARCHED_MAX), assumed), "another prefix");
            assert!(!pattern.matches_bounded(&(path("ab", SEARCHED_MAX) + "/e"), assumed));
        }
        assert!(pattern.matches(&path("ab", 1 << 20)));
        let ends = PathPattern::parse("/a*c").unwrap();
        assert!(ends.matches_bounded(&format!("/a{}c", "x".repeat(1 << 20)), false));
    }

    #[test]
    fn a_double_star_matches_any_number_of_segments() {
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
    fn deep_paths_match_only_patterns_that_end_in_a_double_star() {
        let deep = "/a".repeat(1000);
        check("/a/**", &[&deep], &[]);
        check(&format!("{}/**", "/*".repeat(64)), &[&deep, &"/a".repeat(64)], &[&"/a".repeat(63)]);
        check(&"/*".repeat(64), &[&"/a".repeat(64)], &[&deep]);
        reject(&"/*".repeat(65), "*", "at most 64");
    }

    #[test]
    fn patterns_that_can_never_match_are_rejected() {
        reject("", "", "starts with `/`");
        reject("a/b", "a/b", "starts with `/`");
        reject("**", "**", "starts with `/`");
        reject("//", "//", "repeated slashes");
        reject("/a//b", "//", "repeated slashes");
        reject("/a//", "//", "repeated slashes");
        reject("/a/../b", "..", "resolved");
        reject("/a/%2e", "%2e", "resolved");
        reject("/a;x/b", "a;x", "removed");
        reject("/a%3b*", "a%3b*", "removed");
        reject("/a%2Fb", "a%2Fb", "count as `/`");
        reject("/a\\b", "a\\b", "count as `/`");
        reject("/search?q=*", "search?q=*", "query");
        reject("/a/**/b", "**", "at the end");
        reject("/a**", "a**", "whole segment");
        reject("/{}", "{}", "is missing");
        reject("/{a b}", "{a b}", "only letters");
        reject("/{id}.json", "{id}.json", "whole segment");
        reject("/a}", "a}", "whole segment");
    }

    #[test]
    fn only_patterns_that_match_one_path_are_literal() {
        let literal = |text| PathPattern::parse(text).unwrap().is_literal();
        assert!(literal("/") && literal("/a/b") && literal("/%2A"));
        assert!(!literal("/*") && !literal("/{a}") && !literal("/a/**") && !literal("/a*"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in any::<String>(), path in any::<String>()) {
            if let Ok(pattern) = PathPattern::parse(&text) {
                let _ = pattern.matches(&path);
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
