//! Public keys in PEM (RFC 7468): `PUBLIC KEY` of any kind, and `RSA PUBLIC KEY`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pkcs1::RsaPublicKey;
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

use super::key::VerificationKey;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ELLIPTIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

const BROKEN: &str = "this PEM is broken: give it as `openssl pkey -pubin -in FILE` prints it";
const OTHER: &str =
    "this PEM is of a kind not known here: give a public key of RSA, P-256, P-384 or Ed25519";

pub(super) fn parse(text: &str) -> Result<VerificationKey, String> {
    let (kind, content) = block(text)?;
    check_kind(kind)?;
    let end = format!("-----END {kind}-----");
    let (content, _) = content.split_once(&end).ok_or(BROKEN)?;
    let content: String = content.split_ascii_whitespace().collect();
    let der = STANDARD.decode(content).map_err(|_| BROKEN)?;
    match kind {
        "RSA PUBLIC KEY" => rsa(&der),
        _ => public_key(&der),
    }
}

/// The kind of the only key in the text, and what follows its first line.
fn block(text: &str) -> Result<(&str, &str), String> {
    let mut blocks = text.split("-----BEGIN ").skip(1);
    let Some(first) = blocks.next() else {
        return Err("this is no PEM: it has no line `-----BEGIN PUBLIC KEY-----`".into());
    };
    if blocks.next().is_some() {
        return Err("this PEM has several keys: give each one by itself".into());
    }
    Ok(first.split_once("-----").unwrap_or_default())
}

fn check_kind(kind: &str) -> Result<(), String> {
    match kind {
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

/// A key that says of which kind it is (RFC 5280, section 4.1).
fn public_key(der: &[u8]) -> Result<VerificationKey, String> {
    let info = SubjectPublicKeyInfoRef::try_from(der).map_err(|_| BROKEN)?;
    let bytes = info.subject_public_key.as_bytes().ok_or(BROKEN)?;
    match info.algorithm.oid {
        RSA => rsa(bytes),
        ELLIPTIC => VerificationKey::point(bytes),
        ED25519 => VerificationKey::ed25519(bytes),
        _ => Err(OTHER.into()),
    }
}

fn rsa(der: &[u8]) -> Result<VerificationKey, String> {
    let numbers = RsaPublicKey::try_from(der).map_err(|_| BROKEN)?;
    VerificationKey::rsa(numbers.modulus.as_bytes(), numbers.public_exponent.as_bytes())
}
