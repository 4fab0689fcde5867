//! One request: its attempts, and what is learned from each.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, Method, StatusCode};
use ratekeeper_control::{AttemptState, Failure, NextStep, ResponseHints, RetryRules, StopReason};
use ratekeeper_core::Micros;
use ratekeeper_policy::AppliedLimits;
use ratekeeper_policy::json_fields::{JsonFields, JsonScanner};

use super::admit::{Admitting, Candidate, NotSent, Ticket};
use super::error::{
    BoxError, FailedAttempt, LastResponse, LocalReason, LocalRefusal, OutboundError,
    UpstreamRefusal,
};
use super::outbound::Outbound;
use super::request::{Deadline, OutboundRequest, Repeatable};
use super::stats::count;
use crate::admission::Admitted;
use crate::policy_handle::ActivePolicy;
use crate::tower::InMap;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The longest wait that a response can state. Longer ones count as this.
const RESET_MAX: Duration = Duration::from_secs(3_600);

/// How attempts are sent by one kind of client.
pub(super) trait Exchange {
    /// The request without its body.
    type Head: Sync;
    /// The response of the client.
    type Raw;
    /// The response of the layer.
    type Response;

    fn view(head: &Self::Head) -> OutboundRequest<'_>;

    fn method(head: &Self::Head) -> &Method;

    fn headers(head: &Self::Head) -> &HeaderMap;

    fn extensions(head: &Self::Head) -> &Extensions;

    /// Returns the whole body, if it is at hand.
    fn content(&self, head: &Self::Head) -> Option<bytes::Bytes>;

    /// Sends the request.
    fn send(
        &mut self,
        head: &mut Self::Head,
        attempt: &AttemptToSend,
    ) -> impl Future<Output = Result<Self::Raw, BoxError>> + Send;

    /// Returns whether the request can be sent again.
    fn is_replayable(&self) -> bool;

    /// Returns what a failure of the client means; `None` if it cannot be mended by a retry.
    fn failure(error: &BoxError) -> Option<Failure> {
        Some(if is_not_sent(error) { Failure::NotSent } else { Failure::Broken })
    }

    fn head(response: &Self::Raw) -> (StatusCode, &HeaderMap);

    /// Returns the response, which keeps what is charged by its body or is in flight until that ends.
    fn finish(
        response: Self::Raw,
        admitted: Option<(Box<Admitted>, Arc<ActivePolicy>)>,
        attempt: u32,
    ) -> Self::Response;
}

/// How an attempt is sent.
pub(super) struct AttemptToSend {
    /// Its number, from 1.
    pub(super) number: u32,
    /// Whether the request may have to be sent again, so that it has to be kept.
    pub(super) is_kept: bool,
    /// Whether the usage in the body of the response is charged, so that it has to be readable.
    pub(super) is_metered: bool,
}

/// What all attempts of a request have in common.
struct Call {
    began: Micros,
    deadline: Option<Micros>,
    is_safe: bool,
    is_grpc: bool,
}

/// An attempt that failed.
enum Failed<R> {
    Response(Box<FailedResponse<R>>),
    Error { error: BoxError, failure: Option<Failure> },
}

struct FailedResponse<R> {
    response: R,
    hints: ResponseHints,
    admitted: Option<Box<Admitted>>,
}

