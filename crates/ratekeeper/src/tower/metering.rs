//! Charges the usage that a response states, while its body streams by.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use ratekeeper_policy::AppliedLimit;
use ratekeeper_policy::usage::{Metered, UsageFormat, UsageMeter};
use smallvec::SmallVec;

use crate::admission::Admitted;
use crate::policy_handle::ActivePolicy;
use crate::telemetry::MeteredOutcome;

/// Requests a response that can be read: one that is not compressed.
pub(crate) fn request_plain_response(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Reads the usage of a response, and charges it when this is dropped: at the end of the body, or where the
/// body was cut.
pub(crate) struct Metering {
    admitted: Admitted,
    policy: Arc<ActivePolicy>,
    /// One for each format; none if the body cannot be read.
    meters: SmallVec<[UsageMeter; 1]>,
    status: StatusCode,
    /// Whether a request that was not answered may have been used all the same.
    is_unanswered: bool,
    is_complete: bool,
}

/// An extension of a response that a proxy makes itself because the service behind it, which has received the
/// request, did not answer. What was used is not known, so the estimate stays charged, whatever the status is.
///
/// ```
/// use ratekeeper::tower::Unanswered;
///
/// let mut response = http::Response::new("");
/// *response.status_mut() = http::StatusCode::GATEWAY_TIMEOUT;
/// response.extensions_mut().insert(Unanswered);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Unanswered;

impl std::fmt::Debug for Metering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metering").field("admitted", &self.admitted).finish_non_exhaustive()
    }
}

impl Metering {
    /// Begins to read the body of a response with this head.
    pub(crate) fn new(admitted: Admitted, policy: Arc<ActivePolicy>, head: &Parts) -> Self {
        let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let mut meters: SmallVec<[UsageMeter; 1]> = SmallVec::new();
        if is_plain(&head.headers) {
            for format in admitted.usage_formats() {
                if meters.iter().all(|meter| meter.format() != format) {
                    meters.push(UsageMeter::new(format.clone(), content_type));
                }
            }
        }
        let is_unanswered = head.extensions.get::<Unanswered>().is_some();
        Self { admitted, policy, meters, status: head.status, is_unanswered, is_complete: false }
    }

    /// Reads the next piece of the body.
    pub(crate) fn feed(&mut self, bytes: &Bytes) {
        self.meters.iter_mut().for_each(|meter| meter.feed(bytes));
    }

    /// Notes that the whole body was read.
    pub(crate) fn complete(&mut self) {
        self.is_complete = true;
    }

    fn settle(&mut self) {
        let is_complete = self.is_complete && !self.is_unanswered;
        let is_error = self.status.as_u16() >= 400 && !self.is_unanswered;
        let stated = self.meters.iter_mut().map(|meter| {
            let metered = meter.finish(is_complete);
            (meter.format().clone(), metered)
        });
        let stated: SmallVec<[_; 1]> = stated.collect();
        let policy = &self.policy;
        self.admitted.correct(|limit| {
            let format = limit.rule.usage_format()?;
            let (actual, outcome) = charge(limit, find(&stated, format), is_error, is_complete);
            if !limit.is_share() {
                policy.counters(&limit.rule).count_metered(outcome, limit.rule.name());
            }
            actual
        });
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        self.settle();
    }
}

fn find(stated: &[(UsageFormat, Metered)], format: &UsageFormat) -> Option<Metered> {
    stated.iter().find(|(known, _)| known == format).map(|(_, metered)| *metered)
}

/// Returns what a limit charges in the end, or `None` to keep the estimate. `metered` is `None` if the body
/// cannot be read.
fn charge(
    limit: &AppliedLimit,
    metered: Option<Metered>,
    is_error: bool,
    is_complete: bool,
) -> (Option<u64>, MeteredOutcome) {
    let stated = metered.and_then(|metered| metered.usage);
    let used = stated.and_then(|usage| limit.rule.usage_cost(&usage));
    match (metered, used) {
        (Some(Metered { is_final: true, .. }), Some(used)) => (Some(used), MeteredOutcome::Settled),
        // A provider does not charge for an error.
        _ if is_error => (Some(0), MeteredOutcome::Refunded),
        (None, _) => (None, MeteredOutcome::Encoded),
        // It has used at least this, and what else is not known.
        (_, Some(used)) => (Some(used.max(limit.cost.get())), MeteredOutcome::Interrupted),
        (_, None) if is_complete => (None, MeteredOutcome::Unstated),
        (_, None) => (None, MeteredOutcome::Interrupted),
    }
}

/// Returns whether a body is not compressed.
fn is_plain(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.into_iter().all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
