//! Key sets as issuers publish them (RFC 7517, RFC 7518 section 6, RFC 8037).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::JwtAlgorithm;
use super::key::VerificationKey;
use crate::json::{JsonError, check_unique_members};

/// The keys of a set that can verify signatures.
pub(super) fn parse(json: &str) -> Result<Vec<VerificationKey>, String> {
    check_unique_members(json.as_bytes()).map_err(|error| match error {
        JsonError::Invalid(error) => format!("this key set is no JSON: {error}"),
        duplicate => format!("this key set is ambiguous: {duplicate}"),
    })?;
    let set: Value =
        serde_json::from_str(json).map_err(|error| format!("this key set is no JSON: {error}"))?;
    let Some(entries) = set.get("keys").and_then(Value::as_array) else {
        return Err("this is no key set: it has no list `keys`, as in {\"keys\": [{…}]}".into());
    };
    let mut keys = Vec::new();
    let mut reasons = Vec::new();
    for (entry, number) in entries.iter().zip(1..) {
        match parse_key(entry) {
            Ok(key) => keys.push(key),
            Err(reason) => reasons.push(format!("key {number}: {reason}")),
        }
    }
    match (keys.is_empty(), reasons.is_empty()) {
        (false, _) => Ok(keys),
        (true, true) => Err("this key set is empty: tokens need at least one key".into()),
        (true, false) => {
            Err(format!("no key of this set can verify tokens: {}", reasons.join("; ")))
        }
    }
}

fn parse_key(entry: &Value) -> Result<VerificationKey, String> {
    let entry = entry.as_object().ok_or("is no object")?;
    check_use(entry)?;
    let key = material(entry)?.with_id(text(entry, "kid"));
    let Some(name) = entry.get("alg") else { return Ok(key) };
    let name = name.as_str().ok_or("`alg` is no text")?;
    let algorithm =
        JwtAlgorithm::named(name).ok_or_else(|| format!("`alg` {name:?} is not known"))?;
    key.restricted_to(&[algorithm]).ok_or_else(|| format!("`alg` {name:?} is not for such a key"))
}

fn check_use(entry: &Map<String, Value>) -> Result<(), String> {
    if entry.get("use").is_some_and(|value| value != "sig") {
        return Err("`use` is not \"sig\"".into());
    }
    let verifies = |operations: &Value| match operations.as_array() {
        Some(operations) => operations.iter().any(|operation| operation == "verify"),
        None => false,
    };
    if entry.get("key_ops").is_some_and(|operations| !verifies(operations)) {
        return Err("`key_ops` has no \"verify\"".into());
    }
    Ok(())
}

fn material(entry: &Map<String, Value>) -> Result<VerificationKey, String> {
    match text(entry, "kty") {
        Some("RSA") => VerificationKey::rsa(&bytes(entry, "n")?, &bytes(entry, "e")?),
        Some("EC") => point(entry),
        Some("OKP") => match text(entry, "crv") {
            Some("Ed25519") => VerificationKey::ed25519(&bytes(entry, "x")?),
            _ => Err("`crv` is not Ed25519".into()),
        },
        Some("oct") => VerificationKey::secret(&bytes(entry, "k")?),
        _ => Err("`kty` is not RSA, EC, OKP or oct".into()),
    }
}

fn point(entry: &Map<String, Value>) -> Result<VerificationKey, String> {
    let coordinate_bytes = match text(entry, "crv") {
        Some("P-256") => 32,
        Some("P-384") => 48,
        _ => return Err("`crv` is not P-256 or P-384".into()),
    };
    let (x, y) = (bytes(entry, "x")?, bytes(entry, "y")?);
    if x.len() != coordinate_bytes || y.len() != coordinate_bytes {
        return Err(format!("`x` and `y` must have {coordinate_bytes} bytes"));
    }
    VerificationKey::point(&[&[4], &x[..], &y[..]].concat())
}

fn text<'a>(entry: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    entry.get(name)?.as_str()
}

fn bytes(entry: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let encoded = text(entry, name).ok_or_else(|| format!("has no `{name}`"))?;
    // Some issuers pad, though they must not.
    let bytes = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('='));
    bytes.map_err(|_| format!("`{name}` is not in base64url"))
}
