//! Colours on terminals. Elsewhere, and with `NO_COLOR` or `TERM=dumb`, the same text is printed without them;
//! `CLICOLOR_FORCE` prints them anyway.

use std::io::{Stderr, Stdout};

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const OK: Style = AnsiColor::Green.on_default();
const HEADING: Style = Style::new().bold();
const GUTTER: Style = AnsiColor::Blue.on_default();

/// Returns standard output, which removes colours if they are not wanted.
pub(crate) fn stdout() -> AutoStream<Stdout> {
    anstream::stdout()
}

/// Returns standard error, which removes colours if they are not wanted.
pub(crate) fn stderr() -> AutoStream<Stderr> {
    anstream::stderr()
}

pub(crate) fn error(text: &str) -> String {
    painted(ERROR, text)
}

pub(crate) fn warning(text: &str) -> String {
    painted(WARNING, text)
}

pub(crate) fn ok(text: &str) -> String {
    painted(OK, text)
}

pub(crate) fn heading(text: &str) -> String {
    painted(HEADING, text)
}

/// Paints the errors of a file or of a rate: positions, line numbers and marks.
pub(crate) fn errors(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn line(line: &str) -> String {
    if let Some((number, rest)) = quoted_line(line) {
        return format!("{}{}", painted(GUTTER, number), marks(rest));
    }
    match position(line) {
        Some((position, message)) => format!("{}{message}", painted(HEADING, position)),
        None => marks(line),
    }
}

/// Splits ` 12 | text` after the bar.
fn quoted_line(line: &str) -> Option<(&str, &str)> {
    let bar = line.find(" |")?;
    let is_number = line[..bar].chars().all(|c| c.is_ascii_digit() || c == ' ');
    is_number.then(|| line.split_at(bar + 2))
}

/// Splits `file:12:5: message` after the last colon of the position.
fn position(line: &str) -> Option<(&str, &str)> {
    let end = line.find(": ")?;
    let mut parts = line[..end].rsplit(':');
    let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<usize>().is_ok());
    let is_position = is_number(parts.next()) && is_number(parts.next());
    is_position.then(|| line.split_at(end + 1))
}

/// Paints a line of nothing but marks.
fn marks(text: &str) -> String {
    let marks = text.trim_start_matches(' ');
    let is_marks = !marks.is_empty() && marks.chars().all(|c| c == '^');
    let (indent, marks) = text.split_at(text.len() - marks.len());
    if is_marks { format!("{indent}{}", painted(ERROR, marks)) } else { text.to_string() }
}

fn painted(style: Style, text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!("{style}{text}{style:#}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_line_numbers_and_marks_are_painted() {
        let painted = errors("p.yaml:10:5: no\n   |\n10 | rate: x\n   | ^^^^");
        let lines: Vec<_> = painted.lines().collect();
        assert_eq!(lines[0], "\u{1b}[1mp.yaml:10:5:\u{1b}[0m no");
        assert_eq!(lines[2], "\u{1b}[34m10 |\u{1b}[0m rate: x");
        assert_eq!(lines[3], "\u{1b}[34m   |\u{1b}[0m \u{1b}[1m\u{1b}[31m^^^^\u{1b}[0m");
    }

    proptest! {
        #[test]
        fn without_colours_the_text_is_the_same(text in "[a-z0-9 :|^.\n]{0,80}") {
            let plain = anstream::adapter::strip_str(&errors(&text)).to_string();
            prop_assert_eq!(plain, text);
        }
    }
}
