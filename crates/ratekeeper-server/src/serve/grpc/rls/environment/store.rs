//! The store of envoyproxy/ratelimit's variables.

use super::{EnvironmentError, Variables};

/// Returns the URL of the store, if there is one.
pub(super) fn url(get: Variables<'_>, is_tls: bool) -> Result<Option<String>, EnvironmentError> {
    let Some(url) = get("REDIS_URL") else { return Ok(None) };
    let (is_tls, hosts) = match url.split_once("://") {
        Some(("rediss", hosts)) => (true, hosts),
        Some(("redis" | "tcp", hosts)) => (is_tls, hosts),
        Some(_) => return Ok(Some(url)),
        None => (is_tls, url.as_str()),
    };
    let base = if is_tls { "rediss" } else { "redis" };
    let user = get("REDIS_AUTH").map(|auth| credentials(&auth)).unwrap_or_default();
    let kind = get("REDIS_TYPE").unwrap_or_else(|| "SINGLE".into()).to_uppercase();
    let address = match kind.as_str() {
        "SINGLE" => format!("{base}://{user}{hosts}"),
        "CLUSTER" => format!("{base}+cluster://{user}{hosts}"),
        "SENTINEL" => {
            let (service, sentinels) =
                hosts.split_once(',').ok_or(EnvironmentError::NoSentinels)?;
            format!("{base}+sentinel://{user}{sentinels}/{service}")
        }
        _ => return Err(EnvironmentError::UnknownRedisType(kind)),
    };
    Ok(Some(address))
}

/// Returns the user information of a URL for `password` or `user:password`.
fn credentials(auth: &str) -> String {
    match auth.split_once(':') {
        Some((user, password)) => format!("{}:{}@", percent_encode(user), percent_encode(password)),
        None => format!(":{}@", percent_encode(auth)),
    }
}

/// Percent-encodes text for a URL.
fn percent_encode(text: &str) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let escape = |byte: u8| match keep(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}
