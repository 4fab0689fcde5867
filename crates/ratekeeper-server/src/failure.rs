//! How a command fails: the message and the exit code.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use ratekeeper_core::LimitError;
use ratekeeper_lab::{SimulateError, TraceError};

use crate::style;

/// The error of a command-line argument whose value is not just one of a list.
pub(crate) type ErrorBox = Box<dyn Error + Send + Sync>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The input is invalid: exit code 2, as for an invalid option.
    #[error(transparent)]
    Input(ErrorBox),
    /// Reading or writing failed: exit code 1.
    #[error(transparent)]
    Io(ErrorBox),
    /// The input is invalid, and the reason has been printed: exit code 2.
    #[error("the input is invalid")]
    Reported,
    /// There are warnings, which have been printed and count as errors: exit code 1.
    #[error("there are warnings")]
    Warnings,
    /// A condition of `--fail-if` holds, which has been printed: exit code 3.
    #[error("a condition holds")]
    Exceeded,
    /// The reader of the output has closed the pipe, as with `| head`: exit code 0.
    #[error("the output was closed")]
    BrokenPipe,
}

impl Failure {
    pub(crate) fn input(error: impl Into<ErrorBox>) -> Self {
        Self::Input(error.into())
    }

    pub(crate) fn io(error: impl Into<ErrorBox>) -> Self {
        Self::Io(error.into())
    }

    pub(crate) fn output(error: io::Error) -> Self {
        SimulateError::Output(error).into()
    }

    /// Prints the error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (error, code) = match self {
            Self::Input(error) => (error, 2),
            Self::Io(error) => (error, 1),
            Self::Reported => return 2.into(),
            Self::Warnings => return 1.into(),
            Self::Exceeded => return 3.into(),
            Self::BrokenPipe => return ExitCode::SUCCESS,
        };
        // If standard error cannot be written to, the exit code is all there is.
        let (label, text) = (style::error("error:"), style::errors(&with_sources(&*error)));
        let _ = writeln!(style::stderr(), "{label} {text}");
        code.into()
    }
}

/// Returns the message of an error and of its sources, except those that it includes already.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.map(ToString::to_string).fold(error.to_string(), |text, source| {
        if text.contains(&source) { text } else { format!("{text}: {source}") }
    })
}

impl From<LimitError> for Failure {
    fn from(error: LimitError) -> Self {
        Self::input(error)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        if error.is_io() { Self::io(error) } else { Self::input(error) }
    }
}

impl From<SimulateError> for Failure {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Trace(error) => error.into(),
            SimulateError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Self::BrokenPipe
            }
            // The message of the store has its address.
            SimulateError::Store(error) => Self::Io(error),
            _ => Self::io(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_printed_once() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let expected = format!("cannot write the output: {}", full());
        assert_eq!(with_sources(&SimulateError::Output(full())), expected);
        assert_eq!(with_sources(&io::Error::other("no")), "no");
    }
}
