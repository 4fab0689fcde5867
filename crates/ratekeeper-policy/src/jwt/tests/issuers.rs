//! Issuers with keys that are generated for each run.

use std::slice;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::EncodingKey;
use jsonwebtoken::crypto::sign;
use p256::elliptic_curve::sec1::ToEncodedPoint;
use rand::rngs::OsRng;
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::traits::PublicKeyParts;
use serde_json::{Value, json};

use super::super::algorithm::{HMAC, RSA};
use super::super::{JwtAlgorithm, JwtKey};

pub(super) struct Issuer {
    pub(super) algorithms: &'static [JwtAlgorithm],
    signing: EncodingKey,
    /// The public key, if it is not a secret.
    pub(super) pem: Option<String>,
    pub(super) jwk: Value,
}

static SECRET: LazyLock<Issuer> = LazyLock::new(|| Issuer::of_secret(b"a long random secret"));
static RSA_2048: LazyLock<Issuer> = LazyLock::new(Issuer::new_rsa);
static P256: LazyLock<Issuer> = LazyLock::new(Issuer::new_p256);
static P384: LazyLock<Issuer> = LazyLock::new(Issuer::new_p384);
static ED25519: LazyLock<Issuer> = LazyLock::new(Issuer::new_ed25519);

impl Issuer {
    pub(super) fn secret() -> &'static Self {
        &SECRET
    }

    pub(super) fn rsa() -> &'static Self {
        &RSA_2048
    }

    pub(super) fn p256() -> &'static Self {
        &P256
    }

    pub(super) fn p384() -> &'static Self {
        &P384
    }

    pub(super) fn ed25519() -> &'static Self {
        &ED25519
    }

    pub(super) fn of_secret(secret: &[u8]) -> Self {
        Self {
            algorithms: HMAC,
            signing: EncodingKey::from_secret(secret),
            pem: None,
            jwk: json!({"kty": "oct", "k": b64(secret)}),
        }
    }

    pub(super) fn new_ed25519() -> Self {
        let key = ed25519_dalek::SigningKey::generate(&mut OsRng);
        let public = key.verifying_key();
        Self {
            algorithms: &[JwtAlgorithm::EdDsa],
            signing: EncodingKey::from_ed_der(key.to_pkcs8_der().unwrap().as_bytes()),
            pem: Some(public.to_public_key_pem(LineEnding::LF).unwrap()),
            jwk: json!({"kty": "OKP", "crv": "Ed25519", "x": b64(public.as_bytes())}),
        }
    }

    fn new_rsa() -> Self {
        let key = rsa::RsaPrivateKey::new(&mut OsRng, 2048).unwrap();
        let public = key.to_public_key();
        let (n, e) = (public.n().to_bytes_be(), public.e().to_bytes_be());
        Self {
            algorithms: RSA,
            signing: EncodingKey::from_rsa_der(key.to_pkcs1_der().unwrap().as_bytes()),
            pem: Some(public.to_public_key_pem(LineEnding::LF).unwrap()),
            jwk: json!({"kty": "RSA", "n": b64(&n), "e": b64(&e)}),
        }
    }

    fn new_p256() -> Self {
        let key = p256::SecretKey::random(&mut OsRng);
        let point = key.public_key().to_encoded_point(false);
        Self {
            algorithms: &[JwtAlgorithm::Es256],
            signing: EncodingKey::from_ec_der(key.to_pkcs8_der().unwrap().as_bytes()),
            pem: Some(key.public_key().to_public_key_pem(LineEnding::LF).unwrap()),
            jwk: jwk_of_point("P-256", point.x().unwrap(), point.y().unwrap()),
        }
    }

    fn new_p384() -> Self {
        let key = p384::SecretKey::random(&mut OsRng);
        let point = key.public_key().to_encoded_point(false);
        Self {
            algorithms: &[JwtAlgorithm::Es384],
            signing: EncodingKey::from_ec_der(key.to_pkcs8_der().unwrap().as_bytes()),
            pem: Some(key.public_key().to_public_key_pem(LineEnding::LF).unwrap()),
            jwk: jwk_of_point("P-384", point.x().unwrap(), point.y().unwrap()),
        }
    }

    /// Returns the key: as PEM if it is public, otherwise as a key set.
    pub(super) fn key(&self) -> JwtKey {
        match &self.pem {
            Some(pem) => JwtKey::pem(pem).unwrap(),
            None => jwks(slice::from_ref(&self.jwk)),
        }
    }

    pub(super) fn algorithm(&self) -> JwtAlgorithm {
        self.algorithms[0]
    }

    /// Returns the key as an entry of a set, with more members.
    pub(super) fn jwk_with(&self, more: &Value) -> Value {
        let mut jwk = self.jwk.clone();
        jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        jwk
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm().name(), "typ": "JWT"}), claims)
    }

    pub(super) fn token_of_key(&self, id: &str, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm().name(), "kid": id}), claims)
    }

    /// Signs a token with any header, with the algorithm that it names if the key allows it, or the first.
    pub(super) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.sign(&format!("{}.{}", b64(header.to_string()), b64(claims.to_string())), header)
    }

    /// Signs a token of JSON texts, with the first algorithm.
    pub(super) fn token_of_text(&self, header: &str, claims: &str) -> String {
        self.sign(&format!("{}.{}", b64(header), b64(claims)), &Value::Null)
    }

    fn sign(&self, message: &str, header: &Value) -> String {
        let named = |one: &&JwtAlgorithm| header["alg"] == one.name();
        let algorithm = self.algorithms.iter().find(named).unwrap_or(&self.algorithms[0]);
        let signature = sign(message.as_bytes(), &self.signing, implementation(*algorithm));
        format!("{message}.{}", signature.unwrap())
    }
}

/// Returns the algorithm as the signing crate names it, which is not the one that verifies.
fn implementation(algorithm: JwtAlgorithm) -> jsonwebtoken::Algorithm {
    algorithm.name().parse().unwrap()
}

pub(super) fn jwks(keys: &[Value]) -> JwtKey {
    JwtKey::jwks(&json!({"keys": keys}).to_string()).unwrap()
}

pub(super) fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn jwk_of_point(curve: &str, x: &[u8], y: &[u8]) -> Value {
    json!({"kty": "EC", "crv": curve, "x": b64(x), "y": b64(y)})
}
