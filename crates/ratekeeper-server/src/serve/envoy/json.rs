//! Requests and answers in the JSON of protocol buffers, for those who have no gRPC at hand.

use std::borrow::Cow;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage as _};
use ratekeeper::policy::json::check_unique_members_by;
use serde_json::json;

use super::RateLimitService;
use super::proto::{DESCRIPTORS, RateLimitRequest, RateLimitResponse};
use crate::trace::About;

static MESSAGES: LazyLock<(MessageDescriptor, MessageDescriptor)> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("it was made when this was built");
    let named = |name: &str| {
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("the protocol has it")
    };
    (named("RateLimitRequest"), named("RateLimitResponse"))
});

/// The status and the body of the answer: 200 if it may pass, 429 if not, 400 if it makes no sense.
pub(super) async fn answer(door: &RateLimitService, body: &[u8]) -> (u16, String) {
    let request = match read(body) {
        Ok(request) => request,
        Err(why) => {
            door.count_invalid();
            return (400, complaint(&why));
        }
    };
    match door.decide(&request, &mut About::default()).await {
        Ok(answer) => (if answer.is_over_limit() { 429 } else { 200 }, write(&answer)),
        Err(invalid) => (400, complaint(&invalid.0)),
    }
}

fn complaint(why: &str) -> String {
    json!({ "message": why }).to_string()
}

pub(super) fn read(body: &[u8]) -> Result<RateLimitRequest, String> {
    check_unique_members_by(body, canonical)
        .map_err(|error| format!("this is no rate limit request: {error}"))?;
    let mut text = serde_json::Deserializer::from_slice(body);
    let message = DynamicMessage::deserialize(MESSAGES.0.clone(), &mut text)
        .map_err(|error| format!("this is no rate limit request: {error}"))?;
    text.end().map_err(|error| format!("something follows the request: {error}"))?;
    message.transcode_to().map_err(|error| error.to_string())
}

/// In the JSON of protocol buffers, `hits_addend` and `hitsAddend` are one field. No two fields of a
/// message differ only in case and underscores.
fn canonical(name: &str) -> Cow<'_, str> {
    name.replace('_', "").to_ascii_lowercase().into()
}

fn write(answer: &RateLimitResponse) -> String {
    let mut message = DynamicMessage::new(MESSAGES.1.clone());
    let written = message.transcode_from(answer).map_err(|error| error.to_string());
    let text = written.and_then(|()| {
        debug_assert_eq!(message.descriptor(), MESSAGES.1);
        serde_json::to_string(&message).map_err(|error| error.to_string())
    });
    text.unwrap_or_else(|error| complaint(&error))
}
