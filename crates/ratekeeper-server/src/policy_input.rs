//! Reads the policy file that the command line names.

use std::io;
use std::path::Path;

use ratekeeper::files::{POLICY_BYTES_MAX, ReadError, read_bounded};
use ratekeeper::gate::{FileSources, read_policy};
use ratekeeper::policy::StoreSettings;
use ratekeeper::{Policy, PolicyErrors, RedisConfig};

/// Reads a policy file; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Policy, PolicyErrors> {
    let sources = FileSources::beside(path);
    if path.as_os_str() != "-" {
        return read_policy(path, &sources);
    }
    let name = "standard input";
    let unreadable = |error: ReadError| PolicyErrors::unreadable(name, error);
    let bytes = read_bounded(io::stdin().lock(), POLICY_BYTES_MAX).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(ReadError::NotText))?;
    Policy::parse(name, &text, &sources)
}

/// Returns where a policy keeps its counts, without any password.
pub(crate) fn address(settings: &StoreSettings) -> Result<String, String> {
    let Some(url) = &settings.url else { return Ok("memory".into()) };
    let store = RedisConfig::new(url).open().map_err(|error| error.to_string())?;
    Ok(store.address().to_string())
}
