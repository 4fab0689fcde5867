//! The logs that are read: opened, and their formats found.

use std::fmt;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use ratekeeper_core::Micros;
use ratekeeper_policy::{Policy, ReadAttribute};

use super::notes::policy_notes;
use super::pipeline;
use super::request::{LoggedRequest, Variants};
use super::summary::ReadSummary;
use crate::access_log::{DetectError, Lines, LogFields, LogFormat, TimeCache, decompressed};

/// How much of a log its format is found by.
const DETECT_BYTES: usize = 64 << 10;
/// How many lines.
const DETECT_LINES: usize = 100;
/// The most logs that are open at once.
const LOGS_MAX: usize = 500;

/// How logs are read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The format; `None` to find it.
    pub format: Option<LogFormat>,
    /// Requests before or after this are left out.
    pub within: Range<Micros>,
    /// How far requests may be out of order in a log, in microseconds.
    pub reorder_us: u64,
    /// The number of threads: one decides, the others read lines. The result does not depend on it.
    pub threads: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        let within = Micros::default()..Micros::MAX;
        Self { format: None, within, reorder_us: 10_000_000, threads: 1 }
    }
}

/// The logs cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenLogError {
    /// A log cannot be read.
    #[error("cannot read {name}")]
    Read {
        /// The name of the log.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The format of a log is not known.
    #[error("{name}: {source}; give it with --log-format, as nginx's log_format")]
    Format {
        /// The name of the log.
        name: String,
        /// Why.
        source: DetectError,
    },
    /// There are too many logs.
    #[error("there are {0} logs; at most {LOGS_MAX} are read at once")]
    TooMany(usize),
}

/// Logs whose formats are known, ready to be read in the order of time.
///
/// ```
/// use std::sync::Arc;
/// use ratekeeper_lab::replay::{Logs, ReadOptions};
/// use ratekeeper_policy::Policy;
///
/// let log = "192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 17\n";
/// let policy = Arc::new(Policy::one_line("10/s per ip")?);
/// let logs = Logs::open([("access.log", log.as_bytes())], ReadOptions::default(), &[&policy])?;
/// let mut keys = Vec::new();
/// let summary = logs.each(&[policy], |request| {
///     keys.extend(request.charges(0).map(|charge| charge.key.to_vec()));
/// });
/// assert_eq!((summary.requests, keys), (1, vec![b"ip=192.0.2.1".to_vec()]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Logs {
    pub(super) logs: Vec<Log>,
    pub(super) options: ReadOptions,
    fields: LogFields,
    progress: Box<dyn FnMut(&ReadProgress)>,
}

/// How far reading is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ReadProgress {
    /// Lines so far.
    pub lines: u64,
    /// Requests that are decided so far.
    pub requests: u64,
}

pub(super) struct Log {
    pub(super) name: String,
    pub(super) format: Arc<LogFormat>,
    pub(super) first_us: u64,
    pub(super) lines: Lines<Box<dyn Read + Send>>,
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.logs.iter().map(|log| &log.name).collect::<Vec<_>>();
        f.debug_struct("Logs").field("names", &names).finish_non_exhaustive()
    }
}

impl Logs {
    /// Opens logs with these names, and finds their formats. `policies` are those that will read the requests.
    ///
    /// # Errors
    ///
    /// If a log cannot be read, or its format is not known.
    pub fn open<N: AsRef<str>, R: Read + Send + 'static>(
        inputs: impl IntoIterator<Item = (N, R)>,
        options: ReadOptions,
        policies: &[&Policy],
    ) -> Result<Self, OpenLogError> {
        let reads: Vec<ReadAttribute> =
            policies.iter().flat_map(|policy| policy.reads().into_keys()).collect();
        let mut logs = Vec::new();
        let mut fields = LogFields::default();
        for (name, input) in inputs {
            let (log, found) = Log::open(name.as_ref(), input, &options, &reads)?;
            fields = fields.and(found);
            logs.push(log);
        }
        if logs.len() > LOGS_MAX {
            return Err(OpenLogError::TooMany(logs.len()));
        }
        logs.sort_by_key(|log| log.first_us);
        Ok(Self { logs, options, fields, progress: Box::new(|_| {}) })
    }

    /// Returns no logs at all.
    pub(super) fn none() -> Self {
        let (options, fields) = (ReadOptions::default(), LogFields::default());
        Self { logs: Vec::new(), options, fields, progress: Box::new(|_| {}) }
    }

    /// Calls `progress` now and then while the logs are read.
    #[must_use]
    pub fn on_progress(self, progress: impl FnMut(&ReadProgress) + 'static) -> Self {
        Self { progress: Box::new(progress), ..self }
    }

    /// Returns the attributes that the logs have.
    #[must_use]
    pub fn fields(&self) -> &LogFields {
        &self.fields
    }

    /// Returns what of these policies is replayed otherwise than a running limiter would decide: see [`policy_notes`].
    #[must_use]
    pub fn notes<'p>(&self, policies: impl IntoIterator<Item = &'p Policy>) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for note in policies.into_iter().flat_map(|policy| policy_notes(policy, &self.fields)) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// Returns the names of the logs and of their formats, in the order of their first requests.
    pub fn formats(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.logs.iter().map(|log| (log.name.as_str(), log.format.name()))
    }

    /// Calls `visit` with every request in the order of time, and what each policy charges it.
    pub fn each(
        self,
        policies: &[Arc<Policy>],
        visit: impl FnMut(&LoggedRequest<'_>),
    ) -> ReadSummary {
        let variants: Vec<_> =
            policies.iter().map(|policy| Variants::new(policy.clone())).collect();
        self.each_of(&variants, visit)
    }

    pub(super) fn each_of(
        self,
        policies: &[Variants],
        mut visit: impl FnMut(&LoggedRequest<'_>),
    ) -> ReadSummary {
        let Self { logs, options, progress, .. } = self;
        pipeline::run(logs, &options, policies, progress, &mut visit)
    }
}

impl Log {
    fn open<R: Read + Send + 'static>(
        name: &str,
        input: R,
        options: &ReadOptions,
        reads: &[ReadAttribute],
    ) -> Result<(Self, LogFields), OpenLogError> {
        let unreadable = |source| OpenLogError::Read { name: name.to_string(), source };
        let mut input = decompressed(input).map_err(unreadable)?;
        let (start, error) = read_start(&mut input);
        if let Some(error) = error.filter(|_| start.is_empty()) {
            return Err(unreadable(error));
        }
        let text = String::from_utf8_lossy(&start);
        let lines: Vec<&str> = text.lines().take(DETECT_LINES).collect();
        let format = match &options.format {
            Some(format) => format.clone(),
            None => LogFormat::detect(&lines).map_err(|source| {
                let name = name.to_string();
                OpenLogError::Format { name, source }
            })?,
        };
        let format = format.reading(reads.iter());
        let mut times = TimeCache::default();
        let first = lines.iter().find_map(|line| format.parse(line, &mut times).ok());
        let first_us = first.map_or(0, |record| record.at.get());
        let fields = format.fields(&lines);
        let input: Box<dyn Read + Send> = Box::new(Cursor::new(start).chain(input));
        let (name, lines) = (name.to_string(), Lines::new(input));
        Ok((Self { name, format: Arc::new(format), first_us, lines }, fields))
    }
}

/// Reads the beginning of a log, and the error that ends it. The next read has the error again.
fn read_start(input: &mut impl Read) -> (Vec<u8>, Option<io::Error>) {
    let mut start = Vec::new();
    let error = input.take(DETECT_BYTES as u64).read_to_end(&mut start).err();
    (start, error)
}
