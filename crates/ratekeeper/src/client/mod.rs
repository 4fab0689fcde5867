//! The client side: requests that stay within other people's quotas.
//!
//! [`Outbound`] is a tower layer for any HTTP client, such as that of hyper-util or a tonic channel, and with the feature
//! `reqwest` a middleware for reqwest. It waits for limits before a request is sent, learns from responses what the
//! server allows, and retries within a budget.
//!
//! ```
//! use http::{Request, Response};
//! use ratekeeper::client::{ClientExt, Outbound};
//! use tower::{ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Any client: a service of `http` requests.
//! let client = service_fn(|_: Request<String>| async {
//!     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
//! });
//! let client = client.layer(Outbound::new("100/s per host")?);
//!
//! let response = client.oneshot(Request::get("https://api.example.com/").body(String::new())?).await?;
//! assert_eq!(response.status(), 200);
//! # Ok(()) }
//! ```

mod admit;
mod call;
mod error;
mod outbound;
mod quota;
mod replay;
mod request;
#[cfg(feature = "reqwest")]
mod reqwest;
mod service;
mod stats;

pub use error::{
    FailedAttempt, LastResponse, LocalReason, LocalRefusal, OutboundError, UpstreamRefusal,
};
pub use outbound::{ClientExt, Outbound};
pub use ratekeeper_control::{
    Backoff, Jitter, RetryBudget, RetryBudgetConfig, RetryBudgetError, RetryRules, StopReason,
    Throttle, ThrottleError,
};
pub use replay::{OnceBody, Recording, ReplayBody};
pub use request::{Attempt, Deadline, EstimatedCost, OutboundRequest, Repeatable};
pub use service::OutboundService;
pub use stats::{OutboundStats, WaitReason, WaitStats};
