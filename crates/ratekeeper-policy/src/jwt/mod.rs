//! Verifies JSON Web Tokens (RFC 7519) and reads their claims.
//!
//! The key decides which algorithms are allowed, never the token: a token can only choose among the
//! algorithms of a key. Revocation is not supported: a revoked token is accepted until it expires.
//!
//! Signatures are verified by `ring`, which rustls uses too. This crate never signs or decrypts, so it
//! has no private key that could leak by timing. The crate `rsa` (RUSTSEC-2023-0071) is a dev-dependency
//! only: tests sign with it, and so check one implementation against another.

mod algorithm;
mod cache;
mod claims;
mod error;
mod jwks;
mod key;
mod pem;
#[cfg(test)]
mod tests;
mod token;

pub use algorithm::JwtAlgorithm;
pub use claims::Claims;
pub use error::{JwkError, JwksError, JwtError, JwtKeyError, KeyMaterialError, PemError};
pub use key::JwtKey;

use cache::TokenCache;
use claims::Validity;
use key::VerificationKey;
use token::ParsedToken;

/// Maximum number of keys tried for a token that does not name its key.
const KEYS_TRIED_MAX: usize = 16;

/// Default tolerance for clocks of issuers that are off.
const LEEWAY_SECS: u64 = 30;

/// Verifies tokens. Verified tokens are cached: a lookup is much cheaper than a signature.
///
/// ```
/// # use ratekeeper_policy::jwt::{JwtError, JwtKey, JwtVerifier};
/// let keys = vec![JwtKey::secret(b"a long random secret")?];
/// let verifier = JwtVerifier::new(keys)?.with_issuer("https://issuer.example");
/// assert_eq!(verifier.verify("e30.e30.", 1_800_000_000), Err(JwtError::Malformed));
/// # Ok::<(), ratekeeper_policy::jwt::JwtKeyError>(())
/// ```
#[derive(Debug)]
pub struct JwtVerifier {
    keys: Vec<VerificationKey>,
    issuers: Vec<String>,
    audiences: Vec<String>,
    leeway_secs: u64,
    requires_expiry: bool,
    cache: TokenCache,
}

impl JwtVerifier {
    /// Creates a verifier that accepts tokens signed with one of these keys and with an expiry.
    ///
    /// # Errors
    ///
    /// If there is no key.
    pub fn new(keys: Vec<JwtKey>) -> Result<Self, JwtKeyError> {
        let keys: Vec<VerificationKey> = keys.into_iter().flat_map(JwtKey::into_keys).collect();
        if keys.is_empty() {
            return Err(JwtKeyError::NoKey);
        }
        Ok(Self {
            keys,
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_secs: LEEWAY_SECS,
            requires_expiry: true,
            cache: TokenCache::default(),
        })
    }

    /// Accepts only these algorithms.
    ///
    /// # Errors
    ///
    /// If none of them goes with any of the keys.
    pub fn with_algorithms(self, algorithms: &[JwtAlgorithm]) -> Result<Self, JwtKeyError> {
        let keys: Vec<VerificationKey> =
            self.keys.iter().filter_map(|key| key.restricted_to(algorithms)).collect();
        if keys.is_empty() {
            let of_keys = |one: &JwtAlgorithm| self.keys.iter().any(|key| key.allows(*one));
            let available = JwtAlgorithm::ALL.into_iter().filter(of_keys).collect();
            return Err(JwtKeyError::NoKeyFor { allowed: algorithms.to_vec(), available });
        }
        Ok(Self { keys, cache: TokenCache::default(), ..self })
    }

    /// Accepts only tokens of this issuer (`iss`). Further calls add further issuers.
    #[must_use]
    pub fn with_issuer(mut self, issuer: &str) -> Self {
        self.issuers.push(issuer.to_owned());
        Self { cache: TokenCache::default(), ..self }
    }

