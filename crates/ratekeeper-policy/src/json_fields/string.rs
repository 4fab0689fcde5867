//! The text of a string that arrives in pieces.

/// Longer strings are not kept.
const TEXT_MAX: usize = 1024;

/// The characters of a string or number so far, if they are kept, and the escape that is being read.
#[derive(Debug, Default)]
pub(super) struct Text {
    bytes: Vec<u8>,
    is_kept: bool,
    is_too_long: bool,
    /// A high surrogate whose low surrogate may follow.
    high: Option<u16>,
}

impl Text {
    /// Begins a new string or number.
    pub(super) fn begin(&mut self, is_kept: bool) {
        self.bytes.clear();
        self.is_kept = is_kept;
        self.is_too_long = false;
        self.high = None;
    }

    /// Appends characters as they were sent.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.end_surrogate();
        self.append(bytes);
    }

    /// Appends the character of an escape such as `\u00e9`. An unpaired surrogate is replaced.
    pub(super) fn push_unit(&mut self, unit: u16) {
        match (self.high.take(), unit) {
            (Some(high), 0xdc00..=0xdfff) => {
                let code = 0x10000 + (u32::from(high - 0xd800) << 10) + u32::from(unit - 0xdc00);
                self.append_char(char::from_u32(code));
            }
            (unpaired, _) => {
                if unpaired.is_some() {
                    self.append_char(None);
                }
                match unit {
                    0xd800..=0xdbff => self.high = Some(unit),
                    _ => self.append_char(char::from_u32(u32::from(unit))),
                }
            }
        }
    }

    /// Returns the text at its end; `None` if it was not kept or is too long.
    pub(super) fn end(&mut self) -> Option<&[u8]> {
        self.end_surrogate();
        (self.is_kept && !self.is_too_long).then_some(&self.bytes)
    }

    fn end_surrogate(&mut self) {
        if self.high.take().is_some() {
            self.append_char(None);
        }
    }

    fn append_char(&mut self, char: Option<char>) {
        let char = char.unwrap_or(char::REPLACEMENT_CHARACTER);
        self.append(char.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn append(&mut self, bytes: &[u8]) {
        if !self.is_kept || self.is_too_long {
            return;
        }
        match self.bytes.len() + bytes.len() <= TEXT_MAX {
            true => self.bytes.extend_from_slice(bytes),
            false => self.is_too_long = true,
        }
    }
}
