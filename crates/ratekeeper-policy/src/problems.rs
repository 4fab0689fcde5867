//! Collects the problems of a file, each with its position.

use std::fmt;
use std::ops::Range;

use crate::yaml::{Node, Span, Value};

/// Maximum number of problems reported; further ones are only counted.
const PROBLEMS_MAX: usize = 100;

/// Maximum number of characters shown of a line.
const LINE_MAX: usize = 160;
/// Maximum number of characters shown of a quoted text.
const QUOTED_MAX: usize = 60;

/// Quotes a text for a message, truncated to `QUOTED_MAX` characters.
pub(crate) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(QUOTED_MAX).map(visible).collect();
    match shown.chars().count() < text.chars().count() {
        true => format!("\"{shown}…\""),
        false => format!("\"{shown}\""),
    }
}

/// Returns the message of an error and of its sources, except those that it includes already.
#[cfg(feature = "jwt")]
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.map(ToString::to_string).fold(error.to_string(), |text, source| {
        if text.contains(&source) { text } else { format!("{text}: {source}") }
    })
}

/// A problem of a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: usize,
    column: usize,
    width: usize,
    text: String,
    /// Number of characters omitted from the start of the line.
    cut: usize,
    message: String,
}

impl Problem {
    /// Returns the line, counted from 1; 0 if the problem concerns the whole file.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the column in characters, counted from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the text of the line; of a long line, the part around the column.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns what is wrong and how to fix it.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// All problems of a policy file.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; pub use ratekeeper_policy::*; }
/// use ratekeeper::policy::NoSources;
/// use ratekeeper::Policy;
///
/// let text = "version: 1\nlimits:\n  - { name: api, rats: 5/s }\n";
/// let errors = Policy::parse("policy.yaml", text, &NoSources).unwrap_err();
/// assert_eq!(errors.problems()[0].line(), 3);
/// println!("{errors}");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyErrors {
    file: String,
    problems: Vec<Problem>,
    more: usize,
}

/// The same text as `Display`, because it is what `main` prints of an error that it returns.
impl fmt::Debug for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PolicyErrors {
    /// Creates the error for a file that cannot be read.
    #[must_use]
    pub fn unreadable(file: &str, why: impl fmt::Display) -> Self {
        Self::plain(file, &format!("it cannot be read: {why}"))
    }

    /// Creates an error with one problem that concerns the whole file.
    pub(crate) fn plain(file: &str, message: &str) -> Self {
        let (text, message) = (String::new(), message.to_string());
        let problem = Problem { line: 0, column: 0, width: 0, text, cut: 0, message };
        Self { file: file.into(), problems: vec![problem], more: 0 }
    }

    /// Returns the name of the file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the problems, in file order.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                write!(f, "\n\n")?;
            }
            problem.show(f, &self.file)?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\n\n{}: and {more} more", self.file),
        }
    }
}

impl std::error::Error for PolicyErrors {}

impl Problem {
    fn show(&self, f: &mut fmt::Formatter<'_>, file: &str) -> fmt::Result {
        let Self { line, column, text, message, .. } = self;
        if *line == 0 {
            return write!(f, "{file}: {message}");
        }
        let number = line.to_string();
        let before = column.saturating_sub(1 + self.cut).min(LINE_MAX);
        let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(before));
        let rest = text.chars().count().saturating_sub(before).max(1);
        let marks = "^".repeat(self.width.clamp(1, rest));
        writeln!(f, "{file}:{line}:{column}: {message}")?;
        write!(f, "{gutter} |\n{number} | {text}\n{gutter} | {indent}{marks}")
    }
}

/// Collects problems and warnings while a file is read.
#[derive(Debug)]
pub struct Problems {
    file: String,
    lines: Vec<String>,
    found: Vec<Problem>,
    more: usize,
    warnings: Vec<Problem>,
}

