//! Settings of the responses to limited requests.

/// Which rate limit headers a response has, and the status and body of a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSettings {
    /// Whether to send `RateLimit` and `RateLimit-Policy`.
    pub ratelimit: bool,
    /// Whether to send `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// Whether to send the headers on responses to allowed requests too.
    pub on_allowed: bool,
    /// Format of the body of a denial.
    pub body: BodyKind,
    /// Message of a denial. `{limit}`, `{retry_after}` (in seconds) and `{quota}` are placeholders.
    pub message: Option<String>,
    /// Status of a denial.
    pub status: u16,
}

/// Format of the body of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyKind {
    /// A JSON object.
    #[default]
    Json,
    /// Problem details (RFC 9457).
    Problem,
    /// The message as plain text.
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
