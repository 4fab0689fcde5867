//! A whole request: in JSON if it begins as that does, and otherwise as Envoy sends it.

use std::sync::LazyLock;

use prost::Message as _;
use ratekeeper::policy::envoy::EnvoyConfig;

use super::proto::RateLimitRequest;
use super::{RateLimitService, RateLimitSettings};
use crate::serve::fuzzing::block_on;
use crate::trace::About;

const FILE: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, value: a*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: shadow, shadow_mode: true, rate_limits: [{ rate: 1/s }, { rate: 3/minute burst 2 }] }
";

/// Is answered, whatever it is: with a status for each descriptor, or with a reason.
pub fn descriptors(bytes: &[u8]) {
    static DOOR: LazyLock<RateLimitService> = LazyLock::new(|| {
        let config = EnvoyConfig::parse(&[("limits.yaml".into(), FILE.into())]).expect("a file");
        RateLimitService::new(crate::fuzzing::gate(), config, RateLimitSettings::default())
    });
    if bytes.first() == Some(&b'{') {
        let (status, answer) = block_on(DOOR.answer_json(bytes));
        assert!([200, 400, 429].contains(&status), "{status}: {answer}");
        let _ = block_on(DOOR.reset_json(bytes));
        return;
    }
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    if let Ok(answer) = block_on(DOOR.decide(&request, &mut About::default())) {
        assert_eq!(answer.statuses.len(), request.descriptors.len());
    }
}
