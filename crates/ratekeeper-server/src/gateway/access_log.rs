//! The access log: a line for each request, written by a thread of its own. When that cannot keep up or
//! cannot write, lines are dropped and counted, and requests do not wait.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use http::{HeaderValue, Method, Request, StatusCode, Uri};
use memchr::memchr_iter;
use ratekeeper::{Clock, SystemClock};

use jiff::Timestamp;

use super::client::Client;
use super::options::AccessLog;
use crate::listener::Ticks;

/// Entries that wait to be written.
const WAITING_MAX: usize = 32 * 1024;

/// How often they are written. Waking the thread for each would cost requests more than all the rest.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);

/// How much is collected before it is written.
const BATCH: usize = 64 * 1024;

/// Clones write to one log.
#[derive(Clone)]
pub(super) struct AccessLogger {
    lines: SyncSender<Box<Line>>,
    flushes: SyncSender<Flush>,
    lost: Arc<Lost>,
}

/// Lines that were lost so far.
#[derive(Default)]
struct Lost {
    queue_full: AtomicU64,
    unwritable: AtomicU64,
}

/// The metric without an access log.
pub(super) const NOTHING_LOST: [(&str, u64); 2] = [("queue_full", 0), ("unwritable", 0)];

/// Gets a message when everything so far is written.
type Flush = SyncSender<()>;

/// The state of the writing thread.
struct Writer {
    lines: Receiver<Box<Line>>,
    flushes: Receiver<Flush>,
    lost: Arc<Lost>,
    /// How many lines lost to a full queue were reported.
    reported: u64,
    write: fn(&Line, &mut String) -> std::fmt::Result,
    out: Output<File>,
}

/// Whole lines to a file or a pipe that may fail, and may work again later.
struct Output<W> {
    to: W,
    batch: Vec<u8>,
    is_failing: bool,
    /// Whether the last write broke off within a line.
    is_mid_line: bool,
}

/// A request that is being served. It is logged when this is dropped.
pub(super) struct Entry {
    line: Option<Box<Line>>,
    pub(super) bytes: u64,
    began_us: u64,
    ticks: Ticks,
    log: AccessLogger,
}

struct Line {
    at_us: u64,
    ip: IpAddr,
    method: Method,
    uri: Uri,
    /// `None` if there was no response.
    status: Option<StatusCode>,
    bytes: u64,
    took_us: u64,
    outcome: Outcome,
    id: HeaderValue,
}

/// What became of a request.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) upstream: Option<Arc<str>>,
    /// The limit that denied it.
    pub(super) refused_by: Option<Arc<str>>,
    /// The limits that would have denied it, but for shadow mode.
    pub(super) shadow: Vec<Arc<str>>,
}

impl AccessLogger {
    pub(super) fn start(format: AccessLog) -> io::Result<Option<Self>> {
        let write = match format {
            AccessLog::Off => return Ok(None),
            AccessLog::Text => Line::write_text,
            AccessLog::Json => Line::write_json,
        };
        let (lines, all_lines) = sync_channel(WAITING_MAX);
        let (flushes, all_flushes) = sync_channel(1);
        let lost = Arc::<Lost>::default();
        let log = Self { lines, flushes, lost: Arc::clone(&lost) };
        // Not `Stdout`, which keeps what it could not write and would write it twice.
        let out = Output::new(File::from(io::stdout().as_fd().try_clone_to_owned()?));
        let writer =
            Writer { lines: all_lines, flushes: all_flushes, lost, reported: 0, write, out };
        let thread = thread::Builder::new().name("access-log".to_string());
        thread.spawn(move || writer.run())?;
        Ok(Some(log))
    }

    pub(super) fn begin<B>(
        &self,
        client: &Client,
        request: &Request<B>,
        id: &HeaderValue,
        ticks: Ticks,
    ) -> Box<Entry> {
        let line = Line {
            at_us: SystemClock.now().get(),
            ip: client.peer.ip().to_canonical(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            status: None,
            bytes: 0,
            took_us: 0,
            outcome: Outcome::default(),
            id: id.clone(),
        };
        let began_us = ticks.now_us();
        Box::new(Entry { line: Some(Box::new(line)), bytes: 0, began_us, ticks, log: self.clone() })
    }

    /// Waits until everything so far is written, but not for long.
    pub(super) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.flushes.send(done).is_ok() {
            _ = wait.recv_timeout(Duration::from_secs(2));
        }
    }

