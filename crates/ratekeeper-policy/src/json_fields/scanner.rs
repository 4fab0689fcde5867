//! A JSON parser that takes a document in pieces and keeps only the fields that are looked for.

use super::string::Text;
use super::{JsonFields, JsonPaths, NAMES_MAX};

/// Maximum nesting of a document. One that is nested more deeply is invalid.
const DEPTH_MAX: usize = 128;

/// Parses a document piece by piece, and keeps only the values of some fields.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_policy as policy; }
/// use ratekeeper::policy::json_fields::{JsonPaths, JsonScanner};
///
/// let paths = JsonPaths::new(["usage.total_tokens".parse()?]);
/// let mut scanner = JsonScanner::new(&paths);
/// scanner.feed(br#"{"choices": [], "usage": {"total_tok"#);
/// scanner.feed(br#"ens": 42}}"#);
/// let values = scanner.finish().and_then(|fields| fields.get("usage.total_tokens"));
/// assert_eq!(values.and_then(|values| values.integer()), Some(42));
/// # Ok::<(), ratekeeper::policy::json_fields::JsonPathError>(())
/// ```
#[derive(Debug)]
pub struct JsonScanner {
    state: State,
    /// A bit for each open container: 1 for an object.
    containers: u128,
    depth: usize,
    /// For each of the outermost containers, the paths that lead into it. A bit is a path.
    masks: [u32; NAMES_MAX],
    /// The paths that lead to the value that comes next.
    value_mask: u32,
    text: Text,
    fields: JsonFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    /// After `[`.
    ValueOrEnd,
    /// After a comma in an object.
    Name,
    /// After `{`.
    NameOrEnd,
    Colon,
    /// After a value in a container.
    CommaOrEnd,
    String(StringPart),
    /// In a string that is a name.
    InName(StringPart),
    Number(NumberPart),
    /// In `true`, `false` or `null`, of which so many bytes were seen.
    Literal {
        word: &'static str,
        seen: usize,
    },
    /// After the document.
    End,
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringPart {
    Plain,
    Backslash,
    /// After `\u`: how many digits are missing, and their value so far.
    Unicode(u8, u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberPart {
    Minus,
    Zero,
    Integer,
    Dot,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl JsonScanner {
    /// Returns a scanner that looks for these fields.
    #[must_use]
    pub fn new(paths: &JsonPaths) -> Self {
        Self {
            state: State::Value,
            containers: 0,
            depth: 0,
            masks: [0; NAMES_MAX],
            value_mask: all(paths),
            text: Text::default(),
            fields: JsonFields::none_of(paths),
        }
    }

    /// Begins a new document.
    pub fn reset(&mut self) {
        self.state = State::Value;
        self.depth = 0;
        self.value_mask = all(&self.fields.paths);
        for values in &mut self.fields.values {
            values.known.clear();
            values.are_more = false;
        }
    }

    /// Parses the next piece.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            bytes = match self.state {
                State::Invalid => return,
                State::String(StringPart::Plain) | State::InName(StringPart::Plain) => {
                    self.plain_text(bytes)
                }
                State::Number(part) => match next_part(part, *first) {
                    Some(next) => {
                        self.text.push(&[*first]);
                        self.state = State::Number(next);
                        rest
                    }
                    None => {
                        self.end_number(part);
                        bytes
                    }
                },
                _ => {
                    self.byte(*first);
                    rest
                }
            };
        }
    }

    /// Returns whether no valid document begins with what was parsed.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.state == State::Invalid
    }

    /// Returns what was found, if what was parsed is a whole document.
    pub fn finish(&mut self) -> Option<&JsonFields> {
        if let State::Number(part) = self.state {
            self.end_number(part);
        }
        (self.state == State::End).then_some(&self.fields)
    }

    fn byte(&mut self, byte: u8) {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.state = match (self.state, byte) {
            (State::String(part), _) => {
                self.escape(part, byte).map_or(State::Invalid, State::String)
            }
            (State::InName(part), _) => {
                self.escape(part, byte).map_or(State::Invalid, State::InName)
            }
            (State::Literal { word, seen }, _) => return self.literal(word, seen, byte),
            (same, _) if is_space => same,
            (State::ValueOrEnd, b']') | (State::NameOrEnd, b'}') => return self.close(),
            (State::Value | State::ValueOrEnd, _) => return self.begin_value(byte),
            (State::Name | State::NameOrEnd, b'"') => {
                self.text.begin(self.mask() != 0);
                State::InName(StringPart::Plain)
            }
            (State::Colon, b':') => State::Value,
            (State::CommaOrEnd, b',') if self.is_object() => State::Name,
            (State::CommaOrEnd, b',') => State::Value,
            (State::CommaOrEnd, b'}') if self.is_object() => return self.close(),
            (State::CommaOrEnd, b']') if !self.is_object() => return self.close(),
            _ => State::Invalid,
        };
    }

    fn begin_value(&mut self, byte: u8) {
        let is_leaf = self.leaves() != 0;
        self.state = match byte {
            b'{' | b'[' => return self.open(byte == b'{'),
            b'"' => {
                self.text.begin(is_leaf);
                State::String(StringPart::Plain)
            }
            b't' => State::Literal { word: "true", seen: 1 },
            b'f' => State::Literal { word: "false", seen: 1 },
            b'n' => State::Literal { word: "null", seen: 1 },
            b'-' | b'0'..=b'9' => {
                self.text.begin(is_leaf);
                self.text.push(&[byte]);
                State::Number(match byte {
                    b'-' => NumberPart::Minus,
                    b'0' => NumberPart::Zero,
                    _ => NumberPart::Integer,
                })
            }
            _ => State::Invalid,
        };
    }

