//! Errors of tokens and of the keys that verify them.

use super::JwtAlgorithm;
use super::token::BYTES_MAX;
use crate::json::JsonError;
use crate::problems::quoted;

/// Why a token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// The text is not a token.
    #[error("the token is not a JSON Web Token")]
    Malformed,
    /// The token has more bytes than are read.
    #[error("the token is too long; the maximum is {BYTES_MAX} bytes")]
    TooLong,
    /// The header or the claims have two members of this name.
    #[error("the token has two members named {}", quoted(.0))]
    Duplicate(String),
    /// No key allows the algorithm that the token names.
    // Quoted and escaped: the name comes from the client.
    #[error("tokens signed with {0:?} are not accepted")]
    Algorithm(String),
    /// The token names a key that the verifier does not have.
    #[error("the token names an unknown key")]
    UnknownKey,
    /// No key verifies the signature.
    #[error("the signature of the token is invalid")]
    Signature,
    /// The token has no `exp`.
    #[error("the token has no expiry")]
    NoExpiry,
    /// The time of `exp` has passed.
    #[error("the token expired {seconds_ago} s ago")]
    Expired {
        /// How long ago, without leeway.
        seconds_ago: u64,
    },
    /// The time of `nbf` is in the future.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token is from another issuer.
    #[error("the token is from another issuer")]
    Issuer,
    /// The token is for another audience.
    #[error("the token is for another audience")]
    Audience,
}

impl From<JsonError> for JwtError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Duplicate { name, .. } => Self::Duplicate(name),
            JsonError::Invalid(_) => Self::Malformed,
        }
    }
}

/// Why a verifier cannot be built: a key cannot be used, or no key is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwtKeyError {
    /// No key was given.
    #[error("a verifier needs a key; use a secret, a public key in PEM or a JWKS")]
    NoKey,
    /// The secret is a key in PEM. With it as a secret, everyone who knows the public key could sign.
    #[error("the secret is a key in PEM format; use it as a public key")]
    SecretIsPem,
    /// The key itself is unsuitable.
    #[error(transparent)]
    Material(#[from] KeyMaterialError),
    /// The text is not a public key in PEM.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// The text is not a usable key set.
    #[error(transparent)]
    Jwks(#[from] JwksError),
    /// There is no algorithm of this name.
    #[error("unknown JWT algorithm {}; {}", quoted(.name), suggestion(*.closest))]
    UnknownAlgorithm {
        /// The name.
        name: String,
        /// The algorithm with the most similar name, if any is similar.
        closest: Option<JwtAlgorithm>,
    },
    /// No key can be used with any of the allowed algorithms.
    #[error("no key can verify {}; the keys are for {}", names(.allowed), names(.available))]
    NoKeyFor {
        /// The allowed algorithms.
        allowed: Vec<JwtAlgorithm>,
        /// The algorithms that the keys can be used with.
        available: Vec<JwtAlgorithm>,
    },
}

/// Why the bytes of a key are unsuitable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyMaterialError {
    /// The secret has no bytes.
    #[error("the secret is empty, so anyone could sign with it; use a random secret")]
    EmptySecret,
    /// The RSA modulus is too short to be secure, or so long that verifying would be slow.
    #[error("the RSA key has {bits} bits; use 2048 to 4096 bits")]
    RsaSize {
        /// Bits of the modulus.
        bits: usize,
    },
    /// The numbers are not those of an RSA key.
    #[error("the RSA key is invalid: its modulus and exponent must be odd, the exponent above 1")]
    InvalidRsa,
    /// The point is in compressed form.
    #[error(
        "the key is a compressed point; `openssl ec -pubin -conv_form uncompressed -in FILE` \
         prints the uncompressed one"
    )]
    CompressedPoint,
    /// The bytes are not a point on a supported curve.
    #[error("the key is not a point on the curve P-256 or P-384")]
    NotOnCurve,
    /// The key does not have the length of an Ed25519 key.
    #[error("the Ed25519 key has {bytes} bytes instead of 32")]
    Ed25519Size {
        /// Bytes of the key.
        bytes: usize,
    },
}

