//! Active health checks of the upstreams, if there is a path for them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ratekeeper::Dependency;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use super::state::{GatewayState, Upstream};
use super::upstream_connection::connect;

/// Failed checks in a row that make an upstream unhealthy: one may be bad luck.
const FAILURES: u32 = 2;
/// A check may take as long as the interval between two, and at least this.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Connects to each upstream once, to log those that cannot be reached, and starts the regular checks. Must be
/// called in a tokio runtime.
pub(super) fn start(gateway: &Arc<GatewayState>) {
    for index in 0..gateway.upstreams.len() {
        tokio::spawn(log_if_unreachable(Arc::clone(gateway), index));
    }
    let Some(path) = gateway.health.health_path.clone() else { return };
    for index in 0..gateway.upstreams.len() {
        tokio::spawn(check_regularly(Arc::clone(gateway), index, path.clone()));
    }
}

async fn log_if_unreachable(gateway: Arc<GatewayState>, index: usize) {
    let upstream = &gateway.upstreams[index];
    let connected = timeout(gateway.timeouts.connect, connect(upstream)).await;
    if let Err(error) = connected.unwrap_or_else(|late| Err(late.into())) {
        tracing::warn!(
            upstream = %upstream.name,
            %error,
            "upstream cannot be reached; its requests fail until it can"
        );
    }
}

async fn check_regularly(gateway: Arc<GatewayState>, index: usize, path: String) {
    let upstream = &gateway.upstreams[index];
    let every = gateway.health.health_interval;
    let within = every.max(TIMEOUT_MIN).min(gateway.timeouts.response);
    let mut checks = interval(every);
    let mut failures = 0;
    loop {
        checks.tick().await;
        let checked = timeout(within, check(upstream, &path)).await;
        let error = match checked.unwrap_or_else(|late| Err(late.into())) {
            Ok(status) if status.is_success() || status.is_redirection() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        failures = if error.is_none() { 0 } else { failures + 1 };
        let is_unhealthy = failures >= FAILURES;
        if (is_unhealthy || failures == 0) && upstream.health.set_unhealthy(is_unhealthy) {
            match error {
                None => {
                    tracing::info!(upstream = %upstream.name, "upstream is healthy again");
                    close_breakers(&gateway, index);
                }
                Some(error) => {
                    tracing::warn!(upstream = %upstream.name, error, "upstream is unhealthy");
                }
            }
        }
    }
}

/// Lets requests through to an upstream that has become healthy, without waiting for probes.
fn close_breakers(gateway: &GatewayState, index: usize) {
    let policy = gateway.policy.limiter().policy().active();
    policy.upstream_dependencies(index).iter().for_each(Dependency::probe_succeeded);
}

/// Ends the task of a connection when the check is over.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn check(upstream: &Upstream, path: &str) -> io::Result<StatusCode> {
    let stream = TokioIo::new(connect(upstream).await?);
    let (mut sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    let request = Request::get(path)
        .header(HOST, upstream.host.clone())
        .header(USER_AGENT, "ratekeeper-health")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let response = sender.send_request(request).await;
    drop(connection);
    response.map(|response| response.status()).map_err(io::Error::other)
}
