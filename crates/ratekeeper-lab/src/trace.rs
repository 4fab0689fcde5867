//! Recorded arrivals: CSV with the header `at_us,key,cost`, in the order of time.

use std::fmt;
use std::io::{self, Chain, Read};

use csv::{ByteRecord, Terminator};
use ratekeeper_core::{Cost, Micros};

use crate::arrival::Arrival;

const HEADER: [&str; 3] = ["at_us", "key", "cost"];
/// The longest line, in bytes, that is read: what is longer is no trace, or a quote is left open.
const LINE_MAX: usize = 1 << 20;
/// As much of a text as is shown, in characters.
const SHOWN_MAX: usize = 60;

/// An iterator over the arrivals of a trace. It reads as it goes and remembers one line, of at most a
/// megabyte.
///
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
    reader: csv::Reader<Rationed<Chain<R, &'static [u8]>>>,
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
    /// The arrivals that `input` holds. Nothing is read before the first is asked for.
    pub fn new(input: R) -> Self {
        // Records end at a line feed and nowhere else, and the last one has one too: that is what
        // makes line numbers right. The carriage return of other systems is taken off by hand.
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .terminator(Terminator::Any(b'\n'))
            .from_reader(Rationed { input: input.chain(&b"\n"[..]), ration: 0 });
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
            true => self.arrival().map(Some).map_err(|problem| self.error(problem)),
            false => Ok(None),
        }
    }

    /// Reads the next line that is not blank.
    fn read_record(&mut self) -> Result<bool, TraceError> {
        loop {
            self.reader.get_mut().ration = LINE_MAX;
            match self.reader.read_byte_record(&mut self.record) {
                Ok(true) if self.record.len() == 1 && self.field(0).is_empty() => {}
                Ok(found) => return Ok(found),
                Err(_) if self.reader.get_ref().ration == 0 => return Err(self.too_long()),
                Err(error) => return Err(self.error(Problem::Io(error.into()))),
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
        Err(self.error(if found { Problem::Header(text) } else { Problem::Empty }))
    }

    fn arrival(&mut self) -> Result<Arrival, Problem> {
        if let Some(missing) = HEADER.get(self.record.len()) {
            let is_quote_open = self.record.as_slice().contains(&b'\n');
            return Err(Problem::Missing { field: missing, is_quote_open });
        }
        if self.record.len() > HEADER.len() {
            return Err(Problem::TooMany(self.record.len()));
        }
        let at = self.time()?;
        let key = std::str::from_utf8(self.field(1)).map_err(|_| Problem::Key)?.to_owned();
        let cost = Cost::new(number("cost", self.field(2))?).ok_or(Problem::ZeroCost)?;
        self.last = at;
        Ok(Arrival { at, key, cost })
    }

    fn time(&self) -> Result<Micros, Problem> {
        let us = number("at_us", self.field(0))?;
        let at = Micros::new(us);
        if at.get() != us {
            return Err(Problem::TooLate(us));
        }
        if at < self.last {
            return Err(Problem::TimeGoesBack { from: self.last, to: at });
        }
        Ok(at)
    }

    fn field(&self, i: usize) -> &[u8] {
        let field = self.record.get(i).unwrap_or_default();
        let is_last = i + 1 == self.record.len();
        if is_last { field.strip_suffix(b"\r").unwrap_or(field) } else { field }
    }

    fn error(&self, problem: Problem) -> TraceError {
        TraceError { line: self.line(), problem }
    }

    /// Where the line begins is known, and not where it ends.
    fn too_long(&self) -> TraceError {
        TraceError { line: self.looked_from(), problem: Problem::TooLong }
    }

    /// The line that the record begins on. The reader knows where it began to look for the record,
    /// blank lines included, and where the record ended.
    fn line(&self) -> u64 {
        let inner = self.record.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
        self.looked_from().max(self.reader.position().line().saturating_sub(1 + inner))
    }

    fn looked_from(&self) -> u64 {
        self.record.position().map_or(1, |position| position.line())
    }
}

/// A reader that fails when its ration is used up, so that nobody reads on and on.
struct Rationed<R> {
    input: R,
    ration: usize,
}

impl<R: Read> Read for Rationed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ration == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let most = buffer.len().min(self.ration);
        let read = self.input.read(&mut buffer[..most])?;
        self.ration -= read;
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

fn number(field: &'static str, bytes: &[u8]) -> Result<u64, Problem> {
    let text = String::from_utf8_lossy(bytes);
    let bad = |why| Problem::Number { field, text: text.to_string(), why };
    let digits = text.strip_prefix('-').unwrap_or(&text);
    if digits.is_empty() || digits.contains(|c: char| !c.is_ascii_digit()) {
        return Err(bad("it must be a whole number"));
    }
    if digits.len() < text.len() {
        return Err(bad("it cannot be negative"));
    }
    text.parse().map_err(|_| bad("it is too large"))
}

/// A text in quotes, shortened if it is too long for a message.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{:?}", text[..end].to_owned() + "…"),
        None => format!("{text:?}"),
    }
}

/// What is wrong with a trace, and on which line. The header is line 1.
#[derive(Debug)]
pub struct TraceError {
    line: u64,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    Io(io::Error),
    Empty,
    Header(String),
    Missing { field: &'static str, is_quote_open: bool },
    TooLong,
    TooMany(usize),
    Number { field: &'static str, text: String, why: &'static str },
    ZeroCost,
    Key,
    TooLate(u64),
    TimeGoesBack { from: Micros, to: Micros },
}

impl TraceError {
    /// The line, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Could the trace not be read at all? Otherwise it is what was read that is wrong.
    pub fn is_io(&self) -> bool {
        matches!(self.problem, Problem::Io(_))
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trace line {}: {}", self.line, self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = HEADER.join(",");
        match self {
            Self::Io(error) => write!(f, "cannot be read: {error}"),
            Self::Empty => write!(f, "there is nothing; a trace begins with the header {header}"),
            Self::Header(text) => {
                write!(f, "the header is {}; it must be {header}", quoted(text))
            }
            Self::Missing { field, is_quote_open } => {
                let hint = if *is_quote_open { "; is a quote left open?" } else { "" };
                write!(f, "{field} is missing; a line is {header}{hint}")
            }
            Self::TooLong => {
                let megabytes = LINE_MAX >> 20;
                write!(f, "the line is longer than {megabytes} MB; is a quote left open?")
            }
            Self::TooMany(n) => {
                write!(
                    f,
                    "there are {n} fields; a line is {header}, and a key with commas is quoted"
                )
            }
            Self::Number { field, text, why } => write!(f, "{field} is {}; {why}", quoted(text)),
            Self::ZeroCost => f.write_str("cost is 0; a cost must be at least 1"),
            Self::Key => f.write_str("the key is not valid UTF-8"),
            Self::TooLate(us) => {
                write!(f, "at_us is {us}; the latest time is {}", Micros::MAX.get())
            }
            Self::TimeGoesBack { from, to } => {
                let (from, to) = (from.get(), to.get());
                write!(f, "time goes back from {from} to {to}; a trace is in the order of time")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}
