//! Resets the limits of descriptors.

use ratekeeper::StoreError;

use super::descriptors::GlobalModes;
use super::{RateLimitRequestError, RateLimitService, descriptors, json};

/// Why nothing, or not everything, was reset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResetError {
    #[error(transparent)]
    Invalid(#[from] RateLimitRequestError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RateLimitService {
    /// Resets every limit of the descriptors of a request in JSON. Returns the names of the limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the request is invalid. If the store fails, limits before the one that failed
    /// have been reset.
    pub(crate) async fn reset_json(&self, body: &[u8]) -> Result<Vec<String>, ResetError> {
        let request = json::decode(body)?;
        descriptors::check_request(&request)?;
        let config = self.config();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let checks = descriptors::checks_of(&request, &matched, GlobalModes::default());
        descriptors::check_count(&checks)?;
        let mut names = Vec::new();
        for check in &checks {
            let Some(charge) = check.charge() else { continue };
            self.limiter.engine().reset(&charge).await?;
            names.push(check.limit.label().to_string());
        }
        Ok(names)
    }
}
