//! The databases that `SELECT` chooses between: namespaces of keys.

use super::commands::CommandError;

/// As many as Redis has by default.
pub(super) const DATABASES: u8 = 16;

/// The number of a database, less than [`DATABASES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Database(u8);

impl Database {
    /// Parses a number as Redis does: without a sign or leading zeros.
    ///
    /// # Errors
    ///
    /// If there is no such database.
    pub(super) fn parse(text: &[u8]) -> Result<Self, CommandError> {
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u8>().ok());
        let number = number.filter(|number| *number < DATABASES);
        // `+1` and `01` are numbers, but not for Redis.
        let number = number.filter(|number| number.to_string().as_bytes() == text);
        number.map(Self).ok_or(CommandError::DbIndex)
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..DATABASES).map(Self)
    }

    pub(super) fn number(self) -> u8 {
        self.0
    }
}
