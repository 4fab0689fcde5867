use std::error::Error;
use std::fmt;

use super::JwtAlgorithm;
use super::token::BYTES_MAX;
use crate::json::JsonError;
use crate::problems::quoted;

/// Why a token is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JwtError {
    /// It is no token.
    Malformed,
    /// It has more bytes than are read.
    TooLong,
    /// Its header or one of its claims has two members of this name.
    Duplicate(String),
    /// It is signed in a way that none of the keys allows.
    Algorithm(String),
    /// It names a key that is not among ours.
    UnknownKey,
    /// None of the keys has signed it.
    Signature,
    /// It has no `exp`.
    NoExpiry,
    /// Its `exp` has passed.
    Expired {
        /// How long ago, without leeway.
        seconds_ago: u64,
    },
    /// Its `nbf` is still to come.
    NotYetValid,
    /// It comes from another issuer.
    Issuer,
    /// It is meant for another audience.
    Audience,
}

impl fmt::Display for JwtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("this is no JSON Web Token"),
            Self::TooLong => write!(f, "the token is too long: at most {BYTES_MAX} bytes"),
            Self::Duplicate(name) => write!(f, "the token gives {} twice", quoted(name)),
            // Quoted and escaped: the caller wrote it.
            Self::Algorithm(name) => write!(f, "tokens signed with {name:?} are not accepted"),
            Self::UnknownKey => f.write_str("the token names a key that is not known here"),
            Self::Signature => f.write_str("the signature of the token is wrong"),
            Self::NoExpiry => f.write_str("the token has no expiry"),
            Self::Expired { seconds_ago } => write!(f, "the token expired {seconds_ago} s ago"),
            Self::NotYetValid => f.write_str("the token is not valid yet"),
            Self::Issuer => f.write_str("the token comes from another issuer"),
            Self::Audience => f.write_str("the token is meant for another audience"),
        }
    }
}

impl Error for JwtError {}

impl From<JsonError> for JwtError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Duplicate { name, .. } => Self::Duplicate(name),
            JsonError::Invalid(_) => Self::Malformed,
        }
    }
}

/// Why a key cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtKeyError {
    message: String,
}

impl JwtKeyError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    pub(super) fn no_key_for(
        wanted: &[JwtAlgorithm],
        can: impl Iterator<Item = JwtAlgorithm>,
    ) -> Self {
        let names = |algorithms: Vec<JwtAlgorithm>| {
            algorithms.into_iter().map(JwtAlgorithm::name).collect::<Vec<_>>().join(", ")
        };
        let wanted = names(wanted.to_vec());
        let can: Vec<JwtAlgorithm> = can.collect();
        let can = names(JwtAlgorithm::ALL.into_iter().filter(|one| can.contains(one)).collect());
        Self::new(format!("no key can verify [{wanted}]: the keys given are for [{can}]"))
    }
}

impl fmt::Display for JwtKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for JwtKeyError {}