    fn log(&self, line: Box<Line>) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.lost.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many lines were lost, by reason.
    pub(super) fn lost(&self) -> [(&'static str, u64); 2] {
        let Lost { queue_full, unwritable } = &*self.lost;
        let mut lost = NOTHING_LOST;
        for ((_, lines), counter) in lost.iter_mut().zip([queue_full, unwritable]) {
            *lines = counter.load(Ordering::Relaxed);
        }
        lost
    }
}

impl Entry {
    pub(super) fn respond(&mut self, status: StatusCode, outcome: Outcome) {
        if let Some(line) = &mut self.line {
            (line.status, line.outcome) = (Some(status), outcome);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            line.bytes = self.bytes;
            line.took_us = self.ticks.now_us().saturating_sub(self.began_us);
            self.log.log(line);
        }
    }
}

impl Writer {
    fn run(mut self) {
        loop {
            let flush = self.flushes.recv_timeout(WRITE_INTERVAL);
            self.write_all();
            match flush {
                Ok(done) => _ = done.send(()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write_all(&mut self) {
        let mut text = String::new();
        while let Ok(line) = self.lines.try_recv() {
            text.clear();
            // Writing to a string does not fail.
            _ = (self.write)(&line, &mut text);
            if self.out.push(&text) {
                self.flush();
            }
        }
        self.flush();
        let queue_full = self.lost.queue_full.load(Ordering::Relaxed);
        if queue_full > self.reported {
            self.reported = queue_full;
            tracing::warn!(
                "access log cannot keep up, lines are lost; ratekeeper_gateway_access_log_lost_total counts them"
            );
        }
    }

    fn flush(&mut self) {
        let was_failing = self.out.is_failing;
        let flushed = self.out.flush();
        match flushed {
            Ok(()) if was_failing && !self.out.is_failing => {
                tracing::info!("access log is written again");
            }
            Ok(()) => {}
            Err((error, lines)) => {
                self.lost.unwritable.fetch_add(lines, Ordering::Relaxed);
                if !was_failing {
                    tracing::error!(%error, "access log cannot be written, lines are lost");
                }
            }
        }
    }
}

impl<W: Write> Output<W> {
    fn new(to: W) -> Self {
        Self { to, batch: Vec::with_capacity(BATCH), is_failing: false, is_mid_line: false }
    }

    /// Takes a line. Returns whether it is time to flush.
    fn push(&mut self, line: &str) -> bool {
        self.batch.extend_from_slice(line.as_bytes());
        self.batch.len() >= BATCH
    }

    /// Writes what there is. If it fails, how many lines are lost by that.
    fn flush(&mut self) -> Result<(), (io::Error, u64)> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let mut rest = &self.batch[..];
        let mut written = Ok(());
        if self.is_mid_line {
            written = self.to.write_all(b"\n");
            self.is_mid_line = written.is_err();
        }
        while written.is_ok() && !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => written = Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.is_mid_line = rest[length - 1] != b'\n';
                    rest = &rest[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => written = Err(error),
            }
        }
        let lost = memchr_iter(b'\n', rest).count() as u64;
        self.batch.clear();
        self.is_failing = written.is_err();
        written.map_err(|error| (error, lost))
    }
}

impl Line {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        write_time(self.at_us, out)?;
        let status = self.status.as_ref().map_or("-", StatusCode::as_str);
        let Outcome { upstream, refused_by, shadow } = &self.outcome;
        let upstream = match (refused_by, upstream) {
            (Some(limit), _) => format!("refused:{limit}"),
            (None, Some(upstream)) => upstream.to_string(),
            (None, None) => "-".to_string(),
        };
        let (ip, method, uri) = (self.ip, &self.method, &self.uri);
        let (bytes, id) = (self.bytes, self.id.to_str().unwrap_or("-"));
        let ms = self.took_us / 1000;
        let us = self.took_us % 1000;
        write!(out, " {ip} {method} {uri} {status} {bytes} {ms}.{us:03}ms {upstream} {id}")?;
        if !shadow.is_empty() {
            write!(out, " shadow:{}", shadow.join(","))?;
        }
        out.push('\n');
        Ok(())
    }

    fn write_json(&self, out: &mut String) -> std::fmt::Result {
        out.push_str("{\"at\":\"");
        write_time(self.at_us, out)?;
        write!(out, "\",\"ip\":\"{}\",\"method\":\"{}\",\"target\":\"", self.ip, self.method)?;
        write_escaped(&self.uri.to_string(), out);
        let status = self.status.as_ref().map_or("null", StatusCode::as_str);
        write!(
            out,
            "\",\"status\":{status},\"bytes\":{},\"took_us\":{}",
            self.bytes, self.took_us
        )?;
        let Outcome { upstream, refused_by, shadow } = &self.outcome;
        if let Some(upstream) = upstream {
            out.push_str(",\"upstream\":\"");
            write_escaped(upstream, out);
            out.push('"');
        }
        if let Some(limit) = refused_by {
            out.push_str(",\"refused_by\":\"");
            write_escaped(limit, out);
            out.push('"');
        }
        for (i, limit) in shadow.iter().enumerate() {
            out.push_str(if i == 0 { ",\"shadow_refused_by\":[\"" } else { "\",\"" });
            write_escaped(limit, out);
        }
        out.push_str(if shadow.is_empty() { "" } else { "\"]" });
        writeln!(out, ",\"id\":\"{}\"}}", self.id.to_str().unwrap_or(""))
    }
}

fn write_escaped(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
}

/// RFC 3339 with milliseconds.
fn write_time(us: u64, out: &mut String) -> std::fmt::Result {
    let us = i64::try_from(us).unwrap_or(i64::MAX);
    let time = Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX);
    write!(out, "{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_and_milliseconds() {
        let text = |us| {
            let mut out = String::new();
            write_time(us, &mut out).map(|()| out).unwrap()
        };
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_399_999_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(text(951_782_400_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(text(1_794_796_453_123_456), "2026-11-16T02:34:13.123Z");
    }
    /// Takes so many bytes, and then none until there is room again.
    #[derive(Default)]
    struct Disk {
        written: Vec<u8>,
        room: usize,
    }

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.room);
            if length == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= length;
            self.written.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_lines_and_whole_lines_follow_when_there_is_room() {
        let mut disk = Disk { room: 6, ..Disk::default() };
        let mut out = Output::new(&mut disk);
        ["one\n", "two\n", "three\n"].iter().for_each(|line| _ = out.push(line));
        let (error, lost) = out.flush().unwrap_err();
        assert_eq!((error.kind(), lost), (io::ErrorKind::StorageFull, 2));
        out.push("four\n");
        assert_eq!(out.flush().unwrap_err().1, 1);
        assert!(out.is_failing);
        out.to.room = 100;
        out.push("five\n");
        assert!(out.flush().is_ok() && !out.is_failing);
        assert_eq!(disk.written, b"one\ntw\nfive\n");
    }
}
