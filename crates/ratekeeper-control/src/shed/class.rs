//! Classes of requests, by priority.

use std::fmt;

/// A class of requests. Class 0 is the most important one and is shed last.
///
/// The constants are the criticalities of Google's SRE book, which [`ShedderConfig::DEFAULT`]
/// has. A program can have others: [`ShedderConfig::with_classes`].
///
/// ```
/// use ratekeeper_control::Class;
///
/// let [checkout, catalogue, prefetch] = [Class::new(0), Class::new(1), Class::new(2)];
/// assert!(checkout < catalogue, "by rank: the most important class first");
/// ```
///
/// [`ShedderConfig::DEFAULT`]: crate::ShedderConfig::DEFAULT
/// [`ShedderConfig::with_classes`]: crate::ShedderConfig::with_classes
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

impl Class {
    /// Requests whose failure is the most serious.
    pub const CRITICAL_PLUS: Self = Self(0);

    /// Requests whose failure a user notices.
    pub const CRITICAL: Self = Self(1);

    /// Requests that can fail for a while: what is retried in minutes.
    pub const SHEDDABLE_PLUS: Self = Self(2);

    /// Requests that can fail often: prefetches, what is retried in hours.
    pub const SHEDDABLE: Self = Self(3);

    /// Returns the class of this rank; 0 is the most important one.
    #[must_use]
    pub const fn new(rank: u8) -> Self {
        Self(rank)
    }

    /// Returns the rank.
    #[must_use]
    pub const fn rank(self) -> u8 {
        self.0
    }

    /// Returns this class, or the lowest one if there are fewer classes.
    pub(super) fn at_most(self, classes: u8) -> Self {
        Self(self.0.min(classes - 1))
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class {}", self.0)
    }
}
