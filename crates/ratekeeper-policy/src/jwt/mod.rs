//! Who the caller is, as a signed token says (JSON Web Tokens, RFC 7519).
//!
//! What a key can verify is decided by the key, never by the token: a token may choose among the
//! algorithms of a key, and that is all. Not a session store: a token that was revoked is good
//! until it expires.
//!
//! Signatures are verified by `ring`, which is also behind rustls. Nothing is ever signed or decrypted
//! here, so there is no private key that could leak by timing, and the crate `rsa`
//! (RUSTSEC-2023-0071) is a dev-dependency only: tests sign with it, and so check one implementation
//! against another.

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
pub use error::{JwtError, JwtKeyError};
pub use key::JwtKey;

use cache::TokenCache;
use claims::Validity;
use key::VerificationKey;
use token::ParsedToken;

/// As many keys as are tried on a token that does not name its key.
const KEYS_TRIED_MAX: usize = 16;

/// Clocks of issuers are a little off.
const LEEWAY_SECS: u64 = 30;

/// Verifies tokens, and remembers those that it verified: that is much cheaper than a signature.
///
/// ```
/// # use ratekeeper_policy::jwt::{JwtError, JwtKey, JwtVerifier};
/// let keys = vec![JwtKey::secret(b"a secret that nobody would guess")?];
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
    needs_expiry: bool,
    verified: TokenCache,
}

impl JwtVerifier {
    /// Accepts tokens that one of these keys has signed, and that have an expiry.
    pub fn new(keys: Vec<JwtKey>) -> Result<Self, JwtKeyError> {
        let keys: Vec<VerificationKey> = keys.into_iter().flat_map(JwtKey::into_keys).collect();
        if keys.is_empty() {
            return Err(JwtKeyError::new(
                "no key to verify tokens with: give a secret, PEM or JWKS",
            ));
        }
        Ok(Self {
            keys,
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_secs: LEEWAY_SECS,
            needs_expiry: true,
            verified: TokenCache::default(),
        })
    }

    /// Accepts only these algorithms. An error if no key is left.
    pub fn with_algorithms(self, algorithms: &[JwtAlgorithm]) -> Result<Self, JwtKeyError> {
        let keys: Vec<VerificationKey> =
            self.keys.iter().filter_map(|key| key.restricted_to(algorithms)).collect();
        if keys.is_empty() {
            let can = self.keys.iter().flat_map(VerificationKey::algorithms).copied();
            return Err(JwtKeyError::no_key_for(algorithms, can));
        }
        Ok(Self { keys, verified: TokenCache::default(), ..self })
    }

    /// Accepts only tokens of this issuer (`iss`), or of others given in the same way.
    pub fn with_issuer(mut self, issuer: &str) -> Self {
        self.issuers.push(issuer.to_owned());
        Self { verified: TokenCache::default(), ..self }
    }

    /// Accepts only tokens for this audience (`aud`), or for others given in the same way. Without
    /// it tokens for any audience are accepted.
    pub fn with_audience(mut self, audience: &str) -> Self {
        self.audiences.push(audience.to_owned());
        Self { verified: TokenCache::default(), ..self }
    }

    /// Lets clocks differ by this much instead of 30 seconds.
    pub fn with_leeway(self, secs: u64) -> Self {
        Self { leeway_secs: secs, ..self }
    }

    /// Accepts tokens without `exp` too, which are good for ever.
    pub fn allow_missing_expiry(self) -> Self {
        Self { needs_expiry: false, ..self }
    }

    /// What the token says, if it can be believed at `now_unix_secs`. A token of more than 8192 bytes
    /// is refused, and so is one whose header or claims have two members of one name.
    pub fn verify(&self, token: &str, now_unix_secs: u64) -> Result<Claims, JwtError> {
        if token.len() > token::BYTES_MAX {
            return Err(JwtError::TooLong);
        }
        let digest = TokenCache::digest(token);
        if let Some((claims, validity)) = self.verified.get(&digest) {
            self.check_times(validity, now_unix_secs)?;
            return Ok(claims);
        }
        let (claims, validity) = self.verify_afresh(token)?;
        self.check_times(validity, now_unix_secs)?;
        self.verified.insert(digest, claims.clone(), validity);
        Ok(claims)
    }

    /// All that stays true of a token.
    fn verify_afresh(&self, token: &str) -> Result<(Claims, Validity), JwtError> {
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
        let has_signed =
            |key: &&VerificationKey| key.has_signed(algorithm, token.signed_part(), &signature);
        match keys.iter().take(KEYS_TRIED_MAX).any(has_signed) {
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
        keys.retain(|key| key.answers_to(id));
        if keys.is_empty() { Err(JwtError::UnknownKey) } else { Ok(keys) }
    }

    fn check_times(&self, validity: Validity, now: u64) -> Result<(), JwtError> {
        let expiry = validity.expires.map(|at| at.saturating_add(self.leeway_secs));
        match (expiry, validity.starts) {
            (None, _) if self.needs_expiry => Err(JwtError::NoExpiry),
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
