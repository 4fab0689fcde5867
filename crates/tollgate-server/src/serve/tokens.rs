//! Bearer tokens: who may ask.

use std::path::Path;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::{Choice, ConstantTimeEq};

use crate::failure::Failure;

/// Tokens that are accepted. With none, everybody is.
#[derive(Default)]
pub(crate) struct Tokens(Vec<Vec<u8>>);

impl Tokens {
    /// One on each line; empty lines and those that begin with `#` do not count.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let unreadable = |error| format!("cannot read the tokens in {}: {error}", file.display());
        let text =
            std::fs::read_to_string(file).map_err(|error| Failure::input(unreadable(error)))?;
        let lines =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let tokens = Self::of(lines);
        if tokens.is_empty() {
            let message = format!("there is no token in {}; write one on a line", file.display());
            return Err(Failure::input(message));
        }
        Ok(tokens)
    }

    pub(crate) fn of<'t>(tokens: impl Iterator<Item = &'t str>) -> Self {
        Self(tokens.map(|token| token.as_bytes().to_vec()).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does it carry one of them, or is none needed?
    pub(crate) fn allow(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let value = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let Some((scheme, token)) = value.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && self.contains(token.trim_ascii())
    }

    /// Compares with all of them, and each to its end, so that time tells nothing.
    pub(crate) fn contains(&self, token: &[u8]) -> bool {
        let none = Choice::from(0);
        self.0.iter().fold(none, |found, known| found | known.ct_eq(token)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(tokens: &Tokens, value: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        value.map(|value| headers.insert(AUTHORIZATION, http::HeaderValue::from_static(value)));
        tokens.allow(&headers)
    }

    #[test]
    fn only_those_who_have_a_token_may_ask() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\nalpha\n\n  beta  \n").unwrap();
        let Ok(tokens) = Tokens::read(file.path()) else { panic!("tokens") };
        for good in ["Bearer alpha", "bearer beta", "Bearer  beta "] {
            assert!(allows(&tokens, Some(good)), "{good}");
        }
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer alph",
            "Bearer alphaa",
            "Basic alpha",
            "alpha",
            "Bearer # ours",
        ] {
            assert!(!allows(&tokens, Some(bad)), "{bad}");
        }
        assert!(!allows(&tokens, None));
        assert!(allows(&Tokens::default(), None));
    }
}
