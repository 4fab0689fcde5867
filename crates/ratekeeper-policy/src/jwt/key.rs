//! Keys, each with the algorithms that it may be used with.

use std::fmt;

use ring::agreement::{self, ECDH_P256, ECDH_P384, EphemeralPrivateKey, agree_ephemeral};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};

use super::algorithm::{HMAC, JwtAlgorithm, RSA, Scheme};
use super::error::JwtKeyError;
use super::{jwks, pem};

/// What tokens are verified with: a secret, a public key, or a set of keys.
#[derive(Clone, Debug)]
pub struct JwtKey {
    keys: Vec<VerificationKey>,
}

impl JwtKey {
    /// A secret that is shared with the issuer, for HS256, HS384 and HS512.
    pub fn secret(bytes: &[u8]) -> Result<Self, JwtKeyError> {
        if bytes.trim_ascii_start().starts_with(b"-----BEGIN") {
            // As a secret, it would let all who know the public key sign.
            return Err(JwtKeyError::new("this secret is a PEM key: give it as PEM"));
        }
        Ok(Self { keys: vec![VerificationKey::secret(bytes).map_err(JwtKeyError::new)?] })
    }

    /// A public key in PEM: RSA, P-256, P-384 or Ed25519.
    pub fn pem(text: &str) -> Result<Self, JwtKeyError> {
        Ok(Self { keys: vec![pem::parse(text).map_err(JwtKeyError::new)?] })
    }

    /// A set of keys as issuers publish it (RFC 7517), such as `{"keys": [{"kty": "RSA", …}]}`.
    /// Keys that are not for signatures, or of kinds unknown here, are left out.
    pub fn jwks(json: &str) -> Result<Self, JwtKeyError> {
        Ok(Self { keys: jwks::parse(json).map_err(JwtKeyError::new)? })
    }

    pub(super) fn into_keys(self) -> Vec<VerificationKey> {
        self.keys
    }
}

/// One key.
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
    /// A point as SEC 1 encodes it, or the 32 bytes of Ed25519.
    Point(Vec<u8>),
}

impl VerificationKey {
    pub(super) fn secret(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the secret is empty: anyone could sign with it".into());
        }
        Ok(Self::new(HMAC, Material::Secret(bytes.to_vec())))
    }

    /// The numbers of an RSA key, most significant byte first. Larger keys than these would only
    /// cost more.
    pub(super) fn rsa(modulus: &[u8], exponent: &[u8]) -> Result<Self, String> {
        let (modulus, exponent) = (without_zeros(modulus), without_zeros(exponent));
        let bits =
            modulus.first().map_or(0, |byte| modulus.len() * 8 - byte.leading_zeros() as usize);
        if !(2048..=4096).contains(&bits) {
            return Err(format!("this RSA key has {bits} bits: it must have 2048 to 4096"));
        }
        let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
        if !is_odd(modulus) || !is_odd(exponent) || exponent.len() > 4 || exponent == [1] {
            return Err("this RSA key is broken: its modulus and exponent are odd numbers".into());
        }
        let numbers = RsaPublicKeyComponents { n: modulus.to_vec(), e: exponent.to_vec() };
        Ok(Self::new(RSA, Material::Rsa(numbers)))
    }

    /// A point on one of the curves, as SEC 1 encodes it.
    pub(super) fn point(sec1: &[u8]) -> Result<Self, String> {
        if matches!(sec1, [2 | 3, ..]) {
            return Err("this key is a compressed point: `openssl ec -pubin -conv_form \
                 uncompressed -in FILE` prints it in full"
                .into());
        }
        let algorithm = match sec1.len() {
            65 if is_on_curve(&ECDH_P256, sec1) => JwtAlgorithm::Es256,
            97 if is_on_curve(&ECDH_P384, sec1) => JwtAlgorithm::Es384,
            _ => return Err("this is no point on the curves P-256 and P-384".into()),
        };
        Ok(Self::new(&[algorithm], Material::Point(sec1.to_vec())))
    }

    pub(super) fn ed25519(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() != 32 {
            return Err("this is no Ed25519 key: it has 32 bytes".into());
        }
        Ok(Self::new(&[JwtAlgorithm::EdDsa], Material::Point(bytes.to_vec())))
    }

    fn new(algorithms: &[JwtAlgorithm], material: Material) -> Self {
        Self { id: None, algorithms: algorithms.to_vec(), material }
    }

    pub(super) fn with_id(self, id: Option<&str>) -> Self {
        Self { id: id.map(str::to_owned), ..self }
    }

    pub(super) fn algorithms(&self) -> &[JwtAlgorithm] {
        &self.algorithms
    }

    pub(super) fn allows(&self, algorithm: JwtAlgorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    pub(super) fn restricted_to(&self, allowed: &[JwtAlgorithm]) -> Option<Self> {
        let both = self.algorithms.iter().copied().filter(|one| allowed.contains(one)).collect();
        let key = Self { algorithms: both, ..self.clone() };
        (!key.algorithms.is_empty()).then_some(key)
    }

    /// Whether a token that names this key, or none, may mean us. A key without a name may be any.
    pub(super) fn answers_to(&self, id: Option<&str>) -> bool {
        self.id.is_none() || id.is_none() || self.id.as_deref() == id
    }

    pub(super) fn has_signed(
        &self,
        algorithm: JwtAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        self.allows(algorithm) && self.material.has_signed(&algorithm.scheme(), message, signature)
    }
}

impl Material {
    fn has_signed(&self, scheme: &Scheme, message: &[u8], signature: &[u8]) -> bool {
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

/// Says what kind it is and nothing of its content: a secret must not be logged.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Rsa(_) => "Rsa",
            Self::Point(_) => "Point",
        })
    }
}

/// Agreeing on a key is how ring checks a point; verifying a signature would not say which of the two
/// is wrong.
fn is_on_curve(curve: &'static agreement::Algorithm, point: &[u8]) -> bool {
    let Ok(own) = EphemeralPrivateKey::generate(curve, &SystemRandom::new()) else { return false };
    agree_ephemeral(own, &agreement::UnparsedPublicKey::new(curve, point), |_| ()).is_ok()
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
