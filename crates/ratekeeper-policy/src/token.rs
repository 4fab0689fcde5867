//! Where the JWT of a request is found, and how it is verified.

use std::borrow::Cow;
use std::string::FromUtf8Error;

use crate::attributes::{AttributeValues, cookie, header};
use crate::build::values::{duration, end_to_end_header};
use crate::identity::{IdentityValue, MissingReason};
use crate::jwt::{Claims, JwtKey, JwtKeyError, JwtVerifier};
use crate::policy::{SourceError, Sources};
use crate::problems::{Problems, with_sources};
use crate::request::RequestAttributes;
use crate::yaml::Node;

/// How tokens are found and verified.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    verifier: Option<JwtVerifier>,
    location: TokenLocation,
}

#[derive(Debug)]
enum TokenLocation {
    Header(String),
    Cookie(String),
}

impl Default for TokenLocation {
    fn default() -> Self {
        Self::Header("authorization".into())
    }
}

const NO_SCHEME: &str =
    "the Authorization header has no bearer token; send \"Authorization: Bearer TOKEN\"";

impl TokenLocation {
    /// Returns the token in a header or cookie value. `Authorization` requires the scheme `Bearer`
    /// (RFC 6750); elsewhere it is optional.
    fn token<'v>(&self, value: &'v str) -> Option<&'v str> {
        let value = value.trim();
        match value.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
            _ => (!self.needs_scheme()).then_some(value),
        }
    }

    fn needs_scheme(&self) -> bool {
        matches!(self, Self::Header(name) if name.eq_ignore_ascii_case("authorization"))
    }
}

/// The claims of a request's token, or why there are none.
pub(crate) struct TokenClaims(Result<Claims, MissingReason>);

impl TokenClaims {
    pub(crate) fn claim<'r>(&self, path: &str) -> IdentityValue<'r> {
        let claims = self.0.as_ref().map_err(Clone::clone)?;
        let text = claims.text(path).filter(|text| !text.is_empty());
        text.map(|text| Cow::Owned(text.into_bytes())).ok_or(MissingReason::NoClaim)
    }
}

impl Tokens {
    pub(crate) fn read(
        node: Option<&Node>,
        sources: &dyn Sources,
        problems: &mut Problems,
    ) -> Self {
        let Some(node) = node else { return Self::default() };
        let text = |name: &str| node.get(name).and_then(Node::text).map(str::to_string);
        if let (Some(cookie), Some(_)) = (node.get("cookie"), node.get("header")) {
            problems.report(cookie.span, "a token is in a header or in a cookie, not in both");
        }
        let header = node.get("header").and_then(|node| end_to_end_header(node, problems));
        let header = header.map(TokenLocation::Header);
        let location = text("cookie").map(TokenLocation::Cookie).or(header).unwrap_or_default();
        let (issuer, audience) = (text("issuer"), text("audience"));
        let leeway = node.get("leeway").and_then(|node| duration(node, problems));
        let made = key_node(node).and_then(|(field, at)| {
            let key = key(field, at.text()?, sources);
            let made = key.and_then(|key| Ok(JwtVerifier::new(vec![key])?));
            made.map_err(|error| problems.report(at.span, with_sources(&error))).ok()
        });
        let made = made.and_then(|made| restrict(made, node.get("algorithms"), problems));
        let verifier = made.map(|mut verifier| {
            if let Some(issuer) = issuer {
                verifier = verifier.with_issuer(&issuer);
            }
            if let Some(audience) = audience {
                verifier = verifier.with_audience(&audience);
            }
            match leeway {
                Some(leeway) => verifier.with_leeway(leeway.as_secs()),
                None => verifier,
            }
        });
        Self { verifier, location }
    }

    /// Returns the header that tokens are read from, in lower case.
    pub(crate) fn header(&self) -> &str {
        match &self.location {
            TokenLocation::Header(name) => name,
            TokenLocation::Cookie(_) => "cookie",
        }
    }

    /// Finds and verifies the token of a request.
    pub(crate) fn find(&self, request: &RequestAttributes<'_>) -> TokenClaims {
        let values = match &self.location {
            TokenLocation::Header(name) => Ok(header::values(request, name)),
            TokenLocation::Cookie(name) => cookie::values(request, name),
        };
        TokenClaims(values.and_then(|values| self.verify(&values, request.unix_secs)))
    }

    fn verify(
        &self,
        values: &AttributeValues<'_>,
        now_unix_secs: u64,
    ) -> Result<Claims, MissingReason> {
        let first = match &values.known[..] {
            _ if values.are_more => return Err(MissingReason::SentTwice),
            [] => return Err(MissingReason::NotSent),
            [only] => only,
            _ => return Err(MissingReason::SentTwice),
        };
        let no_key =
            || MissingReason::Token("the policy has no \"jwt\" section to verify it".into());
        let verifier = self.verifier.as_ref().ok_or_else(no_key)?;
        let value = std::str::from_utf8(first).unwrap_or_default();
        let token =
            self.location.token(value).ok_or_else(|| MissingReason::Token(NO_SCHEME.into()))?;
        verifier
            .verify(token, now_unix_secs)
            .map_err(|error| MissingReason::Token(error.to_string()))
    }
}

/// Why the key of the `jwt` section cannot be used.
#[derive(Debug, thiserror::Error)]
enum TokenKeyError {
    #[error(transparent)]
    File(#[from] SourceError),
    #[error("the file is not UTF-8 text")]
    NotText(#[from] FromUtf8Error),
    #[error("the environment variable {0} is not set")]
    VariableNotSet(String),
    #[error(transparent)]
    Key(#[from] JwtKeyError),
}

/// Returns the node of the policy that defines the key.
fn key_node(node: &Node) -> Option<(&'static str, &Node)> {
    let fields = ["secret", "secret_env", "secret_file", "public_key_file", "jwks_file"];
    fields.into_iter().find_map(|name| Some((name, node.get(name)?)))
}

fn key(field: &str, value: &str, sources: &dyn Sources) -> Result<JwtKey, TokenKeyError> {
    // Editors end a file with a line break, which is not part of the secret.
    let secret = |bytes: &[u8]| JwtKey::secret(bytes.trim_ascii_end());
    let text = || -> Result<_, TokenKeyError> { Ok(String::from_utf8(sources.file(value)?)?) };
    let key = match field {
        "secret" => secret(value.as_bytes()),
        "secret_env" => {
            let not_set = || TokenKeyError::VariableNotSet(value.to_string());
            secret(sources.variable(value).ok_or_else(not_set)?.as_bytes())
        }
        "secret_file" => secret(&sources.file(value)?),
        "public_key_file" => JwtKey::pem(&text()?),
        _ => JwtKey::jwks(&text()?),
    };
    Ok(key?)
}

/// Restricts the verifier to the algorithms listed, if any. Unknown names are reported elsewhere.
fn restrict(
    verifier: JwtVerifier,
    node: Option<&Node>,
    problems: &mut Problems,
) -> Option<JwtVerifier> {
    let Some(node) = node else { return Some(verifier) };
    let names = node.items().iter().filter_map(Node::text);
    let algorithms: Vec<_> = names.map(str::parse).collect::<Result<_, _>>().ok()?;
    let restricted = verifier.with_algorithms(&algorithms);
    restricted.map_err(|error| problems.report(node.span, with_sources(&error))).ok()
}