impl Outbound {
    /// Sends a request, and sends it again as long as the rules allow.
    pub(super) async fn run<X: Exchange>(
        &self,
        head: &mut X::Head,
        exchange: &mut X,
    ) -> Result<X::Response, OutboundError<X::Response>> {
        count(&self.shared.counters.requests);
        if let Some(why) = self.setup_error() {
            return Err(OutboundError::Misconfigured(why.clone()));
        }
        let policy = self.limiter.policy().borrow_active();
        let json = self.json_of(&policy, || exchange.content(head));
        let mut now = self.now();
        let call = self.call::<X>(head, now);
        let (mut attempt, mut previous_delay) = (1, Duration::ZERO);
        loop {
            let admitted =
                match self.start::<X>(head, json.as_deref(), &policy, &call, attempt, now) {
                    Admitting::Now(admitted) => admitted,
                    Admitting::Later(admitted) => admitted.await,
                };
            let mut ticket = admitted.map_err(|not_sent| self.not_sent(not_sent))?;
            let to_send = AttemptToSend {
                number: attempt,
                is_kept: self.config.retry.is_some_and(|rules| rules.attempts_max() > attempt),
                is_metered: ticket.admitted.as_ref().is_some_and(|admitted| admitted.is_metered()),
            };
            let span =
                tracing::debug_span!("outbound_attempt", attempt, status = tracing::field::Empty);
            let sent = {
                let mut sending = pin!(exchange.send(head, &to_send));
                poll_fn(|context| span.in_scope(|| sending.as_mut().poll(context))).await
            };
            let failed = match self.observe::<X>(sent, &mut ticket, &call, &span) {
                Ok((response, admitted)) => {
                    let admitted = admitted.map(|admitted| (admitted, Arc::clone(&*policy)));
                    return Ok(X::finish(response, admitted, attempt));
                }
                Err(failed) => failed,
            };
            let step = self.next_step(&failed, &ticket, &call, |now| AttemptState {
                number: attempt,
                elapsed: now.since(call.began),
                previous_delay,
                time_left: call.deadline.map(|deadline| deadline.since(now)),
                is_safe: call.is_safe,
                is_replayable: exchange.is_replayable(),
            });
            match step {
                Some(NextStep::Retry { after }) => {
                    failed.discard();
                    drop(ticket);
                    count(&self.shared.counters.retries);
                    tracing::debug!(
                        attempt,
                        wait_ms = after.as_millis() as u64,
                        "outbound request is retried"
                    );
                    tokio::time::sleep(after).await;
                    (attempt, previous_delay, now) = (attempt + 1, after, self.now());
                }
                Some(NextStep::Stop(stop)) => {
                    tracing::debug!(attempt, reason = %stop, "outbound request is not retried");
                    return self.stopped::<X>(failed, Some(stop), attempt, &policy, &call);
                }
                None => return self.stopped::<X>(failed, None, attempt, &policy, &call),
            }
        }
    }

