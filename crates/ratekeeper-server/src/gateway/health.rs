//! Asks the upstreams how they are, if there is a path to ask for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use super::link::connect;
use super::shared::{Shared, Upstream};

/// One answer that is missing may be bad luck.
const FAILURES: u32 = 2;
/// An answer may take as long as there is between two questions, and at least this.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// Watches all upstreams for as long as the gateway runs.
pub(super) fn start(shared: &Arc<Shared>) {
    let Some(path) = shared.health.health_path.clone() else { return };
    for index in 0..shared.upstreams.len() {
        tokio::spawn(watch(Arc::clone(shared), index, path.clone()));
    }
}

async fn watch(shared: Arc<Shared>, index: usize, path: String) {
    let upstream = &shared.upstreams[index];
    let every = shared.health.health_interval;
    let patience = every.max(PATIENCE_MIN).min(shared.timeouts.response);
    let mut turns = interval(every);
    let mut failures = 0;
    loop {
        turns.tick().await;
        let asked = timeout(patience, ask(upstream, &path)).await;
        let why = match asked.unwrap_or_else(|late| Err(late.into())) {
            Ok(status) if status.is_success() || status.is_redirection() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        failures = if why.is_none() { 0 } else { failures + 1 };
        let is_sick = failures >= FAILURES;
        if (is_sick || failures == 0) && upstream.fitness.set_sick(is_sick) {
            match why {
                None => tracing::info!(upstream = %upstream.name, "healthy again"),
                Some(why) => tracing::warn!(upstream = %upstream.name, why, "unhealthy, left out"),
            }
        }
    }
}

/// Ends a connection when its answer is there, or does not come.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(upstream: &Upstream, path: &str) -> io::Result<StatusCode> {
    let stream = TokioIo::new(connect(upstream).await?);
    let (mut sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    let request = Request::get(path)
        .header(HOST, upstream.host.clone())
        .header(USER_AGENT, "ratekeeper-health")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let answer = sender.send_request(request).await;
    drop(connection);
    answer.map(|answer| answer.status()).map_err(io::Error::other)
}
