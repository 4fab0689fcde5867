//! Keys, each with the algorithms that it may be used with.

use jsonwebtoken::DecodingKey;
use jsonwebtoken::crypto::rust_crypto::DEFAULT_PROVIDER;

use super::algorithm::{Algorithm, HMAC, RSA};
use super::error::JwtKeyError;
use super::jwks;

/// What tokens are verified with: a secret, a public key, or a set of keys.
#[derive(Clone, Debug)]
pub struct JwtKey {
    keys: Vec<Key>,
}

impl JwtKey {
    /// A secret that is shared with the issuer, for HS256, HS384 and HS512.
    pub fn secret(bytes: &[u8]) -> Result<Self, JwtKeyError> {
        if bytes.trim_ascii_start().starts_with(b"-----BEGIN") {
            // As a secret, it would let all who know the public key sign.
            return Err(JwtKeyError::new("this secret is a PEM key: give it as PEM"));
        }
        Ok(Self { keys: vec![Key::secret(bytes).map_err(JwtKeyError::new)?] })
    }

    /// A public key in PEM: RSA, P-256, P-384 or Ed25519.
    pub fn pem(text: &str) -> Result<Self, JwtKeyError> {
        check_pem_kind(text).map_err(JwtKeyError::new)?;
        Ok(Self { keys: vec![Key::pem(text.as_bytes()).map_err(JwtKeyError::new)?] })
    }

    /// A set of keys as issuers publish it (RFC 7517), such as `{"keys": [{"kty": "RSA", …}]}`.
    /// Keys that are not for signatures, or of kinds unknown here, are left out.
    pub fn jwks(json: &str) -> Result<Self, JwtKeyError> {
        Ok(Self { keys: jwks::parse(json).map_err(JwtKeyError::new)? })
    }

    pub(super) fn into_keys(self) -> Vec<Key> {
        self.keys
    }
}

fn check_pem_kind(text: &str) -> Result<(), String> {
    let mut blocks = text.split("-----BEGIN ").skip(1);
    let Some(first) = blocks.next() else {
        return Err("this is no PEM: it has no line `-----BEGIN PUBLIC KEY-----`".into());
    };
    if blocks.next().is_some() {
        return Err("this PEM has several keys: give each one by itself".into());
    }
    match first.split_once("-----").map_or("", |(kind, _)| kind) {
        "PUBLIC KEY" | "RSA PUBLIC KEY" => Ok(()),
        kind if kind.contains("PRIVATE KEY") => Err("this is a private key, which verifies \
             nothing better than the public one: `openssl pkey -pubout -in FILE` prints that"
            .into()),
        "CERTIFICATE" => Err("this is a certificate: `openssl x509 -pubkey -noout -in FILE` \
             prints its public key"
            .into()),
        kind => Err(format!("this PEM is a `{kind}`: give a `PUBLIC KEY`")),
    }
}

/// One key.
#[derive(Clone, Debug)]
pub(super) struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    material: DecodingKey,
}

impl Key {
    pub(super) fn secret(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the secret is empty: anyone could sign with it".into());
        }
        Ok(Self::new(HMAC, DecodingKey::from_secret(bytes)))
    }

    fn pem(text: &[u8]) -> Result<Self, String> {
        if let Ok(key) = DecodingKey::from_rsa_pem(text) {
            let der = key.try_get_as_bytes().map_err(|error| error.to_string())?;
            let components = (DEFAULT_PROVIDER.key_utils.rsa_pub_components_from_public_key)(der);
            let (modulus, exponent) =
                components.map_err(|error| format!("this RSA key is broken: {error}"))?;
            return Self::rsa(&modulus, &exponent);
        }
        if let Ok(key) = DecodingKey::from_ec_pem(text) {
            return Self::elliptic(&key);
        }
        match DecodingKey::from_ed_pem(text) {
            Ok(key) => Self::ed25519(key.try_get_as_bytes().unwrap_or_default()),
            Err(_) => Err("this PEM is broken, or of a kind not known here: give a public key of \
                 RSA, P-256, P-384 or Ed25519"
                .into()),
        }
    }

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
        Ok(Self::new(RSA, DecodingKey::from_rsa_raw_components(modulus, exponent)))
    }

    /// A point on one of the curves, as SEC 1 encodes it.
    pub(super) fn point(sec1: &[u8]) -> Result<Self, String> {
        Self::elliptic(&DecodingKey::from_ec_der(sec1))
    }

    fn elliptic(key: &DecodingKey) -> Result<Self, String> {
        let curves = [Algorithm::Es256, Algorithm::Es384];
        let fits = |curve: &Algorithm| verifier(*curve, key).is_some();
        let curve = curves.into_iter().find(fits);
        let curve = curve.ok_or("this is no point on the curves P-256 and P-384")?;
        Ok(Self::new(&[curve], key.clone()))
    }

    pub(super) fn ed25519(bytes: &[u8]) -> Result<Self, String> {
        let key = DecodingKey::from_ed_der(bytes);
        // The length first: the implementation takes it for granted.
        if bytes.len() != 32 || verifier(Algorithm::EdDsa, &key).is_none() {
            return Err("this is no Ed25519 key".into());
        }
        Ok(Self::new(&[Algorithm::EdDsa], key))
    }

    fn new(algorithms: &[Algorithm], material: DecodingKey) -> Self {
        Self { id: None, algorithms: algorithms.to_vec(), material }
    }

    pub(super) fn with_id(self, id: Option<&str>) -> Self {
        Self { id: id.map(str::to_owned), ..self }
    }

    pub(super) fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    pub(super) fn allows(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    pub(super) fn restricted_to(&self, allowed: &[Algorithm]) -> Option<Self> {
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
        algorithm: Algorithm,
        message: &[u8],
        signature: &Vec<u8>,
    ) -> bool {
        self.allows(algorithm)
            && verifier(algorithm, &self.material)
                .is_some_and(|verifier| verifier.verify(message, signature).is_ok())
    }
}

/// Asks this implementation by name: the process-wide default panics when another crate enables a
/// second one.
fn verifier(
    algorithm: Algorithm,
    key: &DecodingKey,
) -> Option<Box<dyn jsonwebtoken::crypto::JwtVerifier>> {
    (DEFAULT_PROVIDER.verifier_factory)(&algorithm.implementation(), key).ok()
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
