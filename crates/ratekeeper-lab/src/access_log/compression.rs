//! Compressed logs, by their first bytes.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const UTF16: [&[u8]; 2] = [&[0xff, 0xfe], &[0xfe, 0xff]];
/// How much compressed input is read at once.
const BUFFER: usize = 64 << 10;

/// Returns the content of a log: decompressed if it is compressed with gzip or zstd.
///
/// # Errors
///
/// If it cannot be read, or is UTF-16.
pub fn decompressed(input: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    let start = input.fill_buf()?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(input)));
    }
    if start.starts_with(ZSTD) {
        return Ok(Box::new(Frames { input: Some(input), frame: None }));
    }
    if UTF16.iter().any(|mark| start.starts_with(mark)) {
        let why = "it is UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(Box::new(input))
}

type Frame<R> = StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// The frames of a zstd file, one after the other.
struct Frames<R: BufRead> {
    input: Option<R>,
    frame: Option<Box<Frame<R>>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
            }
            if let Some(frame) = self.frame.take() {
                self.input = Some(frame.into_inner());
            }
            let Some(input) = &mut self.input else { return Ok(0) };
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let input = self.input.take();
            let Some(input) = input else { return Ok(0) };
            let frame = StreamingDecoder::new(input);
            self.frame = Some(Box::new(frame.map_err(io::Error::other)?));
        }
    }
}
