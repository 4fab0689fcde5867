//! What stands between a client and the proxy. This is where limits go.

use std::fs;
use std::path::Path;

use tower_layer::Identity;

use crate::failure::Failure;

/// The layer through which each request passes before it is proxied.
pub(super) fn layer(policy: Option<&Path>) -> Result<Identity, Failure> {
    if let Some(path) = policy {
        let unreadable = |error| format!("cannot read the policy {}: {error}", path.display());
        fs::read_to_string(path).map_err(|error| Failure::input(unreadable(error)))?;
    }
    Ok(Identity::new())
}
