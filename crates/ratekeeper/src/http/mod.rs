//! A policy in front of an HTTP service: a tower layer, and the answers that callers get.

mod answer;
mod body;
mod future;
mod layer;
mod peer;

pub use answer::{Limited, RATELIMIT_HEADERS, refuse, tell, tell_limit};
pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use layer::{Ratekeeper, RatekeeperLayer, layer};
pub use peer::PeerAddr;

/// What a request really cost, put by a handler into the extensions of its response: it is charged
/// this much instead of what was charged before. 0 gives all of it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActualCost(pub u64);
