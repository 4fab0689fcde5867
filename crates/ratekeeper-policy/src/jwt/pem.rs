//! Public keys in PEM (RFC 7468): `PUBLIC KEY` of any kind, and `RSA PUBLIC KEY`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pkcs1::RsaPublicKey;
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

use super::error::PemError;
use super::key::VerificationKey;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ELLIPTIC_CURVE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

const RSA_LABEL: &str = "RSA PUBLIC KEY";

pub(super) fn parse(text: &str) -> Result<VerificationKey, PemError> {
    let (label, content) = block(text)?;
    check_label(label)?;
    let end = format!("-----END {label}-----");
    let (content, _) = content.split_once(&end).ok_or(PemError::Invalid)?;
    let content: String = content.split_ascii_whitespace().collect();
    let der = STANDARD.decode(content).map_err(|_| PemError::Invalid)?;
    if label == RSA_LABEL { rsa(&der) } else { public_key(&der) }
}

/// Returns the label of the only block, and the text after its first line.
fn block(text: &str) -> Result<(&str, &str), PemError> {
    let mut blocks = text.split("-----BEGIN ").skip(1);
    let first = blocks.next().ok_or(PemError::NotPem)?;
    match blocks.next() {
        Some(_) => Err(PemError::SeveralBlocks),
        None => Ok(first.split_once("-----").unwrap_or_default()),
    }
}

fn check_label(label: &str) -> Result<(), PemError> {
    match label {
        "PUBLIC KEY" | RSA_LABEL => Ok(()),
        _ if label.contains("PRIVATE KEY") => Err(PemError::PrivateKey),
        "CERTIFICATE" => Err(PemError::Certificate),
        _ => Err(PemError::Label(label.to_owned())),
    }
}

/// Parses a `SubjectPublicKeyInfo` (RFC 5280, section 4.1).
fn public_key(der: &[u8]) -> Result<VerificationKey, PemError> {
    let info = SubjectPublicKeyInfoRef::try_from(der).map_err(|_| PemError::Invalid)?;
    let bytes = info.subject_public_key.as_bytes().ok_or(PemError::Invalid)?;
    match info.algorithm.oid {
        RSA => rsa(bytes),
        ELLIPTIC_CURVE => Ok(VerificationKey::point(bytes)?),
        ED25519 => Ok(VerificationKey::ed25519(bytes)?),
        _ => Err(PemError::Unsupported),
    }
}

fn rsa(der: &[u8]) -> Result<VerificationKey, PemError> {
    let numbers = RsaPublicKey::try_from(der).map_err(|_| PemError::Invalid)?;
    Ok(VerificationKey::rsa(numbers.modulus.as_bytes(), numbers.public_exponent.as_bytes())?)
}
