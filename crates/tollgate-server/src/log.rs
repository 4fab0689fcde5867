//! The log of a process that serves, on standard error.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

pub(crate) fn start(format: LogFormat) {
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
    let log = log.with_target(false).with_max_level(LevelFilter::INFO);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
