//! The connection: one for all callers, made in the background, made anew when it breaks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;

use super::url::Target;
use crate::store::StoreError;

/// How long a connection may take to be made. Nobody waits that long: callers have a deadline.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// After so many calls in a row without an answer in time, the connection is given up.
const SILENT_MAX: u32 = 4;

/// What has happened to the connection so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Connections made.
    pub connected: u64,
    /// Connections that could not be made.
    pub refused: u64,
    /// Connections given up because they broke or fell silent.
    pub lost: u64,
    /// Scripts sent anew to a server that had forgotten them.
    pub scripts_loaded: u64,
}

/// One way to all servers. Clones share it.
#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    fn call<'a>(
        &'a mut self,
        cmd: &'a Cmd,
    ) -> Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send + 'a>> {
        match self {
            Self::One(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }
}

#[derive(Clone)]
enum Phase {
    Idle,
    Connecting,
    /// The connection and its number.
    Ready(Connection, u64),
    Failed(StoreError),
}

pub(super) struct Link {
    target: Target,
    phase: watch::Sender<Phase>,
    /// Calls in a row that got no answer in time.
    silent: AtomicU32,
    connected: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    pub(super) scripts_loaded: AtomicU64,
}

impl Link {
    pub(super) fn new(target: Target) -> Arc<Self> {
        Arc::new(Self {
            target,
            phase: watch::Sender::new(Phase::Idle),
            silent: AtomicU32::new(0),
            connected: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            scripts_loaded: AtomicU64::new(0),
        })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    pub(super) fn stats(&self) -> LinkStats {
        LinkStats {
            connected: self.connected.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            scripts_loaded: self.scripts_loaded.load(Ordering::Relaxed),
        }
    }

    /// Sends a command and waits for the answer, no longer than `deadline`.
    pub(super) async fn call(
        self: &Arc<Self>,
        cmd: &Cmd,
        deadline: Duration,
    ) -> Result<Result<Value, RedisError>, StoreError> {
        let answer = async {
            let (mut connection, number) = self.connection().await?;
            let answer = connection.call(cmd).await.and_then(Value::extract_error);
            self.silent.store(0, Ordering::Relaxed);
            if let Err(error) = &answer
                && is_broken(error)
            {
                self.give_up(number);
            }
            Ok(answer)
        };
        match tokio::time::timeout(deadline, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                self.fell_silent();
                Err(StoreError::Deadline(deadline))
            }
        }
    }

    /// The connection, once there is one. If there is none, somebody is sent to make it.
    async fn connection(self: &Arc<Self>) -> Result<(Connection, u64), StoreError> {
        let mut phases = self.phase.subscribe();
        let mut have_waited = false;
        loop {
            let phase = phases.borrow_and_update().clone();
            match phase {
                Phase::Ready(connection, number) => return Ok((connection, number)),
                Phase::Failed(error) if have_waited => return Err(error),
                Phase::Idle | Phase::Failed(_) => self.begin_to_connect(),
                Phase::Connecting => {
                    have_waited = true;
                    let _ = phases.changed().await;
                }
            }
        }
    }

    /// In a task of its own, so that it goes on when the caller has run out of time.
    fn begin_to_connect(self: &Arc<Self>) {
        let is_first = self.phase.send_if_modified(|phase| {
            let is_open = matches!(phase, Phase::Idle | Phase::Failed(_));
            if is_open {
                *phase = Phase::Connecting;
            }
            is_open
        });
        if !is_first {
            return;
        }
        let link = self.clone();
        tokio::spawn(async move {
            let phase = match tokio::time::timeout(CONNECT_WITHIN, link.connect()).await {
                Ok(Ok(connection)) => {
                    let number = link.connected.fetch_add(1, Ordering::Relaxed) + 1;
                    link.silent.store(0, Ordering::Relaxed);
                    Phase::Ready(connection, number)
                }
                Ok(Err(error)) => Phase::Failed(error_of(&error)),
                Err(_) => Phase::Failed(StoreError::Deadline(CONNECT_WITHIN)),
            };
            if matches!(phase, Phase::Failed(_)) {
                link.refused.fetch_add(1, Ordering::Relaxed);
            }
            link.phase.send_replace(phase);
        });
    }

    async fn connect(&self) -> Result<Connection, RedisError> {
        // Callers have deadlines of their own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(None);
        match &self.target {
            Target::Single(client) => {
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(Connection::One(connection.await?))
            }
            Target::Sentinel(client) => {
                let mut client = client.lock().await;
                let connection = client.get_async_connection_with_config(&config).await?;
                Ok(Connection::One(connection))
            }
            Target::Cluster(client) => {
                Ok(Connection::Cluster(client.get_async_connection().await?))
            }
        }
    }

    /// Drops the connection, unless there is a newer one already.
    fn give_up(&self, number: u64) {
        let was_given_up = self.phase.send_if_modified(|phase| {
            let is_it = matches!(phase, Phase::Ready(_, n) if *n == number);
            if is_it {
                *phase = Phase::Idle;
            }
            is_it
        });
        if was_given_up {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection that only takes and never gives is as good as none.
    fn fell_silent(&self) {
        if self.silent.fetch_add(1, Ordering::Relaxed) + 1 < SILENT_MAX {
            return;
        }
        let number = match &*self.phase.borrow() {
            Phase::Ready(_, number) => Some(*number),
            _ => None,
        };
        if let Some(number) = number {
            self.silent.store(0, Ordering::Relaxed);
            self.give_up(number);
        }
    }
}

/// Does the connection lead to nowhere, or to a server that is no longer the master?
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(error.kind(), ErrorKind::Parse | ErrorKind::Server(ServerErrorKind::ReadOnly))
}

/// What an error of the client library means to a caller.
pub(super) fn error_of(error: &RedisError) -> StoreError {
    let why = error.to_string();
    let is_auth = ["WRONGPASS", "NOAUTH", "NOPERM"].iter().any(|code| why.contains(code))
        || why.contains("invalid username-password")
        || why.contains("Password authentication failed");
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::EmptySentinelList
        | ErrorKind::Server(ServerErrorKind::NoPerm) => StoreError::Misconfigured(why),
        _ if is_auth || is_certificate_error(&why) => StoreError::Misconfigured(why),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound | ErrorKind::Parse => {
            StoreError::Unreachable(why)
        }
        _ => StoreError::Refused(why),
    }
}

fn is_certificate_error(why: &str) -> bool {
    why.contains("certificate") || why.contains("UnknownIssuer")
}
