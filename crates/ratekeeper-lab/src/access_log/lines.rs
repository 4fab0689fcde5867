//! Blocks of whole lines, from input of any kind in bounded memory.

use std::io::{self, Read};

/// The longest line in bytes. What is longer is skipped and counted.
pub(super) const LINE_MAX: usize = 64 << 10;
/// The size of a block: enough that handing it to another thread costs little per line.
const BLOCK: usize = 256 << 10;

/// Some lines of a log.
#[derive(Clone, Debug, Default)]
pub struct Block {
    bytes: Vec<u8>,
    /// The number of the first line, counted from 1.
    first_line: u64,
}

impl Block {
    /// Calls `visit` with the number of each line and the line without its end; `None` for a line that is too long.
    pub fn each<'b>(&'b self, mut visit: impl FnMut(u64, Option<&'b [u8]>)) {
        let mut number = self.first_line;
        let mut rest = &self.bytes[..];
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            visit(
                number,
                (line.len() <= LINE_MAX).then(|| line.strip_suffix(b"\r").unwrap_or(line)),
            );
            number += 1;
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Reads blocks of whole lines. Blocks depend on the content only, not on how it arrives.
pub struct Lines<R> {
    input: R,
    /// The beginning of a line whose end was not in the last block.
    partial: Vec<u8>,
    next_line: u64,
    is_done: bool,
    /// An error after lines that are returned first.
    error: Option<io::Error>,
}

impl<R> std::fmt::Debug for Lines<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("next_line", &self.next_line).finish_non_exhaustive()
    }
}

impl<R: Read> Lines<R> {
    /// Reads nothing yet.
    pub fn new(input: R) -> Self {
        Self { input, partial: Vec::new(), next_line: 1, is_done: false, error: None }
    }

    /// Returns the next block; `None` at the end.
    ///
    /// # Errors
    ///
    /// If the input cannot be read. Lines that were read before are returned first.
    pub fn next_block(&mut self) -> io::Result<Option<Block>> {
        if let Some(error) = self.error.take() {
            self.is_done = true;
            return Err(error);
        }
        if self.is_done {
            return Ok(None);
        }
        let mut bytes = std::mem::take(&mut self.partial);
        let mut length = bytes.len();
        bytes.resize(BLOCK, 0);
        while length < BLOCK && !self.is_done {
            match self.fill(&mut bytes[length..]) {
                Ok(read) => {
                    self.is_done = read == 0;
                    length += read;
                }
                Err(error) if memchr::memchr(b'\n', &bytes[..length]).is_some() => {
                    self.error = Some(error);
                    break;
                }
                Err(error) => {
                    self.is_done = true;
                    return Err(error);
                }
            }
        }
        bytes.truncate(length);
        self.cut(&mut bytes)?;
        let first_line = self.next_line;
        self.next_line += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        Ok((!bytes.is_empty()).then_some(Block { bytes, first_line }))
    }

    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.input.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    /// Keeps what follows the last line end for the next block. Of a line that is too long, only the beginning is
    /// kept, as a line.
    fn cut(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        if self.is_done {
            return Ok(());
        }
        match memchr::memrchr(b'\n', bytes) {
            Some(end) => {
                self.partial.extend_from_slice(&bytes[end + 1..]);
                bytes.truncate(end + 1);
                Ok(())
            }
            None => {
                bytes.truncate(LINE_MAX + 1);
                bytes.push(b'\n');
                self.skip_line()
            }
        }
    }

    fn skip_line(&mut self) -> io::Result<()> {
        let mut room = vec![0; BLOCK];
        loop {
            let read = self.fill(&mut room)?;
            self.is_done = read == 0;
            let rest = &room[..read];
            if let Some(end) = memchr::memchr(b'\n', rest) {
                self.partial.extend_from_slice(&rest[end + 1..]);
                return Ok(());
            }
            if self.is_done {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], piece: usize) -> Vec<(u64, Option<usize>)> {
        let mut lines = Lines::new(Pieces { rest: text, piece });
        let mut all = Vec::new();
        while let Some(block) = lines.next_block().unwrap() {
            assert!(block.bytes.capacity() <= 2 * BLOCK);
            block.each(|number, line| all.push((number, line.map(<[u8]>::len))));
        }
        all
    }

    /// Input that arrives in pieces.
    struct Pieces<'t> {
        rest: &'t [u8],
        piece: usize,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(self.piece);
            self.rest.read(&mut buffer[..most])
        }
    }

    #[test]
    fn lines_are_numbered_however_they_arrive() {
        let long = "x".repeat(LINE_MAX + 1);
        let huge = "y".repeat(3 * BLOCK);
        let mut text = format!("one\r\n\n{long}\n");
        (0..40_000).for_each(|_| text.push_str("a line of text\n"));
        text.push_str(&format!("{huge}\nlast"));
        let all = lines(text.as_bytes(), usize::MAX);
        assert_eq!(all[..3], [(1, Some(3)), (2, Some(0)), (3, None)]);
        assert_eq!(all[40_003..], [(40_004, None), (40_005, Some(4))]);
        for piece in [1_000, 4_096, 100_003] {
            assert_eq!(lines(text.as_bytes(), piece), all);
        }
    }

    #[test]
    fn what_was_read_before_an_error_is_returned() {
        struct Broken(bool);
        impl Read for Broken {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                buffer[..8].copy_from_slice(b"one\ntwo\n");
                Ok(8)
            }
        }
        let mut lines = Lines::new(Broken(false));
        assert_eq!(lines.next_block().unwrap().unwrap().len(), 8);
        assert!(lines.next_block().is_err());
        assert!(lines.next_block().unwrap().is_none());
    }
}
