//! Logs that are broken, huge or none at all.

use std::fmt::Write as _;
use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;

use flate2::write::GzEncoder;
use ratekeeper_lab::replay::{
    Logs, OpenLogError, ReadOptions, ReplayOptions, ReplayResult, replay,
};
use ratekeeper_policy::Policy;

fn policy() -> Arc<Policy> {
    Arc::new(Policy::one_line("5/minute per ip").unwrap())
}

fn open(input: impl Read + Send + 'static) -> Result<Logs, OpenLogError> {
    Logs::open([("access.log", input)], ReadOptions::default(), &[&policy()])
}

fn replayed(input: impl Read + Send + 'static) -> ReplayResult {
    replay(open(input).unwrap(), &policy(), None, ReplayOptions::default())
}

fn lines(count: u64) -> String {
    (0..count).fold(String::new(), |mut text, i| {
        let second = i % 60;
        writeln!(
            text,
            "192.0.2.1 - - [10/Oct/2026:13:55:{second:02} +0000] \"GET /{i} HTTP/1.1\" 200 1"
        )
        .unwrap();
        text
    })
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_line_of_100_megabytes_is_counted_and_the_lines_around_it_are_read() {
    let line = io::repeat(b'x').take(100 << 20);
    let input = Cursor::new(lines(3)).chain(line).chain(Cursor::new(format!("\n{}", lines(2))));
    let result = replayed(input);
    assert_eq!((result.read.requests, result.read.skipped), (5, 1));
    let skipped = &result.read.skipped_lines[0];
    assert_eq!((skipped.line, skipped.text.len()), (4, 0));
    assert_eq!(skipped.why, "it has more than 65 kB, the maximum");
}

#[test]
fn binary_and_other_encodings_in_a_log_are_lines_that_are_no_requests_or_are_read() {
    let mut bytes = lines(3).into_bytes();
    bytes.extend_from_slice(&[0, 0xff, 0xfe, b'\n', 0x80, 0x81, b'\n']);
    // Latin-1 in a path.
    bytes.extend_from_slice(
        b"192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /caf\xe9 HTTP/1.1\" 200 1\n",
    );
    let result = replayed(Cursor::new(bytes));
    assert_eq!((result.read.requests, result.read.skipped), (4, 2));
}

#[test]
fn what_is_no_log_is_an_error_that_says_so() {
    let error = |bytes: &[u8]| open(Cursor::new(bytes.to_vec())).unwrap_err().to_string();
    assert_eq!(
        error(b""),
        "access.log: the log is empty; give it with --log-format, as nginx's log_format"
    );
    assert!(error(&[0x80; 1_000]).contains("the format of the log is not known"));
    let utf16 = open(Cursor::new(b"\xff\xfea\0".to_vec())).unwrap_err();
    let OpenLogError::Read { source, .. } = utf16 else { panic!("{utf16}") };
    assert!(source.to_string().contains("UTF-16"));
}

#[test]
fn a_truncated_gzip_is_replayed_up_to_its_end() {
    let whole = gzip(&lines(100_000));
    let result = replayed(Cursor::new(whole.clone()));
    assert_eq!((result.read.requests, result.read.logs[0].error.as_ref()), (100_000, None));
    let result = replayed(Cursor::new(whole[..whole.len() / 2].to_vec()));
    assert!(result.read.logs[0].error.is_some());
    assert!((10_000..90_000).contains(&result.read.requests), "{}", result.read.requests);
}

#[test]
fn rotated_logs_are_merged_by_time_and_several_gzip_members_are_one_log() {
    let members = [gzip(&lines(30)), gzip(&lines(30))].concat();
    assert_eq!(replayed(Cursor::new(members)).read.requests, 60);
    let line = |second: u64| {
        format!("192.0.2.1 - - [10/Oct/2026:13:55:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    let odd: String = (0..30).map(|i| line(2 * i + 1)).collect();
    let even: String = (0..30).map(|i| line(2 * i)).collect();
    for threads in 1..4 {
        let options = ReadOptions { threads, ..ReadOptions::default() };
        let inputs = [("odd", Cursor::new(odd.clone())), ("even", Cursor::new(even.clone()))];
        let logs = Logs::open(inputs, options, &[&policy()]).unwrap();
        let mut seconds = Vec::new();
        let read =
            logs.each(&[policy()], |request| seconds.push(request.at().get() / 1_000_000 % 60));
        assert_eq!((seconds, read.late), ((0..60).collect(), 0));
    }
}

/// Lines that are made while they are read.
struct Made {
    left: u64,
    line: Vec<u8>,
    at: usize,
}

impl Read for Made {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() {
            if self.left == 0 {
                return Ok(0);
            }
            self.left -= 1;
            let (secs, client) = (1_791_640_536 + self.left % 5, self.left % 100);
            self.line = format!(
                "{{\"ts\":{secs},\"ip\":\"192.0.2.{client}\",\"method\":\"GET\",\"path\":\"/\"}}\n"
            )
            .into();
            self.at = 0;
        }
        let length = buffer.len().min(self.line.len() - self.at);
        buffer[..length].copy_from_slice(&self.line[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

/// `REPLAY_LINES=10000000` makes it long. Memory is bounded by how blocks, the window and keys are.
#[test]
fn a_long_log_is_replayed_while_it_is_read() {
    let count = std::env::var("REPLAY_LINES").map_or(300_000, |lines| lines.parse().unwrap());
    let result = replayed(Made { left: count, line: Vec::new(), at: 0 });
    assert_eq!(result.read.requests, count);
    assert_eq!(result.policies[0].limits[0].keys, 100);
}
