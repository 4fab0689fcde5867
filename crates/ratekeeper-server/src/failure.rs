//! How a command ends when it cannot do what was asked.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use ratekeeper_core::LimitError;
use ratekeeper_lab::{SimulateError, TraceError};

/// Why a command failed.
pub(crate) enum Failure {
    /// What was given cannot be used: exit code 2, as for a wrong option.
    Input(String),
    /// Reading or writing failed: exit code 1.
    Io(String),
    /// What was given cannot be used, and why has been told.
    Told,
    /// Nobody reads the output any more, as with `| head`. That is not a failure.
    NoReader,
}

impl Failure {
    pub(crate) fn input(message: impl Display) -> Self {
        Self::Input(message.to_string())
    }

    pub(crate) fn io(message: impl Display) -> Self {
        Self::Io(message.to_string())
    }

    pub(crate) fn output(error: io::Error) -> Self {
        SimulateError::Output(error).into()
    }

    /// Tells the user and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Input(message) => (message, 2),
            Self::Io(message) => (message, 1),
            Self::Told => return 2.into(),
            Self::NoReader => return ExitCode::SUCCESS,
        };
        // If not even that can be written, the exit code has to do.
        let _ = writeln!(io::stderr(), "error: {message}");
        code.into()
    }
}

impl From<LimitError> for Failure {
    fn from(error: LimitError) -> Self {
        Self::input(error)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        let message = error.to_string();
        if error.is_io() { Self::Io(message) } else { Self::Input(message) }
    }
}

impl From<SimulateError> for Failure {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Trace(error) => error.into(),
            SimulateError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Self::NoReader
            }
            SimulateError::Output(_) | SimulateError::Store(_) => Self::Io(error.to_string()),
        }
    }
}
