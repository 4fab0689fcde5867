//! Recorded arrivals: CSV with the header `at_us,key,cost`, sorted by time.

use std::fmt;
use std::io::{self, Chain, Read};

use csv::{ByteRecord, Terminator};
use ratekeeper_core::{Cost, Micros};

use crate::arrival::Arrival;

const HEADER: [&str; 3] = ["at_us", "key", "cost"];
/// The longest accepted line in bytes. A longer one means an unclosed quote, or a file that is not
/// a trace.
const LINE_MAX: usize = 1 << 20;
/// The longest text in an error message, in characters.
const QUOTED_MAX: usize = 60;

/// An iterator over the arrivals of a trace. It streams the input and keeps one line in memory, of
/// at most one megabyte.
///
/// # Examples
/// ```
/// use ratekeeper_lab::Trace;
///
/// let mut trace = Trace::new("at_us,key,cost\n0,ann,1\n1500,\"bob, jr.\",2\n".as_bytes());
/// assert_eq!(trace.next().unwrap()?.key, "ann");
/// assert_eq!(trace.next().unwrap()?.at.get(), 1500);
/// assert!(trace.next().is_none());
/// # Ok::<(), ratekeeper_lab::TraceError>(())
/// ```
pub struct Trace<R> {
    reader: csv::Reader<LimitedReader<Chain<R, &'static [u8]>>>,
    record: ByteRecord,
    last: Micros,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Header,
    Arrivals,
    Done,
}

impl<R: Read> Trace<R> {
    /// Returns the arrivals of `input`. Reads nothing before the first call of `next`.
    pub fn new(input: R) -> Self {
        // A record ends at a line feed only, and the last record has one too, so that line numbers
        // are right. `field` removes the carriage return of CRLF line ends.
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .terminator(Terminator::Any(b'\n'))
            .from_reader(LimitedReader { input: input.chain(&b"\n"[..]), bytes_left: 0 });
        let (record, last) = (ByteRecord::new(), Micros::default());
        Self { reader, record, last, state: State::Header }
    }

    fn read(&mut self) -> Result<Option<Arrival>, TraceError> {
        if self.state == State::Header {
            let found = self.read_record()?;
            self.check_header(found)?;
            self.state = State::Arrivals;
        }
        match self.read_record()? {
            true => self.arrival().map(Some).map_err(|kind| self.error(kind)),
            false => Ok(None),
        }
    }

    /// Reads the next line that is not blank.
    fn read_record(&mut self) -> Result<bool, TraceError> {
        loop {
            self.reader.get_mut().bytes_left = LINE_MAX;
            match self.reader.read_byte_record(&mut self.record) {
                Ok(true) if self.record.len() == 1 && self.field(0).is_empty() => {}
                Ok(found) => return Ok(found),
                Err(_) if self.reader.get_ref().bytes_left == 0 => return Err(self.too_long()),
                Err(error) => return Err(self.error(ErrorKind::Io(error.into()))),
            }
        }
    }

    fn check_header(&self, found: bool) -> Result<(), TraceError> {
        let fields = (0..self.record.len()).map(|i| self.field(i));
        if found && fields.eq(HEADER.map(str::as_bytes)) {
            return Ok(());
        }
        let text = (0..self.record.len()).map(|i| String::from_utf8_lossy(self.field(i)));
        let text = text.collect::<Vec<_>>().join(",");
        Err(self.error(if found { ErrorKind::Header(text) } else { ErrorKind::Empty }))
    }

    fn arrival(&mut self) -> Result<Arrival, ErrorKind> {
        if let Some(missing) = HEADER.get(self.record.len()) {
            let is_quote_unclosed = self.record.as_slice().contains(&b'\n');
            return Err(ErrorKind::Missing { field: missing, is_quote_unclosed });
        }
        if self.record.len() > HEADER.len() {
            return Err(ErrorKind::TooMany(self.record.len()));
        }
        let at = self.time()?;
        let key = std::str::from_utf8(self.field(1)).map_err(|_| ErrorKind::Key)?.to_owned();
        let cost = Cost::new(number("cost", self.field(2))?).ok_or(ErrorKind::ZeroCost)?;
        self.last = at;
        Ok(Arrival { at, key, cost })
    }

    fn time(&self) -> Result<Micros, ErrorKind> {
        let us = number("at_us", self.field(0))?;
        let at = Micros::new(us);
        if at.get() != us {
            return Err(ErrorKind::TooLate(us));
        }
        if at < self.last {
            return Err(ErrorKind::OutOfOrder { from: self.last, to: at });
        }
        Ok(at)
    }

