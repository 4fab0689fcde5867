//! Reads the usage that a response states, while its body streams by.

use super::sse::{Event, SseScanner};
use super::{TokenUsage, UsageFormat};
use crate::json_fields::JsonScanner;

/// Reads the usage that a response states. It is given the body piece by piece; what it keeps of it does not
/// grow with the body.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::usage::{UsageFormat, UsageMeter};
///
/// let mut meter = UsageMeter::new(UsageFormat::OpenAi, Some(b"text/event-stream"));
/// meter.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n");
/// meter.feed(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"comple");
/// meter.feed(b"tion_tokens\":3,\"total_tokens\":12}}\n\ndata: [DONE]\n\n");
/// let metered = meter.finish(true);
/// assert!(metered.is_final);
/// assert_eq!(metered.usage.map(|usage| usage.total()), Some(12));
/// ```
#[derive(Debug)]
pub struct UsageMeter {
    format: UsageFormat,
    scanner: Scanner,
    reading: Reading,
}

#[derive(Debug)]
enum Scanner {
    Json(JsonScanner),
    Sse(SseScanner),
}

#[derive(Debug, Default)]
struct Reading {
    usage: Option<TokenUsage>,
    /// Whether what was stated last is of the whole request, unless more follows.
    is_whole: bool,
    /// Whether a number could not be read, so that more may have been used than what was.
    is_unreadable: bool,
    /// Whether nothing of interest follows.
    is_over: bool,
}

/// What a response has stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metered {
    /// The usage, as far as it was stated.
    pub usage: Option<TokenUsage>,
    /// Whether this is the usage of the whole request. Otherwise it has used at least this.
    pub is_final: bool,
}

impl UsageMeter {
    /// Returns a meter for a response body of this content type: server-sent events, or else JSON.
    #[must_use]
    pub fn new(format: UsageFormat, content_type: Option<&[u8]>) -> Self {
        let paths = format.paths();
        let scanner = match content_type.is_some_and(is_event_stream) {
            true => Scanner::Sse(SseScanner::new(&paths)),
            false => Scanner::Json(JsonScanner::new(&paths)),
        };
        Self { format, scanner, reading: Reading::default() }
    }

    /// Returns where the usage is looked for.
    #[must_use]
    pub fn format(&self) -> &UsageFormat {
        &self.format
    }

    /// Reads the next piece of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        match &mut self.scanner {
            Scanner::Json(scanner) => scanner.feed(bytes),
            Scanner::Sse(scanner) => {
                scanner.feed(bytes, |event| self.reading.event(&self.format, &event));
            }
        }
    }

    /// Returns what the body has stated. `is_complete` says whether it was read to its end; a JSON document
    /// says so itself.
    pub fn finish(&mut self, is_complete: bool) -> Metered {
        match &mut self.scanner {
            Scanner::Json(scanner) => {
                if let Some(fields) = scanner.finish() {
                    self.reading.event(&self.format, &Event::Fields(fields));
                    self.reading.is_over = true;
                }
            }
            Scanner::Sse(scanner) => {
                scanner.finish(|event| self.reading.event(&self.format, &event));
            }
        }
        let Reading { usage, is_whole, is_unreadable, is_over } = self.reading;
        Metered { usage, is_final: is_whole && !is_unreadable && (is_over || is_complete) }
    }
}

impl Reading {
    fn event(&mut self, format: &UsageFormat, event: &Event<'_>) {
        let Event::Fields(fields) = event else {
            self.is_over = true;
            return;
        };
        match format.read(fields, &mut self.usage) {
            Ok(is_whole) => self.is_whole |= is_whole,
            Err(_) => self.is_unreadable = true,
        }
        self.is_over |= format.is_last(fields);
    }
}

fn is_event_stream(content_type: &[u8]) -> bool {
    const SSE: &[u8] = b"text/event-stream";
    content_type.get(..SSE.len()).is_some_and(|start| start.eq_ignore_ascii_case(SSE))
}
