//! The log of a server, on standard error. A warning that repeats is logged once, and then at most every ten
//! seconds with the number of suppressed ones: a client that resets its connections must not fill a disk.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How often a warning that repeats is logged.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How many different warnings are logged in that time.
const WARNINGS_MAX: usize = 256;

/// The options of the log.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// Level of the log; the environment variable RUST_LOG overrides it [default: info]
    #[arg(long, value_enum, help_heading = "Logs")]
    log_level: Option<LogLevel>,

    /// Format of the log on standard error [default: text]
    #[arg(long, value_enum, help_heading = "Logs")]
    log_format: Option<LogFormat>,
}

impl LogOptions {
    /// Takes what the command line does not set from elsewhere.
    pub(crate) fn or(self, level: Option<LogLevel>, format: Option<LogFormat>) -> Self {
        Self { log_level: self.log_level.or(level), log_format: self.log_format.or(format) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Why the log cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("RUST_LOG is invalid: {0}; use a level such as debug, or target=level pairs")]
pub(crate) struct InvalidLogFilter(#[from] tracing_subscriber::filter::ParseError);

/// Starts the log of the process.
///
/// # Errors
///
/// If `RUST_LOG` is invalid.
pub(crate) fn start(options: LogOptions) -> Result<(), InvalidLogFilter> {
    let variable = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = EnvFilter::builder()
        .with_default_directive(options.log_level.unwrap_or(LogLevel::Info).into());
    let filter = filter.parse(variable)?;
    let format = options.log_format.unwrap_or(LogFormat::Text);
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
    let log = log.with_target(false).with_env_filter(filter);
    match format {
        LogFormat::Text => log.map_event_format(|inner| RepeatLimit::new(inner, format)).init(),
        LogFormat::Json => {
            log.json().map_event_format(|inner| RepeatLimit::new(inner, format)).init();
        }
    }
    Ok(())
}

impl From<LogLevel> for Directive {
    fn from(level: LogLevel) -> Self {
        let level = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        level.into()
    }
}

/// Suppresses warnings and errors that repeat too soon.
struct RepeatLimit<F> {
    inner: F,
    format: LogFormat,
    repeats: Mutex<Repeats>,
}

impl<F> RepeatLimit<F> {
    fn new(inner: F, format: LogFormat) -> Self {
        Self { inner, format, repeats: Mutex::default() }
    }

    fn log(&self, event: &Event<'_>, fields: &EventFields) -> Logged {
        let mut hasher = DefaultHasher::new();
        (event.metadata().callsite(), &fields.all).hash(&mut hasher);
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        repeats.log(hasher.finish(), Instant::now())
    }

    fn write_suppressed(&self, count: u64, of: &str, writer: &mut Writer<'_>) -> fmt::Result {
        let message = "repeated log lines were suppressed";
        match self.format {
            LogFormat::Text => writeln!(writer, "WARN {message} count={count} of={of:?}"),
            LogFormat::Json => {
                let fields = json!({ "message": message, "count": count, "of": of });
                writeln!(writer, "{}", json!({ "level": "WARN", "fields": fields }))
            }
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for RepeatLimit<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if *event.metadata().level() <= Level::WARN {
            let mut fields = EventFields::default();
            event.record(&mut fields);
            match self.log(event, &fields) {
                Logged::No => return Ok(()),
                Logged::Yes { suppressed: 0 } => {}
                Logged::Yes { suppressed } => {
                    self.write_suppressed(suppressed, &fields.message, &mut writer)?;
                }
            }
        }
        self.inner.format_event(context, writer, event)
    }
}

/// The fields of an event.
#[derive(Default)]
struct EventFields {
    all: String,
    message: String,
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // A warning about another peer is the same warning.
        if field.name() != "peer" {
            _ = write!(self.all, "{}={value:?} ", field.name());
        }
        if field.name() == "message" {
            _ = write!(self.message, "{value:?}");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logged {
    /// It is logged, and this many like it were suppressed since the last.
    Yes {
        suppressed: u64,
    },
    No,
}

/// The warnings that were logged recently.
#[derive(Default)]
struct Repeats {
    known: HashMap<u64, Repeat>,
}

struct Repeat {
    logged_at: Instant,
    suppressed: u64,
}

impl Repeats {
    fn log(&mut self, warning: u64, now: Instant) -> Logged {
        let is_over = |repeat: &Repeat| now.duration_since(repeat.logged_at) >= REPEAT_INTERVAL;
        if !self.known.contains_key(&warning) && self.known.len() >= WARNINGS_MAX {
            self.known.retain(|_, repeat| !is_over(repeat) || repeat.suppressed > 0);
            if self.known.len() >= WARNINGS_MAX {
                self.known.retain(|_, repeat| !is_over(repeat));
            }
        }
        let is_full = self.known.len() >= WARNINGS_MAX;
        match self.known.get_mut(&warning) {
            Some(repeat) if is_over(repeat) => {
                repeat.logged_at = now;
                Logged::Yes { suppressed: std::mem::take(&mut repeat.suppressed) }
            }
            Some(repeat) => {
                repeat.suppressed += 1;
                Logged::No
            }
            None if is_full => Logged::No,
            None => {
                self.known.insert(warning, Repeat { logged_at: now, suppressed: 0 });
                Logged::Yes { suppressed: 0 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_that_repeats_is_logged_once_in_a_while_and_counted() {
        let mut repeats = Repeats::default();
        let first = Logged::Yes { suppressed: 0 };
        assert_eq!(repeats.log(1, Instant::now()), first);
        for _ in 0..5_737 {
            assert_eq!(repeats.log(1, Instant::now()), Logged::No);
        }
        assert_eq!(repeats.log(2, Instant::now()), first, "another warning is logged");
        tokio::time::advance(REPEAT_INTERVAL).await;
        assert_eq!(repeats.log(1, Instant::now()), Logged::Yes { suppressed: 5_737 });
        assert_eq!(repeats.log(1, Instant::now()), Logged::No);
    }

    #[tokio::test(start_paused = true)]
    async fn warnings_that_all_differ_are_bounded_too() {
        let mut repeats = Repeats::default();
        let mut logged = |from: u64| {
            let all = from..from + 100_000;
            all.filter(|one| repeats.log(*one, Instant::now()) != Logged::No).count()
        };
        assert_eq!(logged(0), WARNINGS_MAX);
        tokio::time::advance(REPEAT_INTERVAL).await;
        assert_eq!(logged(1_000_000), WARNINGS_MAX);
        assert_eq!(repeats.known.len(), WARNINGS_MAX);
    }

    /// What a subscriber writes, in a test.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Two rounds of warnings, ten seconds apart.
    async fn warn_often() {
        for round in 0..2 {
            for port in 0..100 {
                tracing::warn!(peer = port, "connection reset");
                tracing::info!("no warning");
            }
            tracing::error!(round, "another");
            tokio::time::advance(REPEAT_INTERVAL).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_logged_says_how_much_is_missing() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
        let log = log.without_time().with_target(false);
        let log = log.map_event_format(|inner| RepeatLimit::new(inner, LogFormat::Text)).finish();
        let _logging = tracing::subscriber::set_default(log);
        warn_often().await;
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let warnings: Vec<_> = text.lines().filter(|line| !line.contains("INFO")).collect();
        assert_eq!(
            warnings,
            [
                " WARN connection reset peer=0",
                "ERROR another round=0",
                "WARN repeated log lines were suppressed count=99 of=\"connection reset\"",
                " WARN connection reset peer=0",
                "ERROR another round=1",
            ]
        );
        assert_eq!(text.matches("INFO no warning").count(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn every_line_in_json_is_json() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).json();
        let log = log.map_event_format(|inner| RepeatLimit::new(inner, LogFormat::Json)).finish();
        let _logging = tracing::subscriber::set_default(log);
        warn_often().await;
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let all = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let suppressed = all.map(|line| line["fields"]["count"].as_u64().unwrap_or_default());
        assert_eq!(suppressed.sum::<u64>(), 99);
    }
}
