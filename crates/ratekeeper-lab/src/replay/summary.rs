//! What was read of the logs, and what was not.

use serde::Serialize;

use crate::access_log::LineError;

/// How many lines that are no requests are shown.
const SHOWN_MAX: usize = 5;
/// How many characters of each.
const TEXT_MAX: usize = 100;

/// Lines that are no requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Skipped {
    pub(super) lines: u64,
    pub(super) blank: u64,
    pub(super) first: Vec<SkippedAt>,
}

#[derive(Clone, Debug)]
pub(super) struct SkippedAt {
    pub(super) file: usize,
    pub(super) line: u64,
    pub(super) why: LineError,
    pub(super) text: String,
}

impl Skipped {
    pub(super) fn add_blank(&mut self) {
        self.blank += 1;
    }

    pub(super) fn add(&mut self, file: usize, line: u64, why: LineError, text: &[u8]) {
        self.lines += 1;
        if self.first.len() < SHOWN_MAX {
            let start = &text[..text.len().min(4 * TEXT_MAX)];
            let text = String::from_utf8_lossy(start).chars().take(TEXT_MAX).collect();
            self.first.push(SkippedAt { file, line, why, text });
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.lines += other.lines;
        self.blank += other.blank;
        let room = SHOWN_MAX - self.first.len();
        self.first.extend(other.first.into_iter().take(room));
    }
}

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkippedLine {
    /// The log.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// Why.
    pub why: String,
    /// The beginning of the line.
    pub text: String,
}

/// A log that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogSummary {
    /// Its name.
    pub name: String,
    /// The format.
    pub format: String,
    /// Why reading it ended before its end.
    pub error: Option<String>,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReadSummary {
    /// The logs.
    pub logs: Vec<LogSummary>,
    /// Lines, blank ones included.
    pub lines: u64,
    /// Requests.
    pub requests: u64,
    /// Lines that are no requests of the format.
    pub skipped: u64,
    /// The first of them.
    pub skipped_lines: Vec<SkippedLine>,
    /// Requests before or after the time that was asked for.
    pub outside: u64,
    /// Requests that are so far out of order that they were decided at a later time.
    pub late: u64,
    /// When the first request was made, in microseconds since 1970.
    pub start_us: u64,
    /// When the last request was made.
    pub end_us: u64,
}
