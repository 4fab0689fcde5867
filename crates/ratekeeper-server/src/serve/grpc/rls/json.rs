//! Requests and responses in the JSON of protocol buffers, for clients without gRPC.

use std::borrow::Cow;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage as _};
use ratekeeper::policy::json::check_unique_members_by;
use serde_json::json;

use super::proto::{DESCRIPTORS, RateLimitRequest, RateLimitResponse};
use super::{RateLimitRequestError, RateLimitService};
use crate::trace::DecisionInfo;

static MESSAGES: LazyLock<(MessageDescriptor, MessageDescriptor)> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("the build script has encoded it");
    let named = |name: &str| {
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("the protocol has this message")
    };
    (named("RateLimitRequest"), named("RateLimitResponse"))
});

/// Decides a request. Returns the status and the body of the response: 200 if the request is allowed, 429 if
/// it is over a limit, 400 if it is invalid.
pub(super) async fn respond(service: &RateLimitService, body: &[u8]) -> (u16, String) {
    let request = match decode(body) {
        Ok(request) => request,
        Err(error) => {
            service.count_invalid();
            return (400, encode_error(&error));
        }
    };
    match service.decide(&request, &mut DecisionInfo::default()).await {
        Ok(response) => (if response.is_over_limit() { 429 } else { 200 }, encode(&response)),
        Err(error) => (400, encode_error(&error)),
    }
}

fn encode_error(error: &dyn std::error::Error) -> String {
    json!({ "message": error.to_string() }).to_string()
}

pub(super) fn decode(body: &[u8]) -> Result<RateLimitRequest, RateLimitRequestError> {
    check_unique_members_by(body, canonical)?;
    let mut text = serde_json::Deserializer::from_slice(body);
    let message = DynamicMessage::deserialize(MESSAGES.0.clone(), &mut text)?;
    text.end()?;
    let request: RateLimitRequest = message.transcode_to()?;
    // The decoder turns larger numbers into the largest one.
    let mut hits = request.descriptors.iter().map(|descriptor| descriptor.hits_addend);
    match hits.any(|hits| hits == Some(u64::MAX)) {
        true => Err(RateLimitRequestError::HitsTooLarge),
        false => Ok(request),
    }
}

/// In the JSON of protocol buffers, `hits_addend` and `hitsAddend` are one field. No two fields of a
/// message differ only in case and underscores.
fn canonical(name: &str) -> Cow<'_, str> {
    name.replace('_', "").to_ascii_lowercase().into()
}

fn encode(response: &RateLimitResponse) -> String {
    let mut message = DynamicMessage::new(MESSAGES.1.clone());
    if let Err(error) = message.transcode_from(response) {
        return encode_error(&error);
    }
    debug_assert_eq!(message.descriptor(), MESSAGES.1);
    serde_json::to_string(&message).unwrap_or_else(|error| encode_error(&error))
}
