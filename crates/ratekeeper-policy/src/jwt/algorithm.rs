//! The signature algorithms of tokens.

use std::fmt;
use std::str::FromStr;

use ring::hmac;
use ring::signature::{self, RsaParameters, VerificationAlgorithm};

use crate::suggest::closest;

use super::error::JwtKeyError;

/// A signature algorithm (RFC 7518, RFC 8037). `none` is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of RFC 7518 and RFC 8037")]
pub enum JwtAlgorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

/// The algorithms for a shared secret.
pub(super) const HMAC: &[JwtAlgorithm] =
    &[JwtAlgorithm::Hs256, JwtAlgorithm::Hs384, JwtAlgorithm::Hs512];

/// The algorithms for an RSA key.
pub(super) const RSA: &[JwtAlgorithm] = &[
    JwtAlgorithm::Rs256,
    JwtAlgorithm::Rs384,
    JwtAlgorithm::Rs512,
    JwtAlgorithm::Ps256,
    JwtAlgorithm::Ps384,
    JwtAlgorithm::Ps512,
];

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 12] = [
        Self::Hs256,
        Self::Hs384,
        Self::Hs512,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// Returns the name in tokens and key sets.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub(super) fn scheme(self) -> Scheme {
        match self {
            Self::Hs256 => Scheme::Hmac(hmac::HMAC_SHA256),
            Self::Hs384 => Scheme::Hmac(hmac::HMAC_SHA384),
            Self::Hs512 => Scheme::Hmac(hmac::HMAC_SHA512),
            Self::Rs256 => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Scheme::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Scheme::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            Self::Es256 => Scheme::Curve(&signature::ECDSA_P256_SHA256_FIXED),
            Self::Es384 => Scheme::Curve(&signature::ECDSA_P384_SHA384_FIXED),
            Self::EdDsa => Scheme::Curve(&signature::ED25519),
        }
    }
}

/// The algorithm as `ring` names it.
pub(super) enum Scheme {
    Hmac(hmac::Algorithm),
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl fmt::Display for JwtAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for JwtAlgorithm {
    type Err = JwtKeyError;

    fn from_str(name: &str) -> Result<Self, JwtKeyError> {
        Self::named(name).ok_or_else(|| {
            let names = Self::ALL.into_iter().map(Self::name);
            let closest = closest(&name.to_ascii_uppercase(), names).and_then(Self::named);
            JwtKeyError::UnknownAlgorithm { name: name.to_owned(), closest }
        })
    }
}
