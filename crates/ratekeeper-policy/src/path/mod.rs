//! Paths as limits see them: one spelling each, patterns over them, and an index of many patterns.

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
pub use pattern::{PathPattern, PatternError};
pub(crate) use readings::readings;

/// The first segment of a path without its leading slash, and what follows it.
fn split_first(path: &str) -> Option<(&str, &str)> {
    match path {
        "" => None,
        _ => Some(path.split_once('/').unwrap_or((path, ""))),
    }
}