    fn open(&mut self, is_object: bool) {
        if self.depth == DEPTH_MAX {
            self.state = State::Invalid;
            return;
        }
        self.record_unknown();
        let bit = 1 << self.depth;
        self.containers = if is_object { self.containers | bit } else { self.containers & !bit };
        if let Some(mask) = self.masks.get_mut(self.depth) {
            *mask = if is_object { self.value_mask } else { 0 };
        }
        self.depth += 1;
        self.value_mask = 0;
        self.state = if is_object { State::NameOrEnd } else { State::ValueOrEnd };
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.end_value();
    }

    fn end_value(&mut self) {
        self.value_mask = 0;
        self.state = if self.depth == 0 { State::End } else { State::CommaOrEnd };
    }

    fn is_object(&self) -> bool {
        self.containers >> (self.depth - 1) & 1 == 1
    }

    /// Returns the paths that lead into the innermost container.
    fn mask(&self) -> u32 {
        self.depth.checked_sub(1).and_then(|index| self.masks.get(index)).copied().unwrap_or(0)
    }

    /// Returns the paths that end at the next value.
    fn leaves(&self) -> u32 {
        let paths = bits(self.value_mask);
        let ends = paths.filter(|path| self.fields.paths.0[*path].names().count() == self.depth);
        ends.fold(0, |mask, path| mask | 1 << path)
    }

    /// Takes the text up to its end, to an escape, or to the end of this piece.
    fn plain_text<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        let end = bytes.iter().position(is_special).unwrap_or(bytes.len());
        let (plain, rest) = bytes.split_at(end);
        if !plain.is_empty() {
            self.text.push(plain);
        }
        let Some((special, rest)) = rest.split_first() else { return rest };
        match (self.state, special) {
            (State::InName(_), b'"') => self.end_name(),
            (_, b'"') => {
                self.record_text();
                self.end_value();
            }
            (State::InName(_), b'\\') => self.state = State::InName(StringPart::Backslash),
            (_, b'\\') => self.state = State::String(StringPart::Backslash),
            _ => self.state = State::Invalid,
        }
        rest
    }

    /// Takes a byte of an escape; `None` if it is invalid.
    fn escape(&mut self, part: StringPart, byte: u8) -> Option<StringPart> {
        let StringPart::Unicode(missing, code) = part else {
            let plain = match byte {
                b'"' | b'\\' | b'/' => byte,
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => return Some(StringPart::Unicode(4, 0)),
                _ => return None,
            };
            self.text.push(&[plain]);
            return Some(StringPart::Plain);
        };
        let digit = u16::try_from(char::from(byte).to_digit(16)?).ok()?;
        let code = code << 4 | digit;
        if missing > 1 {
            return Some(StringPart::Unicode(missing - 1, code));
        }
        self.text.push_unit(code);
        Some(StringPart::Plain)
    }

    /// Finds the paths that lead to the value of this name. Case is ignored, as some upstreams do.
    fn end_name(&mut self) {
        let (mask, index) = (self.mask(), self.depth - 1);
        let name = self.text.end().unwrap_or_default();
        let paths = &self.fields.paths.0;
        let leads = |path: &usize| {
            let of_path = paths[*path].names().nth(index);
            of_path.is_some_and(|of_path| of_path.as_bytes().eq_ignore_ascii_case(name))
        };
        self.value_mask = bits(mask).filter(leads).fold(0, |mask, path| mask | 1 << path);
        self.state = State::Colon;
    }

    fn end_number(&mut self, part: NumberPart) {
        use NumberPart::{ExponentDigits, Fraction, Integer, Zero};
        if !matches!(part, Zero | Integer | Fraction | ExponentDigits) {
            self.state = State::Invalid;
            return;
        }
        self.record_text();
        self.end_value();
    }

    fn literal(&mut self, word: &'static str, seen: usize, byte: u8) {
        if word.as_bytes()[seen] != byte {
            self.state = State::Invalid;
        } else if seen + 1 < word.len() {
            self.state = State::Literal { word, seen: seen + 1 };
        } else {
            if word != "null" {
                let leaves = self.leaves();
                bits(leaves).for_each(|path| self.fields.values[path].add(word.as_bytes()));
            }
            self.end_value();
        }
    }

    fn record_text(&mut self) {
        let leaves = self.leaves();
        if leaves == 0 {
            return;
        }
        match self.text.end() {
            Some(text) => bits(leaves).for_each(|path| self.fields.values[path].add(text)),
            None => self.record_unknown(),
        }
    }

    fn record_unknown(&mut self) {
        let leaves = self.leaves();
        bits(leaves).for_each(|path| self.fields.values[path].are_more = true);
    }
}

/// Returns the mask of all paths.
fn all(paths: &JsonPaths) -> u32 {
    u32::MAX.checked_shr(u32::BITS - paths.0.len() as u32).unwrap_or(0)
}

/// Returns the positions of the bits that are set.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(bit)
    })
}

/// Returns the part of a number after this byte; `None` if the byte is not of the number.
fn next_part(part: NumberPart, byte: u8) -> Option<NumberPart> {
    use NumberPart::*;
    Some(match (part, byte) {
        (Minus, b'0') => Zero,
        (Minus, b'1'..=b'9') | (Integer, b'0'..=b'9') => Integer,
        (Zero | Integer, b'.') => Dot,
        (Dot | Fraction, b'0'..=b'9') => Fraction,
        (Zero | Integer | Fraction, b'e' | b'E') => Exponent,
        (Exponent, b'+' | b'-') => ExponentSign,
        (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => ExponentDigits,
        _ => return None,
    })
}
