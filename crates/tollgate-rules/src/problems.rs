//! What is wrong with a policy: all of it, each with its place.

use std::fmt;

use crate::yaml::Span;

/// So many are told. A file with more has one cause.
const PROBLEMS_MAX: usize = 100;

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: usize,
    column: usize,
    width: usize,
    text: String,
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

    /// The line's text.
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
}

impl PolicyErrors {
    /// A policy that cannot even be read.
    pub fn unreadable(file: &str, why: impl fmt::Display) -> Self {
        Self::plain(file, &format!("it cannot be read: {why}"))
    }

    /// One problem with the whole of it.
    pub(crate) fn plain(file: &str, message: &str) -> Self {
        let (text, message) = (String::new(), message.to_string());
        let problem = Problem { line: 0, column: 0, width: 0, text, message };
        Self { file: file.into(), problems: vec![problem] }
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
        Ok(())
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
        let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(column.saturating_sub(1)));
        let rest = text.chars().count().saturating_sub(column.saturating_sub(1)).max(1);
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
}

impl Problems {
    pub(crate) fn new(file: &str, text: &str) -> Self {
        Self { file: file.into(), lines: text.lines().map(printable).collect(), found: Vec::new() }
    }

    pub(crate) fn report(&mut self, span: Span, message: impl Into<String>) {
        let text = span.line.checked_sub(1).and_then(|i| self.lines.get(i)).cloned();
        // One problem at a place is enough: the next one there follows from it.
        if self.found.iter().any(|p| (p.line, p.column) == (span.line, span.column)) {
            return;
        }
        if self.found.len() < PROBLEMS_MAX {
            self.found.push(Problem {
                line: span.line,
                column: span.column,
                width: span.width,
                text: text.unwrap_or_default(),
                message: message.into(),
            });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(crate) fn into_errors(mut self) -> PolicyErrors {
        self.found.sort_by_key(|problem| (problem.line, problem.column));
        PolicyErrors { file: self.file, problems: self.found }
    }
}

/// Without characters that would move the cursor, and of a length that can be read.
fn printable(line: &str) -> String {
    line.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