impl Problems {
    pub(crate) fn new(file: &str, text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        let lines = text.split(['\n', '\r']).map(Into::into).collect();
        Self { file: file.into(), lines, found: Vec::new(), more: 0, warnings: Vec::new() }
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Reports a problem, unless there is one at the same position, of which it is likely a consequence.
    pub fn report(&mut self, span: Span, message: impl Into<String>) {
        if !self.found.iter().any(|p| (p.line, p.column) == (span.line, span.column)) {
            self.report_also(span, message);
        }
    }

    /// Reports a problem even if there is another one at the same position.
    pub(crate) fn report_also(&mut self, span: Span, message: impl Into<String>) {
        if self.is_full() {
            self.more += 1;
            return;
        }
        let message = message.into();
        let Span { line, column, .. } = span;
        if self.found.iter().any(|p| (p.line, p.column) == (line, column) && p.message == message) {
            return;
        }
        let problem = self.problem(span, message);
        self.found.push(problem);
    }

    /// Adds a warning: something valid that may be a mistake.
    pub(crate) fn warn(&mut self, span: Span, message: impl Into<String>) {
        if self.warnings.len() < PROBLEMS_MAX {
            let problem = self.problem(span, message.into());
            self.warnings.push(problem);
        }
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<Problem> {
        self.warnings.sort_by_key(|problem| (problem.line, problem.column));
        std::mem::take(&mut self.warnings)
    }

    fn problem(&self, span: Span, message: String) -> Problem {
        let Span { line, column, width } = span;
        let whole = self.line(line);
        let marked: String = whole.chars().skip(column.saturating_sub(1)).take(width).collect();
        let width = marked.trim_end().chars().count();
        let cut = if column > LINE_MAX * 3 / 4 { column - LINE_MAX / 2 } else { 0 };
        let text = whole.chars().skip(cut).take(LINE_MAX).map(visible).collect();
        Problem { line, column, width, text, cut, message }
    }

    /// Returns the span of a byte range of a scalar's text. If the scalar is written with escapes or over
    /// several lines, returns the span of the whole scalar.
    #[must_use]
    pub fn span_of(&self, node: &Node, part: Range<usize>) -> Span {
        let Value::Scalar { text, is_quoted } = &node.value else { return node.span };
        if self.is_full() {
            return node.span;
        }
        let before = node.span.column - 1 + usize::from(*is_quoted);
        let written = self.line(node.span.line).chars().skip(before);
        if text.is_empty() || !written.take(text.chars().count()).eq(text.chars()) {
            return node.span;
        }
        let chars = |bytes: Range<usize>| text.get(bytes).map_or(0, |part| part.chars().count());
        let column = before + 1 + chars(0..part.start);
        Span { line: node.span.line, column, width: chars(part).max(1) }
    }

    fn line(&self, number: usize) -> &str {
        number.checked_sub(1).and_then(|i| self.lines.get(i)).map_or("", String::as_str)
    }

    /// Masks a span, such as a secret, in the lines shown with problems.
    pub(crate) fn hide(&mut self, span: Span) {
        let line = span.line.checked_sub(1).and_then(|i| self.lines.get_mut(i));
        let Some(line) = line else { return };
        let hidden = span.column - 1..span.column - 1 + span.width;
        let hide = |(at, c)| if hidden.contains(&at) { '*' } else { c };
        *line = line.chars().enumerate().map(hide).collect();
    }

    /// Masks what may be a secret in a file that cannot be parsed, so that no field is known: what follows
    /// the word "secret", and the user and password of an address.
    pub(crate) fn hide_likely_secrets(&mut self) {
        for index in 0..self.lines.len() {
            let line = &self.lines[index];
            let chars = |bytes: usize| line[..bytes].chars().count();
            let after_word = line.find("secret").map(|at| {
                let word = line[at..].find([':', ' ']).map_or(line.len(), |end| at + end + 1);
                chars(word)..chars(line.len())
            });
            let in_address = line
                .find("://")
                .zip(line.rfind('@'))
                .map(|(start, end)| chars(start + 3)..chars(end.max(start + 3)));
            for hidden in [after_word, in_address].into_iter().flatten() {
                let (column, width) = (hidden.start + 1, hidden.len());
                self.hide(Span { line: index + 1, column, width });
            }
        }
    }

    /// Whether the maximum is reached, so that further problems are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= PROBLEMS_MAX
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns all problems in the order of the file.
    #[must_use]
    pub fn into_errors(mut self) -> PolicyErrors {
        self.found.sort_by_key(|problem| (problem.line, problem.column));
        PolicyErrors { file: self.file, problems: self.found, more: self.more }
    }
}

/// Replaces control characters by blanks.
fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}
