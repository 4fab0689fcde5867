//! Limits that have been asked for lately, so that a question need not make its own again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use ratekeeper::{Limit, LimitError};

use super::ask::Wrong;
use crate::serve::caller_limit;

/// The most limits that a thread keeps. Beyond that, all are forgotten and made again: whoever has so
/// many does not ask for the same ones twice.
const KEPT_MAX: usize = 1_024;

/// A limit as a caller writes it.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) rate: &'a str,
    pub(super) algorithm: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

#[derive(Default)]
struct Kept {
    limits: HashMap<Box<str>, Arc<Limit>>,
    /// What a limit is kept under, for the one that is looked for.
    wanted: String,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

impl Asked<'_> {
    pub(super) fn limit(self) -> Result<Arc<Limit>, Wrong> {
        KEPT.with_borrow_mut(|kept| self.limit_of(kept))
    }

    fn limit_of(self, kept: &mut Kept) -> Result<Arc<Limit>, Wrong> {
        let Kept { limits, wanted } = kept;
        wanted.clear();
        // None of these can have a zero byte in it and be a limit.
        for part in [Some(self.rate), self.algorithm, self.name] {
            wanted.push_str(part.unwrap_or("\0"));
            wanted.push('\0');
        }
        if let Some(limit) = limits.get(wanted.as_str()) {
            return Ok(Arc::clone(limit));
        }
        let limit = Arc::new(self.made()?);
        if limits.len() >= KEPT_MAX {
            limits.clear();
        }
        limits.insert(wanted.as_str().into(), Arc::clone(&limit));
        Ok(limit)
    }

    fn made(self) -> Result<Limit, Wrong> {
        let algorithm = self.algorithm.map(str::parse).transpose();
        let algorithm = algorithm.map_err(|error: LimitError| error.to_string())?;
        caller_limit::build(self.rate, algorithm, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rate: &str) -> Asked<'_> {
        Asked { rate, algorithm: None, name: None }
    }

    #[test]
    fn a_limit_is_made_once_and_others_are_others() {
        let kept = &mut Kept::default();
        let first = asked("5/s").limit_of(kept).unwrap();
        assert!(Arc::ptr_eq(&first, &asked("5/s").limit_of(kept).unwrap()));
        let other = Asked { algorithm: Some("fixed_window"), ..asked("5/s") };
        assert_eq!(other.limit_of(kept).unwrap().to_string(), "fixed_window 5/s");
        let named = Asked { name: Some("fixed_window"), ..asked("5/s") };
        assert_eq!(named.limit_of(kept).unwrap().name(), "fixed_window");
        assert!(Asked { name: Some(""), ..asked("5/s") }.limit_of(kept).is_err());
    }

    #[test]
    fn no_more_are_kept_than_the_bound_and_nothing_that_is_no_limit() {
        let kept = &mut Kept::default();
        for count in 1..=3 * KEPT_MAX {
            asked(&format!("{count}/day")).limit_of(kept).unwrap();
            assert!(kept.limits.len() <= KEPT_MAX);
        }
        let before = kept.limits.len();
        assert!(asked("5/fortnight").limit_of(kept).is_err());
        assert!(asked(&(" ".repeat(128) + "5/s")).limit_of(kept).is_err());
        assert_eq!(kept.limits.len(), before);
    }
}