    fn field(&self, i: usize) -> &[u8] {
        let field = self.record.get(i).unwrap_or_default();
        let is_last = i + 1 == self.record.len();
        if is_last { field.strip_suffix(b"\r").unwrap_or(field) } else { field }
    }

    fn error(&self, kind: ErrorKind) -> TraceError {
        TraceError { line: self.line(), kind }
    }

    /// Reports the line where the search for the record began: its end is unknown.
    fn too_long(&self) -> TraceError {
        TraceError { line: self.search_start(), kind: ErrorKind::TooLong }
    }

    /// Returns the line on which the record begins. The reader only knows where the search for it
    /// began, which may be blank lines before, and where the record ended.
    fn line(&self) -> u64 {
        let inner = self.record.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
        self.search_start().max(self.reader.position().line().saturating_sub(1 + inner))
    }

    fn search_start(&self) -> u64 {
        self.record.position().map_or(1, |position| position.line())
    }
}

/// A reader that fails after `bytes_left` bytes, to bound the length of a line.
struct LimitedReader<R> {
    input: R,
    bytes_left: usize,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes_left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let max = buffer.len().min(self.bytes_left);
        let read = self.input.read(&mut buffer[..max])?;
        self.bytes_left -= read;
        Ok(read)
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Arrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Done {
            return None;
        }
        let next = self.read().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.state = State::Done;
        }
        next
    }
}

impl<R> fmt::Debug for Trace<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("last", &self.last).finish_non_exhaustive()
    }
}

fn number(field: &'static str, bytes: &[u8]) -> Result<u64, ErrorKind> {
    let text = String::from_utf8_lossy(bytes);
    let invalid = |reason| ErrorKind::Number { field, text: text.to_string(), reason };
    let digits = text.strip_prefix('-').unwrap_or(&text);
    if digits.is_empty() || digits.contains(|c: char| !c.is_ascii_digit()) {
        return Err(invalid("it must be a whole number"));
    }
    if digits.len() < text.len() {
        return Err(invalid("it cannot be negative"));
    }
    text.parse().map_err(|_| invalid("it is too large"))
}

/// Quotes a text, shortened if it is too long for a message.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{:?}", text[..end].to_owned() + "…"),
        None => format!("{text:?}"),
    }
}

/// An error in a trace, and its line. The header is line 1.
#[derive(Debug)]
pub struct TraceError {
    line: u64,
    kind: ErrorKind,
}

#[derive(Debug)]
enum ErrorKind {
    Io(io::Error),
    Empty,
    Header(String),
    Missing { field: &'static str, is_quote_unclosed: bool },
    TooLong,
    TooMany(usize),
    Number { field: &'static str, text: String, reason: &'static str },
    ZeroCost,
    Key,
    TooLate(u64),
    OutOfOrder { from: Micros, to: Micros },
}

impl TraceError {
    /// Returns the line, counted from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns whether reading failed. Otherwise the content is invalid.
    #[must_use]
    pub fn is_io(&self) -> bool {
        matches!(self.kind, ErrorKind::Io(_))
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trace line {}: {}", self.line, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = HEADER.join(",");
        match self {
            Self::Io(error) => write!(f, "cannot be read: {error}"),
            Self::Empty => write!(f, "the trace is empty; it must begin with the header {header}"),
            Self::Header(text) => {
                write!(f, "the header is {}; it must be {header}", quoted(text))
            }
            Self::Missing { field, is_quote_unclosed } => {
                let hint = if *is_quote_unclosed { "; is a quote left open?" } else { "" };
                write!(f, "{field} is missing; a line is {header}{hint}")
            }
            Self::TooLong => {
                let megabytes = LINE_MAX >> 20;
                write!(f, "the line is longer than {megabytes} MB; is a quote left open?")
            }
            Self::TooMany(n) => {
                write!(
                    f,
                    "there are {n} fields; a line is {header}, and a key with commas must be quoted"
                )
            }
            Self::Number { field, text, reason } => {
                write!(f, "{field} is {}; {reason}", quoted(text))
            }
            Self::ZeroCost => f.write_str("cost is 0; a cost must be at least 1"),
            Self::Key => f.write_str("the key is not valid UTF-8"),
            Self::TooLate(us) => {
                write!(f, "at_us is {us}; the latest time is {}", Micros::MAX.get())
            }
            Self::OutOfOrder { from, to } => {
                let (from, to) = (from.get(), to.get());
                write!(f, "time goes back from {from} to {to}; a trace must be sorted by time")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}
