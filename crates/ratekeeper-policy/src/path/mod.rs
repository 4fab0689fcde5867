//! Path normalization, path patterns, and an index over many patterns.

mod affix;
mod glob;
mod index;
mod normalize;
mod pattern;
mod readings;

pub(crate) use affix::AffixMap;
pub use glob::Glob;
#[cfg(test)]
pub(crate) use glob::work;
pub use index::PathIndex;
pub use normalize::normalize;
pub(crate) use normalize::percent_decoded;
pub use pattern::{PathPattern, PatternError, PatternErrorKind};
pub(crate) use readings::readings;

/// Splits a path without its leading slash into its first segment and the rest.
fn split_first(path: &str) -> Option<(&str, &str)> {
    match path {
        "" => None,
        _ => Some(path.split_once('/').unwrap_or((path, ""))),
    }
}
