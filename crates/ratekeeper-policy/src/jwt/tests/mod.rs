//! Tokens and keys of every kind, signed by another implementation.

mod issuers;
mod keys;
mod rejected;
mod verified;

use serde_json::{Value, json};

use super::*;
use issuers::Issuer;

/// A time at which the tokens here are valid.
const NOW: u64 = 1_800_000_000;

/// Claims of a token that is valid for a minute.
fn claims() -> Value {
    json!({"sub": "ann", "exp": NOW + 60, "iss": "https://issuer.example", "aud": ["api", "web"]})
}

fn verifier(key: JwtKey) -> JwtVerifier {
    JwtVerifier::new(vec![key]).unwrap()
}

#[track_caller]
fn reject(verifier: &JwtVerifier, token: &str, error: JwtError) {
    assert_eq!(verifier.verify(token, NOW), Err(error), "{token}");
}

#[track_caller]
fn accept(verifier: &JwtVerifier, token: &str) {
    let claims = verifier.verify(token, NOW).unwrap_or_else(|error| panic!("{error}: {token}"));
    assert_eq!(claims.text("sub").as_deref(), Some("ann"));
}

/// Every kind of key that there is.
fn each_issuer() -> impl Iterator<Item = &'static Issuer> {
    [Issuer::secret(), Issuer::rsa(), Issuer::p256(), Issuer::p384(), Issuer::ed25519()].into_iter()
}
