//! A tower layer that enforces a policy, and the responses to requests that it refuses. And layers that protect a
//! service: bulkheads, adaptive limits, load shedding and circuit breakers.
//!
//! # The order of layers
//!
//! The outermost first:
//!
//! | layer | why it is there |
//! |---|---|
//! | identify | all others need to know whose request it is |
//! | limit: [`RatekeeperLayer`] | a client over its quota gets 429, whatever the load is, and is not counted as load |
//! | shed: [`HttpShedLayer`] | under overload, what matters least is rejected before it takes a place in a queue |
//! | bulkhead: [`HttpBulkheadLayer`], or adaptive limit: [`HttpAdaptiveLimitLayer`] | what is left waits for a permit; the shedder learns of overload from the waits |
//! | circuit breaker: [`CircuitBreakerLayer`] | it counts only calls that were made, and an open one releases the permit at once |
//! | the service | |
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::tower::{HttpBulkheadLayer, HttpShedLayer};
//! use ratekeeper::{Bulkhead, Class, Shedder, ShedderConfig};
//! use tower::ServiceBuilder;
//!
//! let shedder = Shedder::new(ShedderConfig::DEFAULT)?;
//! let bulkhead = Bulkhead::new(40)?.with_queue(100, Duration::from_millis(500)).with_shedder(&shedder);
//! let layers = ServiceBuilder::new()
//!     .layer(ratekeeper::layer("100/minute per ip")?)
//!     .layer(HttpShedLayer::new(shedder).class(|request| match request.uri.path() {
//!         "/checkout" => Class::CRITICAL,
//!         _ => Class::SHEDDABLE,
//!     }))
//!     .layer(HttpBulkheadLayer::new(bulkhead));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adaptive;
mod body;
mod breaker;
mod bulkhead;
mod dependencies;
mod future;
mod layer;
mod metering;
mod peer;
mod rejection;
mod replayed_body;
mod request_json;
mod response;
mod shed;

pub use adaptive::{
    AdaptiveLimitLayer, AdaptiveLimitService, ClassifyLoad, HttpAdaptiveLimitLayer,
    HttpAdaptiveLimitService,
};
#[cfg(feature = "client")]
pub(crate) use body::Held;
pub use body::ResponseBody;
pub use breaker::{
    CircuitBreakerError, CircuitBreakerFuture, CircuitBreakerLayer, CircuitBreakerService,
    Classify, ClassifyStatus,
};
pub use bulkhead::{BulkheadLayer, BulkheadService, HttpBulkheadLayer, HttpBulkheadService};
pub use dependencies::{
    DependencyFuture, DependencyLayer, DependencyService, NotCalled, outcome_of,
};
pub use future::ResponseFuture;
pub use layer::{IdentifyError, Ratekeeper, RatekeeperLayer, layer};
#[cfg(feature = "client")]
pub(crate) use layer::{InMap, is_grpc};
pub use metering::Unanswered;
#[cfg(feature = "client")]
pub(crate) use metering::request_plain_response;
pub use peer::PeerAddr;
pub use rejection::{ProtectError, Rejection};
pub use replayed_body::ReplayedBody;
pub use request_json::{RequestJson, RequestJsonFuture, RequestJsonLayer};
pub use response::{
    RATELIMIT_HEADERS, RefusedBy, ShadowRefusedBy, X_REQUEST_ID, refuse, refuse_shed, reject,
    reject_call, set_headers_of, set_limit_headers,
};
pub use shed::{
    HttpShedFuture, HttpShedLayer, HttpShedService, ShedFuture, ShedLayer, ShedService,
};

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