    /// Accepts only tokens for this audience (`aud`). Further calls add further audiences. By default,
    /// tokens for any audience are accepted.
    #[must_use]
    pub fn with_audience(mut self, audience: &str) -> Self {
        self.audiences.push(audience.to_owned());
        Self { cache: TokenCache::default(), ..self }
    }

    /// Sets by how much clocks may differ, instead of 30 seconds.
    #[must_use]
    pub fn with_leeway(self, secs: u64) -> Self {
        Self { leeway_secs: secs, ..self }
    }

    /// Accepts tokens without `exp` too, which never expire.
    #[must_use]
    pub fn allow_missing_expiry(self) -> Self {
        Self { requires_expiry: false, ..self }
    }

    /// Returns the claims of a token that is valid at `now_unix_secs`.
    ///
    /// # Errors
    ///
    /// If the token is not valid. A token of more than 8192 bytes is rejected, and so is one whose header
    /// or claims have two members of one name.
    pub fn verify(&self, token: &str, now_unix_secs: u64) -> Result<Claims, JwtError> {
        if token.len() > token::BYTES_MAX {
            return Err(JwtError::TooLong);
        }
        let digest = TokenCache::digest(token);
        if let Some((claims, validity)) = self.cache.get(&digest) {
            self.check_times(validity, now_unix_secs)?;
            return Ok(claims);
        }
        let (claims, validity) = self.verify_uncached(token)?;
        self.check_times(validity, now_unix_secs)?;
        self.cache.insert(digest, claims.clone(), validity);
        Ok(claims)
    }

    /// Checks everything that does not depend on the time.
    fn verify_uncached(&self, token: &str) -> Result<(Claims, Validity), JwtError> {
        let token = ParsedToken::parse(token)?;
        self.check_signature(&token)?;
        let claims = Claims::parse(&token.payload()?)?;
        let validity = claims.validity()?;
        if !self.issuers.is_empty() && !claims.issuer_is_among(&self.issuers) {
            return Err(JwtError::Issuer);
        }
        if !self.audiences.is_empty() && !claims.audience_is_among(&self.audiences) {
            return Err(JwtError::Audience);
        }
        Ok((claims, validity))
    }

    fn check_signature(&self, token: &ParsedToken<'_>) -> Result<(), JwtError> {
        let algorithm = token.algorithm()?;
        let keys = self.keys_for(algorithm, token.key_id())?;
        let signature = token.signature()?;
        let verifies =
            |key: &&VerificationKey| key.verifies(algorithm, token.signed_part(), &signature);
        match keys.iter().take(KEYS_TRIED_MAX).any(verifies) {
            true => Ok(()),
            false => Err(JwtError::Signature),
        }
    }

    fn keys_for(
        &self,
        algorithm: JwtAlgorithm,
        id: Option<&str>,
    ) -> Result<Vec<&VerificationKey>, JwtError> {
        let mut keys: Vec<&VerificationKey> =
            self.keys.iter().filter(|key| key.allows(algorithm)).collect();
        if keys.is_empty() {
            return Err(JwtError::Algorithm(algorithm.name().to_owned()));
        }
        keys.retain(|key| key.has_id(id));
        if keys.is_empty() { Err(JwtError::UnknownKey) } else { Ok(keys) }
    }

    fn check_times(&self, validity: Validity, now: u64) -> Result<(), JwtError> {
        let expiry = validity.expires.map(|at| at.saturating_add(self.leeway_secs));
        match (expiry, validity.starts) {
            (None, _) if self.requires_expiry => Err(JwtError::NoExpiry),
            (Some(expiry), _) if now >= expiry => {
                Err(JwtError::Expired { seconds_ago: now - validity.expires.unwrap_or(now) })
            }
            (_, Some(start)) if now.saturating_add(self.leeway_secs) < start => {
                Err(JwtError::NotYetValid)
            }
            _ => Ok(()),
        }
    }
}
