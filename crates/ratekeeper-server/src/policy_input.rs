//! Reads the policy file that the command line names.

use std::io;
use std::path::Path;

use ratekeeper::files::{POLICY_BYTES_MAX, ReadError, read_bounded};
use ratekeeper::policy::StoreSettings;
use ratekeeper::{Policy, PolicyErrors, PolicyFiles, RedisConfig, RedisUrlError, read_policy};

/// Reads a policy file; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Policy, PolicyErrors> {
    let sources = PolicyFiles::of(path);
    if path.as_os_str() != "-" {
        return read_policy(path, &sources);
    }
    let name = "standard input";
    let unreadable = |error: ReadError| PolicyErrors::unreadable(name, error);
    let bytes = read_bounded(io::stdin().lock(), POLICY_BYTES_MAX).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(ReadError::NotText))?;
    Policy::parse(name, &text, &sources)
}

/// Returns the address of a policy's store, without its password.
///
/// # Errors
///
/// If the address is invalid.
pub(crate) fn address(settings: &StoreSettings) -> Result<String, RedisUrlError> {
    let Some(url) = &settings.url else { return Ok("memory".into()) };
    let store = RedisConfig::new(url).open()?;
    Ok(store.address().to_string())
}
