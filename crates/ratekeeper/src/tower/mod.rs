//! A tower layer that enforces a policy, and the responses to requests that it refuses; and a layer with a circuit breaker.

mod body;
mod breaker;
mod future;
mod layer;
mod metering;
mod peer;
mod replayed_body;
mod request_json;
mod response;

#[cfg(feature = "client")]
pub(crate) use body::Held;
pub use body::ResponseBody;
pub use breaker::{
    CircuitBreakerError, CircuitBreakerFuture, CircuitBreakerLayer, CircuitBreakerService,
    Classify, ClassifyStatus,
};
pub use future::ResponseFuture;
pub use layer::{IdentifyError, Ratekeeper, RatekeeperLayer, layer};
#[cfg(feature = "client")]
pub(crate) use layer::{InMap, is_grpc};
pub use metering::Unanswered;
#[cfg(feature = "client")]
pub(crate) use metering::request_plain_response;
pub use peer::PeerAddr;
pub use replayed_body::ReplayedBody;
pub use request_json::{RequestJson, RequestJsonFuture, RequestJsonLayer};
pub use response::{RATELIMIT_HEADERS, RefusedBy, refuse, set_headers_of, set_limit_headers};

/// The actual cost of a request, which a handler puts into the extensions of its response. The charge is
/// corrected to it; 0 refunds the charge.
///
/// ```
/// use http::Response;
/// use ratekeeper::tower::ActualCost;
///
/// let mut response = Response::new("done");
/// response.extensions_mut().insert(ActualCost(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActualCost(pub u64);
