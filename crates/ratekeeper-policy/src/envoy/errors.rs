//! Errors of a set of files.

use std::fmt;

use crate::problems::PolicyErrors;

/// The errors of all invalid files of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyErrors(Vec<PolicyErrors>);

impl EnvoyErrors {
    pub(super) fn new(files: Vec<PolicyErrors>) -> Self {
        Self(files)
    }

    /// Returns the errors of each invalid file.
    #[must_use]
    pub fn files(&self) -> &[PolicyErrors] {
        &self.0
    }
}

/// The error of a single file, or of a directory that cannot be read.
impl From<PolicyErrors> for EnvoyErrors {
    fn from(file: PolicyErrors) -> Self {
        Self(vec![file])
    }
}

impl fmt::Display for EnvoyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, file) in self.0.iter().enumerate() {
            if i > 0 {
                write!(f, "\n\n")?;
            }
            file.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for EnvoyErrors {}
