//! What is wrong with a set of files.

use std::fmt;

use crate::problems::PolicyErrors;

/// What is wrong with a set of files: for each bad one, all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyErrors(Vec<PolicyErrors>);

impl EnvoyErrors {
    pub(super) fn new(files: Vec<PolicyErrors>) -> Self {
        Self(files)
    }

    /// Each bad file.
    pub fn files(&self) -> &[PolicyErrors] {
        &self.0
    }
}

/// A file, or a folder of files, that cannot even be read.
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
