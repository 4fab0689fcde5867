//! A descriptor's limits made as good as new, asked for in the words of a request.

use super::{Invalid, RateLimitService, json, turns};

/// Why nothing, or not everything, was reset.
pub(crate) enum ResetError {
    Invalid(String),
    Store(String),
}

impl From<Invalid> for ResetError {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid.0)
    }
}

impl RateLimitService {
    /// Resets every limit that these descriptors are counted by, and tells their names.
    pub(crate) async fn reset_json(&self, body: &[u8]) -> Result<Vec<String>, ResetError> {
        let request = json::read(body).map_err(ResetError::Invalid)?;
        turns::check_request(&request)?;
        let config = self.config();
        let matched = config.resolve(&request.domain, &request.descriptors);
        let turns = turns::of(&request, &matched, false);
        turns::check_count(&turns)?;
        let mut names = Vec::new();
        for turn in &turns {
            let Some(charge) = turn.charge() else { continue };
            let reset = self.gate.engine().reset(&charge).await;
            reset.map_err(|error| ResetError::Store(error.to_string()))?;
            names.push(turn.limit.label().to_string());
        }
        Ok(names)
    }
}