    /// Finds the limits of a request, and begins to wait for them.
    fn start<'a, X: Exchange>(
        &'a self,
        head: &X::Head,
        json: Option<&JsonFields>,
        policy: &'a ActivePolicy,
        call: &Call,
        attempt: u32,
        now: Micros,
    ) -> Admitting<'a> {
        let request = X::view(head);
        let mut limits = AppliedLimits::new();
        if let Err(not_sent) = self.limits(&request, json, policy, now, &mut limits) {
            return Admitting::Now(Err(not_sent));
        }
        let quota = self.quota(&request, &limits, now);
        let is_first = attempt == 1;
        if is_first && let Err(not_sent) = self.throttle_request(&quota, now) {
            return Admitting::Now(Err(not_sent));
        }
        let candidate = Candidate { policy, quota, limits, is_first };
        self.admit(candidate, now, || self.wait_until(call, now))
    }

    fn call<X: Exchange>(&self, head: &X::Head, began: Micros) -> Call {
        let (headers, extensions) = (X::headers(head), X::extensions(head));
        let is_idempotent = is_idempotent(X::method(head));
        let is_safe = is_idempotent
            || self.config.repeats_all
            || headers.contains_key(IDEMPOTENCY_KEY)
            || extensions.get::<Repeatable>().is_some();
        let is_grpc = !is_idempotent && crate::tower::is_grpc(headers);
        let deadline = extensions.get::<Deadline>().map(|Deadline(at)| {
            began.after(at.saturating_duration_since(tokio::time::Instant::now()))
        });
        let timeout = if is_grpc { headers.get(GRPC_TIMEOUT) } else { None };
        let timeout = timeout.and_then(|timeout| grpc_timeout(timeout.as_bytes()));
        let by_timeout = timeout.map(|timeout| began.after(timeout));
        let deadline = [deadline, by_timeout].into_iter().flatten().min();
        Call { began, deadline, is_safe, is_grpc }
    }

    /// Returns until when an attempt may wait for limits.
    fn wait_until(&self, call: &Call, now: Micros) -> Micros {
        let wait_until = now.after(self.config.max_wait);
        call.deadline.map_or(wait_until, |deadline| deadline.min(wait_until))
    }

    /// Refuses a request if the server refuses most of them.
    fn throttle_request(&self, quota: &super::quota::Quota, now: Micros) -> Result<(), NotSent> {
        if self.config.throttle.is_none() {
            return Ok(());
        }
        let mut state = quota.state();
        let Some(throttle) = &mut state.throttle else { return Ok(()) };
        let is_rejected = throttle.rejects(now, fastrand::u64(..));
        throttle.on_request(now);
        if !is_rejected {
            return Ok(());
        }
        count(&self.shared.counters.throttled);
        let refusal = LocalRefusal::new(LocalReason::Throttled, None);
        Err(NotSent { refusal, is_wait: false })
    }

    /// Reads the fields of the body that limits depend on.
    fn json_of(
        &self,
        policy: &ActivePolicy,
        content: impl FnOnce() -> Option<bytes::Bytes>,
    ) -> Option<Box<JsonFields>> {
        let paths = policy.policy().request_json();
        if paths.is_empty() {
            return None;
        }
        let mut scanner = JsonScanner::new(paths);
        scanner.feed(&content()?);
        scanner.finish().cloned().map(Box::new)
    }

    fn not_sent<T>(&self, not_sent: NotSent) -> OutboundError<T> {
        match not_sent.is_wait && !self.config.max_wait.is_zero() {
            true => OutboundError::WaitTooLong(not_sent.refusal),
            false => OutboundError::Refused(not_sent.refusal),
        }
    }

    /// Learns from the result of an attempt. Returns the response if it is not a failure.
    #[allow(clippy::type_complexity, reason = "a response and what it keeps")]
    fn observe<X: Exchange>(
        &self,
        sent: Result<X::Raw, BoxError>,
        ticket: &mut Ticket<'_>,
        call: &Call,
        span: &tracing::Span,
    ) -> Result<(X::Raw, Option<Box<Admitted>>), Failed<X::Raw>> {
        ticket.end();
        let mut admitted = ticket.admitted.take();
        let response = match sent {
            Ok(response) => response,
            Err(error) => {
                count(&self.shared.counters.failed);
                let failure = X::failure(&error);
                if let (Some(Failure::NotSent), Some(admitted)) = (&failure, &mut admitted) {
                    refund_usage(admitted);
                }
                return Err(Failed::Error { error, failure });
            }
        };
        let (status, headers) = X::head(&response);
        span.record("status", status.as_u16());
        if let Some(admitted) = &mut admitted {
            admitted.settle(status.as_u16(), &InMap(headers));
        }
        let has_hints = || ResponseHints::may_be_in(headers.keys().map(HeaderName::as_str));
        if status.as_u16() < 400 && self.config.throttle.is_none() && !has_hints() {
            return Ok((response, admitted));
        }
        let now = self.now();
        let names = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let hints = ResponseHints::read(status.as_u16(), names, now, RESET_MAX);
        self.learn(&hints, ticket, now);
        let is_failed_rpc = call.is_grpc && hints.grpc_status.is_some_and(|status| status != 0);
        match status.as_u16() >= 400 || is_failed_rpc {
            true => {
                let failed = FailedResponse { response, hints, admitted };
                Err(Failed::Response(Box::new(failed)))
            }
            false => Ok((response, admitted)),
        }
    }

    fn learn(&self, hints: &ResponseHints, ticket: &Ticket<'_>, now: Micros) {
        let is_refusal = hints.is_refusal();
        if is_refusal {
            count(&self.shared.counters.refused);
        }
        let quota = &ticket.quota;
        if self.config.throttle.is_some()
            && !is_refusal
            && let Some(throttle) = &mut quota.state().throttle
        {
            throttle.on_accept(now);
        }
        if !self.config.is_learning {
            return;
        }
        quota.learn(hints, now);
        let Some(wait) = hints.wait().filter(|wait| is_refusal && !wait.is_zero()) else { return };
        let wait = wait.min(self.config.max_pause);
        if quota.pause(wait, now, fastrand::u64(..)) {
            count(&self.shared.counters.pauses);
            tracing::debug!(
                status = hints.status,
                wait_ms = wait.as_millis() as u64,
                "outbound quota is paused"
            );
            self.share_pause(&ticket.quota, wait);
        }
    }

    /// Pauses the quota in the other processes that share the store.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "there is one process"))]
    fn share_pause(&self, quota: &Arc<super::quota::Quota>, wait: Duration) {
        #[cfg(feature = "redis")]
        if quota.shared_key.is_some() {
            let (engine, quota) = (Arc::clone(self.limiter.engine()), Arc::clone(quota));
            tokio::spawn(async move {
                if let Some(key) = &quota.shared_key {
                    engine.pause(key, wait).await;
                }
            });
        }
    }

    /// Returns what comes after an attempt that failed; `None` if retries are off.
    fn next_step<R>(
        &self,
        failed: &Failed<R>,
        ticket: &Ticket<'_>,
        call: &Call,
        state: impl FnOnce(Micros) -> AttemptState,
    ) -> Option<NextStep> {
        let rules: &RetryRules = self.config.retry.as_ref()?;
        let no_hints = ResponseHints::default();
        let (failure, hints) = match failed {
            Failed::Error { failure: None, .. } => {
                return Some(NextStep::Stop(StopReason::NotRetryable));
            }
            Failed::Error { failure: Some(failure), .. } => (*failure, &no_hints),
            Failed::Response(failed) => {
                let hints = &failed.hints;
                match hints.grpc_status.filter(|_| call.is_grpc) {
                    Some(status) => (Failure::Grpc(status), hints),
                    None => (Failure::Status(hints.status), hints),
                }
            }
        };
        let now = self.now();
        let budget = &mut ticket.quota.state().budget;
        let step = rules.next(&failure, hints, &state(now), budget, now, fastrand::u64(..));
        if matches!(step, NextStep::Stop(StopReason::BudgetSpent)) {
            count(&self.shared.counters.budget_spent);
        }
        Some(step)
    }

    /// Returns the result of a request whose last attempt failed.
    fn stopped<X: Exchange>(
        &self,
        failed: Failed<X::Raw>,
        stop: Option<StopReason>,
        attempts: u32,
        policy: &Arc<ActivePolicy>,
        call: &Call,
    ) -> Result<X::Response, OutboundError<X::Response>> {
        let is_budget = matches!(stop, Some(StopReason::BudgetSpent));
        let FailedResponse { response, hints, admitted } = match failed {
            Failed::Error { error: source, .. } if is_budget => {
                return Err(OutboundError::BudgetSpent(FailedAttempt::Error { attempts, source }));
            }
            Failed::Error { error: source, .. } => {
                return Err(OutboundError::Failed { attempts, stop, source });
            }
            Failed::Response(failed) => *failed,
        };
        let (status, headers) = X::head(&response);
        // A gRPC client makes a status of any response, also of that of a proxy.
        let is_rpc = call.is_grpc || crate::tower::is_grpc(headers);
        let response =
            X::finish(response, admitted.map(|admitted| (admitted, Arc::clone(policy))), attempts);
        if is_rpc || self.config.passes_refusals {
            return Ok(response);
        }
        if is_budget {
            let response = LastResponse::new(response);
            return Err(OutboundError::BudgetSpent(FailedAttempt::Response {
                attempts,
                status,
                response,
            }));
        }
        if hints.is_refusal() {
            let (retry_after, response) = (hints.wait(), LastResponse::new(response));
            let refusal = UpstreamRefusal { attempts, status, retry_after, stop, response };
            return Err(OutboundError::UpstreamRefused(refusal));
        }
        Ok(response)
    }
}