/// Why a text is not a public key in PEM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PemError {
    /// There is no `-----BEGIN` line.
    #[error("the text is not PEM: it has no line `-----BEGIN PUBLIC KEY-----`")]
    NotPem,
    /// There are several blocks.
    #[error("the PEM has several blocks; use one public key")]
    SeveralBlocks,
    /// The block is a private key, which is not needed to verify.
    #[error("the PEM is a private key; `openssl pkey -pubout -in FILE` prints its public key")]
    PrivateKey,
    /// The block is a certificate.
    #[error(
        "the PEM is a certificate; `openssl x509 -pubkey -noout -in FILE` prints its public key"
    )]
    Certificate,
    /// The block has another label.
    #[error("the PEM is labelled {}; use a PUBLIC KEY", quoted(.0))]
    Label(String),
    /// The content cannot be decoded.
    #[error("the PEM is invalid; use the output of `openssl pkey -pubin -in FILE`")]
    Invalid,
    /// The key is of an unsupported kind.
    #[error("the kind of this public key is not supported; use RSA, P-256, P-384 or Ed25519")]
    Unsupported,
    /// The key itself is unsuitable.
    #[error(transparent)]
    Material(#[from] KeyMaterialError),
}

/// Why a text is not a usable JSON Web Key Set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwksError {
    /// The text is not JSON, or an object in it has two members of one name.
    #[error("the key set cannot be read")]
    Json(#[source] JsonError),
    /// The text has no list `keys`.
    #[error("the text is not a key set: it has no list `keys`, as in {{\"keys\": [{{…}}]}}")]
    NoKeys,
    /// The list is empty.
    #[error("the key set is empty; it needs at least one key")]
    Empty,
    /// The set has keys, but none can verify signatures.
    #[error("no key of the set can verify tokens: {}", numbered(.0))]
    NoUsableKey(Vec<JwkError>),
}

/// Why a key of a set cannot verify signatures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwkError {
    /// The entry is not an object.
    #[error("not an object")]
    NotAnObject,
    /// The key is not for signatures.
    #[error("`use` is not \"sig\"")]
    OtherUse,
    /// The key is not for verification.
    #[error("`key_ops` has no \"verify\"")]
    OtherOperations,
    /// `kty` is missing or unknown.
    #[error("`kty` is not RSA, EC, OKP or oct")]
    KeyType,
    /// `crv` is missing or unknown.
    #[error("`crv` is not {expected}")]
    Curve {
        /// The curves for this type of key.
        expected: &'static str,
    },
    /// `alg` is not text.
    #[error("`alg` is not text")]
    AlgorithmNotText,
    /// There is no algorithm of this name.
    #[error("`alg` {} is unknown", quoted(.0))]
    UnknownAlgorithm(String),
    /// The algorithm does not go with the type of the key.
    #[error("`alg` {0} does not apply to this type of key")]
    OtherAlgorithm(JwtAlgorithm),
    /// A parameter is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A parameter is not in base64url.
    #[error("`{0}` is not base64url")]
    NotBase64(&'static str),
    /// A coordinate has another length than those of the curve.
    #[error("`x` and `y` must have {bytes} bytes")]
    CoordinateSize {
        /// Bytes of a coordinate of the curve.
        bytes: usize,
    },
    /// The key itself is unsuitable.
    #[error(transparent)]
    Material(#[from] KeyMaterialError),
}

fn numbered(errors: &[JwkError]) -> String {
    let each = errors.iter().zip(1..).map(|(error, number)| format!("key {number}: {error}"));
    each.collect::<Vec<_>>().join("; ")
}

fn names(algorithms: &[JwtAlgorithm]) -> String {
    let names: Vec<_> = algorithms.iter().map(|algorithm| algorithm.name()).collect();
    format!("[{}]", names.join(", "))
}

fn suggestion(closest: Option<JwtAlgorithm>) -> String {
    match closest {
        Some(algorithm) => format!("did you mean \"{algorithm}\"?"),
        None => format!("use one of {}", names(&JwtAlgorithm::ALL)),
    }
}
