//! Keys that verify signatures, each with the algorithms that it may be used with.

use std::fmt;

use ring::agreement::{self, ECDH_P256, ECDH_P384, EphemeralPrivateKey, agree_ephemeral};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};

use super::algorithm::{HMAC, JwtAlgorithm, RSA, Scheme};
use super::error::{JwtKeyError, KeyMaterialError};
use super::{jwks, pem};

/// Keys that verify tokens: a secret, a public key, or a set of keys.
///
/// ```
/// # use ratekeeper_policy::jwt::JwtKey;
/// assert!(JwtKey::secret(b"a long random secret").is_ok());
/// assert!(JwtKey::jwks(r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}"#).is_ok());
/// assert!(JwtKey::pem("-----BEGIN PRIVATE KEY-----").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct JwtKey {
    keys: Vec<VerificationKey>,
}

impl JwtKey {
    /// Creates a key from a secret that is shared with the issuer, for HS256, HS384 and HS512.
    ///
    /// # Errors
    ///
    /// If the secret is empty or is a key in PEM.
    pub fn secret(bytes: &[u8]) -> Result<Self, JwtKeyError> {
        if bytes.trim_ascii_start().starts_with(b"-----BEGIN") {
            return Err(JwtKeyError::SecretIsPem);
        }
        Ok(Self { keys: vec![VerificationKey::secret(bytes)?] })
    }

    /// Parses a public key in PEM: RSA, P-256, P-384 or Ed25519.
    ///
    /// # Errors
    ///
    /// If the text is not one such key.
    pub fn pem(text: &str) -> Result<Self, JwtKeyError> {
        Ok(Self { keys: vec![pem::parse(text)?] })
    }

    /// Parses a JSON Web Key Set (RFC 7517), such as `{"keys": [{"kty": "RSA", …}]}`. Keys that are not
    /// for signatures, or of unknown types, are ignored.
    ///
    /// # Errors
    ///
    /// If the text is not a key set, or none of its keys can verify signatures.
    pub fn jwks(json: &str) -> Result<Self, JwtKeyError> {
        Ok(Self { keys: jwks::parse(json)? })
    }

    pub(super) fn into_keys(self) -> Vec<VerificationKey> {
        self.keys
    }
}

/// One key, with its id and the algorithms that it may be used with.
#[derive(Clone, Debug)]
pub(super) struct VerificationKey {
    id: Option<String>,
    algorithms: Vec<JwtAlgorithm>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Vec<u8>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// A point in SEC 1 encoding, or the 32 bytes of Ed25519.
    Point(Vec<u8>),
}

impl VerificationKey {
    pub(super) fn secret(bytes: &[u8]) -> Result<Self, KeyMaterialError> {
        if bytes.is_empty() {
            return Err(KeyMaterialError::EmptySecret);
        }
        Ok(Self::new(HMAC, Material::Secret(bytes.to_vec())))
    }

    /// Creates an RSA key from its numbers in big-endian order. Larger keys are rejected because they
    /// only make verification slower.
    pub(super) fn rsa(modulus: &[u8], exponent: &[u8]) -> Result<Self, KeyMaterialError> {
        let (modulus, exponent) = (without_zeros(modulus), without_zeros(exponent));
        let bits =
            modulus.first().map_or(0, |byte| modulus.len() * 8 - byte.leading_zeros() as usize);
        if !(2048..=4096).contains(&bits) {
            return Err(KeyMaterialError::RsaSize { bits });
        }
        let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
        if !is_odd(modulus) || !is_odd(exponent) || exponent.len() > 4 || exponent == [1] {
            return Err(KeyMaterialError::InvalidRsa);
        }
        let numbers = RsaPublicKeyComponents { n: modulus.to_vec(), e: exponent.to_vec() };
        Ok(Self::new(RSA, Material::Rsa(numbers)))
    }

    /// Creates a key from a point on P-256 or P-384, in SEC 1 encoding.
    pub(super) fn point(sec1: &[u8]) -> Result<Self, KeyMaterialError> {
        if matches!(sec1, [2 | 3, ..]) {
            return Err(KeyMaterialError::CompressedPoint);
        }
        let algorithm = match sec1.len() {
            65 if is_on_curve(&ECDH_P256, sec1) => JwtAlgorithm::Es256,
            97 if is_on_curve(&ECDH_P384, sec1) => JwtAlgorithm::Es384,
            _ => return Err(KeyMaterialError::NotOnCurve),
        };
        Ok(Self::new(&[algorithm], Material::Point(sec1.to_vec())))
    }

    pub(super) fn ed25519(bytes: &[u8]) -> Result<Self, KeyMaterialError> {
        if bytes.len() != 32 {
            return Err(KeyMaterialError::Ed25519Size { bytes: bytes.len() });
        }
        Ok(Self::new(&[JwtAlgorithm::EdDsa], Material::Point(bytes.to_vec())))
    }

    fn new(algorithms: &[JwtAlgorithm], material: Material) -> Self {
        Self { id: None, algorithms: algorithms.to_vec(), material }
    }

    pub(super) fn with_id(self, id: Option<&str>) -> Self {
        Self { id: id.map(str::to_owned), ..self }
    }

    pub(super) fn allows(&self, algorithm: JwtAlgorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    pub(super) fn restricted_to(&self, allowed: &[JwtAlgorithm]) -> Option<Self> {
        let both = self.algorithms.iter().copied().filter(|one| allowed.contains(one)).collect();
        let key = Self { algorithms: both, ..self.clone() };
        (!key.algorithms.is_empty()).then_some(key)
    }

    /// Returns whether a token with this `kid`, or none, may be signed with this key. A key without an
    /// id may be any.
    pub(super) fn has_id(&self, id: Option<&str>) -> bool {
        self.id.is_none() || id.is_none() || self.id.as_deref() == id
    }

    /// Returns whether the signature is valid.
    pub(super) fn verifies(
        &self,
        algorithm: JwtAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        self.allows(algorithm) && self.material.verifies(&algorithm.scheme(), message, signature)
    }
}

impl Material {
    fn verifies(&self, scheme: &Scheme, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (self, scheme) {
            (Self::Secret(secret), Scheme::Hmac(algorithm)) => {
                hmac::verify(&hmac::Key::new(*algorithm, secret), message, signature)
            }
            (Self::Rsa(key), Scheme::Rsa(parameters)) => key.verify(parameters, message, signature),
            (Self::Point(point), Scheme::Curve(algorithm)) => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, signature)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}

/// Shows the kind and nothing of the content: a secret must not be logged.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Rsa(_) => "Rsa",
            Self::Point(_) => "Point",
        })
    }
}

/// Checks a point by a key agreement: ring has no other check, and when a signature does not verify, it
/// does not say whether the key or the signature is wrong.
fn is_on_curve(curve: &'static agreement::Algorithm, point: &[u8]) -> bool {
    let Ok(own) = EphemeralPrivateKey::generate(curve, &SystemRandom::new()) else { return false };
    agree_ephemeral(own, &agreement::UnparsedPublicKey::new(curve, point), |_| ()).is_ok()
}

/// Removes leading zeros.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