impl<R> Failed<R> {
    /// Drops an attempt that is not the last. A response that is not passed on has used nothing: providers do not
    /// charge for errors.
    fn discard(self) {
        if let Self::Response(mut failed) = self
            && let Some(admitted) = &mut failed.admitted
        {
            refund_usage(admitted);
        }
    }
}

/// Refunds the estimates of limits that charge what a response has used.
fn refund_usage(admitted: &mut Admitted) {
    admitted.correct(|limit| limit.rule.usage_format().map(|_| 0));
}

/// Whether a request of this method can be repeated.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

/// Whether the server has not received the request: the connection could not be made.
fn is_not_sent(error: &BoxError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| is_connect(error.kind())) {
            return true;
        }
        // Also a name that is not resolved, and a failed TLS handshake.
        let of_client = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if of_client.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        #[cfg(feature = "tonic")]
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn is_connect(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind;
    matches!(
        kind,
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::AddrNotAvailable
    )
}

/// Parses the `grpc-timeout` header: up to eight digits and a unit.
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let number = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= 8)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_have_a_unit() {
        assert_eq!(grpc_timeout(b"250m"), Some(Duration::from_millis(250)));
        assert_eq!(grpc_timeout(b"1S"), Some(Duration::from_secs(1)));
        assert_eq!(grpc_timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for invalid in ["", "m", "1", "-1S", "999999999S", "1x", "1.5S"] {
            assert_eq!(grpc_timeout(invalid.as_bytes()), None, "{invalid}");
        }
    }
}
