//! How callers are told, as the policy says it.

/// How callers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSettings {
    /// Send `RateLimit` and `RateLimit-Policy`?
    pub ratelimit: bool,
    /// Send `X-RateLimit-Limit`, `-Remaining` and `-Reset`?
    pub x_ratelimit: bool,
    /// Also on answers to requests that were allowed?
    pub on_allowed: bool,
    /// The body of a refusal.
    pub body: BodyKind,
    /// What a refused caller is told, with `{limit}`, `{retry_after}` (in seconds) and `{quota}` to
    /// be filled in.
    pub message: Option<String>,
    /// The status of a refusal.
    pub status: u16,
}

/// The body of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyKind {
    /// A small JSON object.
    #[default]
    Json,
    /// Problem details (RFC 9457).
    Problem,
    /// The message alone.
    Text,
}

impl Default for ResponseSettings {
    fn default() -> Self {
        Self {
            ratelimit: true,
            x_ratelimit: false,
            on_allowed: true,
            body: BodyKind::default(),
            message: None,
            status: 429,
        }
    }
}
