//! Bearer tokens: who may ask.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use ratekeeper::files::{FILE_BYTES_MAX, LoadError, read_text};
use subtle::{Choice, ConstantTimeEq};

use crate::failure::Failure;
use crate::reload::{Reload, ReloadState, When};
use crate::watched::{Stamps, WatchedFiles};

/// In what a proxy shows its token that asks about somebody else's request.
const PROXY_TOKEN: HeaderName = HeaderName::from_static("x-ratekeeper-token");

/// Tokens that are accepted. With none, everybody is.
#[derive(Default)]
pub(crate) struct Tokens {
    known: ArcSwap<Vec<Vec<u8>>>,
    /// Where they come from.
    file: Option<(PathBuf, WatchedFiles)>,
    reload: ReloadState,
}

impl Tokens {
    /// One on each line; empty lines and those that begin with `#` do not count.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let watched = WatchedFiles::new(vec![file.to_path_buf()]);
        let known = read(file).map_err(Failure::input)?;
        let (known, file) = (ArcSwap::from_pointee(known), Some((file.to_path_buf(), watched)));
        Ok(Self { known, file, reload: ReloadState::default() })
    }

    /// From a file, or none.
    pub(crate) fn read_if_named(file: Option<&Path>) -> Result<Arc<Self>, Failure> {
        file.map(Self::read).transpose().map(|tokens| Arc::new(tokens.unwrap_or_default()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.load().is_empty()
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

    /// The same for a proxy that passes on its caller's `Authorization`, and has a header of its own.
    pub(crate) fn allow_proxy(&self, headers: &HeaderMap) -> bool {
        let token = headers.get(PROXY_TOKEN).map(|value| value.as_bytes());
        self.is_empty() || token.is_some_and(|token| self.contains(token.trim_ascii()))
    }

    /// Compares with all of them, and each to its end, so that time tells nothing.
    pub(crate) fn contains(&self, token: &[u8]) -> bool {
        let none = Choice::from(0);
        self.known.load().iter().fold(none, |found, known| found | known.ct_eq(token)).into()
    }
}

impl Reload for Tokens {
    type Fresh = (Result<Vec<Vec<u8>>, String>, Stamps);

    fn state(&self) -> &ReloadState {
        &self.reload
    }

    fn read(&self, when: When) -> Option<Self::Fresh> {
        let (file, watched) = self.file.as_ref()?;
        // Before it is read, so that what changes meanwhile is noticed.
        let stamps = watched.stamps();
        let is_due = when == When::Always || watched.have_changed(&stamps);
        is_due.then(|| (read(file), stamps))
    }

    fn apply(&self, (known, stamps): Self::Fresh) -> bool {
        let Some((file, watched)) = &self.file else { return true };
        watched.loaded(stamps);
        match known {
            Ok(known) => {
                tracing::info!(file = %file.display(), tokens = known.len(), "tokens reloaded");
                self.known.store(Arc::new(known));
                true
            }
            Err(error) => {
                tracing::error!(%error, "tokens not reloaded, the old ones stay");
                false
            }
        }
    }

    fn reject(&self, error: &LoadError, is_first: bool) {
        if let (Some((file, _)), true) = (&self.file, is_first) {
            let file = file.display();
            tracing::error!(%file, %error, "tokens not reloaded, the old ones stay");
        }
    }
}

fn read(file: &Path) -> Result<Vec<Vec<u8>>, String> {
    let text = read_text(file, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read the tokens in {}: {error}", file.display()))?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let known: Vec<_> = lines.map(|line| line.as_bytes().to_vec()).collect();
    if known.is_empty() {
        return Err(format!("there is no token in {}; write one on a line", file.display()));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tokens {
        pub(crate) fn of(tokens: &[&str]) -> Self {
            let known = tokens.iter().map(|token| token.as_bytes().to_vec()).collect();
            Self { known: ArcSwap::from_pointee(known), ..Self::default() }
        }
    }

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
