//! JSON Web Key Sets (RFC 7517, RFC 7518 section 6, RFC 8037).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::JwtAlgorithm;
use super::error::{JwkError, JwksError};
use super::key::VerificationKey;
use crate::json::{JsonError, check_unique_members};

/// Returns the keys of a set that can verify signatures. A set may have other keys too, but not only.
pub(super) fn parse(json: &str) -> Result<Vec<VerificationKey>, JwksError> {
    check_unique_members(json.as_bytes()).map_err(JwksError::Json)?;
    let set: Value =
        serde_json::from_str(json).map_err(|error| JwksError::Json(JsonError::Invalid(error)))?;
    let entries = set.get("keys").and_then(Value::as_array).ok_or(JwksError::NoKeys)?;
    let (keys, unusable): (Vec<_>, Vec<_>) = entries.iter().map(parse_key).partition(Result::is_ok);
    match (keys.is_empty(), unusable.is_empty()) {
        (false, _) => Ok(keys.into_iter().flatten().collect()),
        (true, true) => Err(JwksError::Empty),
        (true, false) => {
            Err(JwksError::NoUsableKey(unusable.into_iter().filter_map(Result::err).collect()))
        }
    }
}

fn parse_key(entry: &Value) -> Result<VerificationKey, JwkError> {
    let entry = entry.as_object().ok_or(JwkError::NotAnObject)?;
    check_use(entry)?;
    let key = material(entry)?.with_id(text(entry, "kid"));
    let Some(name) = entry.get("alg") else { return Ok(key) };
    let name = name.as_str().ok_or(JwkError::AlgorithmNotText)?;
    let unknown = || JwkError::UnknownAlgorithm(name.to_owned());
    let algorithm = JwtAlgorithm::named(name).ok_or_else(unknown)?;
    key.restricted_to(&[algorithm]).ok_or(JwkError::OtherAlgorithm(algorithm))
}

fn check_use(entry: &Map<String, Value>) -> Result<(), JwkError> {
    if entry.get("use").is_some_and(|value| value != "sig") {
        return Err(JwkError::OtherUse);
    }
    let verifies = |operations: &Value| match operations.as_array() {
        Some(operations) => operations.iter().any(|operation| operation == "verify"),
        None => false,
    };
    if entry.get("key_ops").is_some_and(|operations| !verifies(operations)) {
        return Err(JwkError::OtherOperations);
    }
    Ok(())
}

fn material(entry: &Map<String, Value>) -> Result<VerificationKey, JwkError> {
    match text(entry, "kty") {
        Some("RSA") => Ok(VerificationKey::rsa(&bytes(entry, "n")?, &bytes(entry, "e")?)?),
        Some("EC") => point(entry),
        Some("OKP") => match text(entry, "crv") {
            Some("Ed25519") => Ok(VerificationKey::ed25519(&bytes(entry, "x")?)?),
            _ => Err(JwkError::Curve { expected: "Ed25519" }),
        },
        Some("oct") => Ok(VerificationKey::secret(&bytes(entry, "k")?)?),
        _ => Err(JwkError::KeyType),
    }
}

fn point(entry: &Map<String, Value>) -> Result<VerificationKey, JwkError> {
    let coordinate_bytes = match text(entry, "crv") {
        Some("P-256") => 32,
        Some("P-384") => 48,
        _ => return Err(JwkError::Curve { expected: "P-256 or P-384" }),
    };
    let (x, y) = (bytes(entry, "x")?, bytes(entry, "y")?);
    if x.len() != coordinate_bytes || y.len() != coordinate_bytes {
        return Err(JwkError::CoordinateSize { bytes: coordinate_bytes });
    }
    Ok(VerificationKey::point(&[&[4], &x[..], &y[..]].concat())?)
}

fn text<'a>(entry: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    entry.get(name)?.as_str()
}

fn bytes(entry: &Map<String, Value>, name: &'static str) -> Result<Vec<u8>, JwkError> {
    let encoded = text(entry, name).ok_or(JwkError::Missing(name))?;
    // Some issuers pad, although RFC 7515 forbids it.
    let bytes = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('='));
    bytes.map_err(|_| JwkError::NotBase64(name))
}
