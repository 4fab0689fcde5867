//! Server-sent events that stream by: the JSON document in the data of each.

use crate::json_fields::{JsonFields, JsonPaths, JsonScanner};

/// The data of the event that ends a stream of OpenAI.
const DONE: &[u8] = b"[DONE]";

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Splits a stream into events, and scans the data of each. No event is kept.
#[derive(Debug)]
pub(super) struct SseScanner {
    line: Line,
    /// The last byte was a carriage return, of which a line feed may be part.
    is_after_return: bool,
    /// How many bytes of a byte order mark were skipped; `None` after the beginning.
    mark: Option<usize>,
    data: JsonScanner,
    /// Whether the event has data so far.
    has_data: bool,
    done: DoneMark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of `data` were seen, and nothing else.
    Name(usize),
    /// After the colon of `data:`; a space that follows is not data.
    Colon,
    Data,
    /// Another field, or a comment.
    Other,
}

/// Whether the data of an event is `[DONE]`, as far as it was seen.
#[derive(Clone, Copy, Debug)]
enum DoneMark {
    Seen(usize),
    No,
}

/// An event of a stream.
pub(super) enum Event<'s> {
    /// With these fields.
    Fields(&'s JsonFields),
    /// The end of the stream.
    Done,
}

impl SseScanner {
    pub(super) fn new(paths: &JsonPaths) -> Self {
        Self {
            line: Line::Name(0),
            is_after_return: false,
            mark: Some(0),
            data: JsonScanner::new(paths),
            has_data: false,
            done: DoneMark::Seen(0),
        }
    }

    /// Parses the next piece, and calls `on_event` at the end of each event that has JSON data.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(Event<'_>)) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.skips(*first) {
                bytes = rest;
                continue;
            }
            if matches!(first, b'\n' | b'\r') {
                self.is_after_return = *first == b'\r';
                self.end_line(&mut on_event);
                bytes = rest;
                continue;
            }
            bytes = match self.line {
                Line::Data | Line::Other => self.take_line(bytes),
                _ => {
                    self.begin_line(*first);
                    rest
                }
            };
        }
    }

    /// Ends the stream. An event that no empty line has ended counts if its data is whole.
    pub(super) fn finish(&mut self, mut on_event: impl FnMut(Event<'_>)) {
        self.end_line(&mut on_event);
        self.end_event(&mut on_event);
    }

    fn skips(&mut self, byte: u8) -> bool {
        if let Some(seen) = self.mark {
            self.mark = (BYTE_ORDER_MARK.get(seen) == Some(&byte)).then_some(seen + 1);
            if self.mark.is_some() {
                return true;
            }
        }
        std::mem::take(&mut self.is_after_return) && byte == b'\n'
    }

    fn begin_line(&mut self, byte: u8) {
        const NAME: &[u8] = b"data";
        self.line = match (self.line, byte) {
            (Line::Name(4), b':') => {
                self.begin_data();
                Line::Colon
            }
            (Line::Name(seen), _) if NAME.get(seen) == Some(&byte) => Line::Name(seen + 1),
            (Line::Colon, b' ') => Line::Data,
            (Line::Colon, _) => {
                self.take_data(&[byte]);
                Line::Data
            }
            _ => Line::Other,
        };
    }

    /// Lines of data are joined by a line feed.
    fn begin_data(&mut self) {
        if self.has_data {
            self.take_data(b"\n");
        }
        self.has_data = true;
    }

    /// Takes the rest of the line, or of this piece.
    fn take_line<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
        let (line, rest) = bytes.split_at(end);
        if self.line == Line::Data {
            self.take_data(line);
        }
        rest
    }

    fn take_data(&mut self, bytes: &[u8]) {
        if let DoneMark::Seen(seen) = self.done {
            let is_more = DONE[seen..].starts_with(bytes);
            self.done = if is_more { DoneMark::Seen(seen + bytes.len()) } else { DoneMark::No };
        }
        self.data.feed(bytes);
    }

    fn end_line(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        let line = std::mem::replace(&mut self.line, Line::Name(0));
        match line {
            Line::Name(0) => self.end_event(on_event),
            // A name without a colon is a field without a value.
            Line::Name(4) => self.begin_data(),
            _ => {}
        }
    }

    fn end_event(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        if !std::mem::take(&mut self.has_data) {
            return;
        }
        if matches!(self.done, DoneMark::Seen(seen) if seen == DONE.len()) {
            on_event(Event::Done);
        } else if let Some(fields) = self.data.finish() {
            on_event(Event::Fields(fields));
        }
        self.data.reset();
        self.done = DoneMark::Seen(0);
    }
}
