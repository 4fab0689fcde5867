//! Splits a token into its three parts (RFC 7515), without verifying it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::JwtAlgorithm;
use super::error::JwtError;
use crate::json::check_unique_members;

/// Maximum length of a token. Web servers reject longer headers too.
pub(super) const BYTES_MAX: usize = 8 * 1024;

/// Maximum length of an unknown algorithm's name in an error.
const NAME_CHARS_MAX: usize = 32;

pub(super) struct ParsedToken<'t> {
    header: Map<String, Value>,
    signed_part: &'t str,
    payload: &'t str,
    signature: &'t str,
}

impl<'t> ParsedToken<'t> {
    pub(super) fn parse(text: &'t str) -> Result<Self, JwtError> {
        let (signed_part, signature) = text.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let (header, payload) = signed_part.split_once('.').ok_or(JwtError::Malformed)?;
        let header = decode(header)?;
        check_unique_members(&header)?;
        let header: Map<String, Value> =
            serde_json::from_slice(&header).map_err(|_| JwtError::Malformed)?;
        // RFC 7515 section 4.1.11: critical extensions must be supported, and there are none here.
        if header.contains_key("crit") || payload.contains('.') {
            return Err(JwtError::Malformed);
        }
        Ok(Self { header, signed_part, payload, signature })
    }

    pub(super) fn algorithm(&self) -> Result<JwtAlgorithm, JwtError> {
        let name = self.header.get("alg").and_then(Value::as_str).ok_or(JwtError::Malformed)?;
        let unknown = || JwtError::Algorithm(name.chars().take(NAME_CHARS_MAX).collect());
        JwtAlgorithm::named(name).ok_or_else(unknown)
    }

    pub(super) fn key_id(&self) -> Option<&str> {
        self.header.get("kid").and_then(Value::as_str)
    }

    pub(super) fn signed_part(&self) -> &[u8] {
        self.signed_part.as_bytes()
    }

    pub(super) fn payload(&self) -> Result<Vec<u8>, JwtError> {
        decode(self.payload)
    }

    pub(super) fn signature(&self) -> Result<Vec<u8>, JwtError> {
        decode(self.signature)
    }
}

fn decode(part: &str) -> Result<Vec<u8>, JwtError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::Malformed)
}
