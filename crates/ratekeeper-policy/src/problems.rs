//! What is wrong with a policy: all of it, each with its place.

use std::fmt;
use std::ops::Range;

use crate::yaml::{Node, Span, Value};

/// So many are told. A file with more has one cause.
const PROBLEMS_MAX: usize = 100;

/// As much of a line as is shown, and of a text that is quoted.
const LINE_MAX: usize = 160;
const QUOTED_MAX: usize = 60;

/// A text in quotes, shortened if it is too long for a message.
pub(crate) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(QUOTED_MAX).map(visible).collect();
    match shown.chars().count() < text.chars().count() {
        true => format!("\"{shown}…\""),
        false => format!("\"{shown}\""),
    }
}

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: usize,
    column: usize,
    width: usize,
    text: String,
    /// How much of the line's beginning was left out of the text.
    cut: usize,
    message: String,
}

impl Problem {
    /// The line, counted from 1; 0 if it is about the whole file.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column, counted from 1 in characters.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The line's text, or of a long line the part around the column.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is wrong, and what would do.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Everything that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyErrors {
    file: String,
    problems: Vec<Problem>,
    more: usize,
}

impl PolicyErrors {
    /// A policy that cannot even be read.
    pub fn unreadable(file: &str, why: impl fmt::Display) -> Self {
        Self::plain(file, &format!("it cannot be read: {why}"))
    }

    /// One problem with the whole of it.
    pub(crate) fn plain(file: &str, message: &str) -> Self {
        let (text, message) = (String::new(), message.to_string());
        let problem = Problem { line: 0, column: 0, width: 0, text, cut: 0, message };
        Self { file: file.into(), problems: vec![problem], more: 0 }
    }

    /// The file, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Each of them, in the order of the file.
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

/// Problems as they are found.
pub(crate) struct Problems {
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

    /// One problem at a place is enough: the next one there follows from it.
    pub(crate) fn report(&mut self, span: Span, message: impl Into<String>) {
        if !self.found.iter().any(|p| (p.line, p.column) == (span.line, span.column)) {
            self.report_also(span, message);
        }
    }

    /// Something else that is wrong at a place.
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

    /// Something that is allowed, but perhaps not what was meant.
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

    /// The place of a part of a scalar's text, given in bytes. A text that was written differently,
    /// with escapes or over several lines, is shown whole.
    pub(crate) fn span_of(&self, node: &Node, part: Range<usize>) -> Span {
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

    /// What stands there is not shown with problems.
    pub(crate) fn hide(&mut self, span: Span) {
        let line = span.line.checked_sub(1).and_then(|i| self.lines.get_mut(i));
        let Some(line) = line else { return };
        let hidden = span.column - 1..span.column - 1 + span.width;
        let hide = |(at, c)| if hidden.contains(&at) { '*' } else { c };
        *line = line.chars().enumerate().map(hide).collect();
    }

    /// Are there so many that more are only counted?
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= PROBLEMS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(crate) fn into_errors(mut self) -> PolicyErrors {
        self.found.sort_by_key(|problem| (problem.line, problem.column));
        PolicyErrors { file: self.file, problems: self.found, more: self.more }
    }
}

/// A blank instead of a character that would move the cursor.
fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}
