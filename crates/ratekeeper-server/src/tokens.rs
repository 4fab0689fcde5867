//! Bearer tokens and passwords that authenticate clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use ratekeeper::files::{FILE_BYTES_MAX, FileStamps, ReadError, read_text};
use subtle::{Choice, ConstantTimeEq};

use crate::failure::Failure;
use crate::reload::{LoadState, Reload};

/// The header with the token of a proxy, whose `Authorization` header is that of its client.
const PROXY_TOKEN: HeaderName = HeaderName::from_static("x-ratekeeper-token");

/// What the lines of a file are, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretKind {
    Token,
    AdminToken,
    AdminReadToken,
    Password,
}

impl SecretKind {
    fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::AdminToken => "admin token",
            Self::AdminReadToken => "admin token for reading",
            Self::Password => "password",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Token => "tokens",
            Self::AdminToken => "admin tokens",
            Self::AdminReadToken => "admin tokens for reading",
            Self::Password => "passwords",
        }
    }
}

/// The tokens that are accepted. Without any, no token is needed.
pub(crate) struct Tokens {
    kind: SecretKind,
    accepted: ArcSwap<Vec<Vec<u8>>>,
    file: Option<PathBuf>,
    loads: LoadState,
}

impl Tokens {
    /// Reads a file with one token on each line; empty lines and those that start with `#` are ignored.
    pub(crate) fn read(kind: SecretKind, file: &Path) -> Result<Self, Failure> {
        let loads = LoadState::loaded(FileStamps::of([file]));
        let accepted = read(kind, file).map_err(Failure::input)?;
        let (accepted, file) = (ArcSwap::from_pointee(accepted), Some(file.to_path_buf()));
        Ok(Self { kind, accepted, file, loads })
    }

    /// Reads a file, if there is one.
    pub(crate) fn read_if_named(
        kind: SecretKind,
        file: Option<&Path>,
    ) -> Result<Arc<Self>, Failure> {
        let tokens = file.map(|file| Self::read(kind, file)).transpose();
        tokens.map(|tokens| Arc::new(tokens.unwrap_or_default()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.accepted.load().is_empty()
    }

    /// Whether a request has one of them, or none is needed.
    pub(crate) fn allow(&self, headers: &HeaderMap) -> bool {
        self.is_empty() || self.has_bearer(headers)
    }

    /// Whether a request has one of them.
    pub(crate) fn has_bearer(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let Some((scheme, token)) = value.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && self.contains(token.trim_ascii())
    }

    /// The same for a proxy that forwards its client's `Authorization`, and has a header of its own.
    pub(crate) fn allow_proxy(&self, headers: &HeaderMap) -> bool {
        let token = headers.get(PROXY_TOKEN).map(|value| value.as_bytes());
        self.is_empty() || token.is_some_and(|token| self.contains(token.trim_ascii()))
    }

    /// Compares with all of them, and each to its end, so that the time reveals nothing.
    pub(crate) fn contains(&self, token: &[u8]) -> bool {
        let none = Choice::from(0);
        self.accepted
            .load()
            .iter()
            .fold(none, |found, accepted| found | accepted.ct_eq(token))
            .into()
    }
}

impl Reload for Tokens {
    type Value = Result<Vec<Vec<u8>>, TokensError>;
    type Error = TokensError;

    fn what(&self) -> &'static str {
        self.kind.plural()
    }

    fn is_from_file(&self) -> bool {
        self.file.is_some()
    }

    fn state(&self) -> &LoadState {
        &self.loads
    }

    fn source(&self) -> String {
        self.file.as_ref().map_or("no file".into(), |file| file.display().to_string())
    }

    fn read(&self) -> (Self::Value, FileStamps) {
        let stamps = FileStamps::of(&self.file);
        let accepted = self.file.as_ref().map(|file| read(self.kind, file));
        (accepted.unwrap_or_else(|| Ok(Vec::new())), stamps)
    }

    fn activate(&self, accepted: Self::Value) -> Result<String, TokensError> {
        let accepted = accepted?;
        let details = format!("count={}", accepted.len());
        self.accepted.store(Arc::new(accepted));
        Ok(details)
    }
}

/// Why the tokens of a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokensError {
    #[error("cannot read the {} in {}: {error}", kind.plural(), file.display())]
    Read { kind: SecretKind, file: PathBuf, error: ReadError },
    #[error("{} contains no {}; write one on each line", file.display(), kind.name())]
    Empty { kind: SecretKind, file: PathBuf },
}

fn read(kind: SecretKind, file: &Path) -> Result<Vec<Vec<u8>>, TokensError> {
    let text = read_text(file, FILE_BYTES_MAX).map_err(|error| TokensError::Read {
        kind,
        file: file.to_path_buf(),
        error,
    })?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let accepted: Vec<_> = lines.map(|line| line.as_bytes().to_vec()).collect();
    if accepted.is_empty() {
        return Err(TokensError::Empty { kind, file: file.to_path_buf() });
    }
    Ok(accepted)
}

impl Default for Tokens {
    fn default() -> Self {
        let loads = LoadState::loaded(FileStamps::default());
        Self { kind: SecretKind::Token, accepted: ArcSwap::default(), file: None, loads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tokens {
        pub(crate) fn of(tokens: &[&str]) -> Self {
            let accepted = tokens.iter().map(|token| token.as_bytes().to_vec()).collect();
            Self { accepted: ArcSwap::from_pointee(accepted), ..Self::default() }
        }
    }

    fn allows(tokens: &Tokens, value: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        value.map(|value| headers.insert(AUTHORIZATION, http::HeaderValue::from_static(value)));
        tokens.allow(&headers)
    }

    #[test]
    fn only_requests_with_a_token_are_allowed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\nalpha\n\n  beta  \n").unwrap();
        let Ok(tokens) = Tokens::read(SecretKind::Token, file.path()) else { panic!("tokens") };
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
