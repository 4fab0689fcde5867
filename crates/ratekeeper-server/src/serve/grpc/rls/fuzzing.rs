//! A request of the rate limit service, as JSON or Protobuf.

use std::sync::LazyLock;

use prost::Message as _;
use ratekeeper::policy::envoy::EnvoyConfig;

use super::proto::RateLimitRequest;
use super::{RateLimitService, RateLimitSettings};
use crate::serve::fuzzing::block_on;
use crate::trace::DecisionInfo;

const FILE: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, value: a*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: quota, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: other, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: shadow, shadow_mode: true, rate_limits: [{ rate: 1/s }, { rate: 3/minute burst 2 }] }
";

/// Decides a request, as JSON if it begins with `{`: the response has a status for each descriptor, or an
/// error.
pub fn descriptors(bytes: &[u8]) {
    static SERVICE: LazyLock<RateLimitService> = LazyLock::new(|| {
        let config =
            EnvoyConfig::parse(&[("limits.yaml".into(), FILE.into())]).expect("a valid file");
        RateLimitService::new(crate::fuzzing::limiter(), config, RateLimitSettings::default())
    });
    if bytes.first() == Some(&b'{') {
        let (status, response) = block_on(SERVICE.respond_json(bytes));
        assert!([200, 400, 429].contains(&status), "{status}: {response}");
        let _ = block_on(SERVICE.reset_json(bytes));
        return;
    }
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    if let Ok(response) = block_on(SERVICE.decide(&request, &mut DecisionInfo::default())) {
        assert_eq!(response.statuses.len(), request.descriptors.len());
    }
}
