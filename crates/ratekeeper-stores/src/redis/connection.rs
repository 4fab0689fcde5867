//! The connection to a server: shared by all callers, made in the background, replaced when it breaks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::sentinel::{ConfirmedMaster, MasterAddress, MasterWatch, Sentinels};
use super::url::Target;
use crate::store::{StoreError, StoreErrorCause};

/// How long connecting may take. Callers do not wait that long: they have a deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How many commands may be queued. When the queue is full, commands of the same caller may overtake
/// each other; so it is longer than a busy server needs.
const UNSENT_MAX: usize = 4_096;
/// A connection is discarded when there was no reply for this many deadlines,
const SILENT_DEADLINES: u32 = 4;
/// and not sooner than this, to avoid a reconnect storm when a server pauses for a moment.
const SILENT_AT_LEAST: Duration = Duration::from_millis(200);

/// Counts what has happened to connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Connections made.
    pub connected: u64,
    /// Connections that could not be made.
    pub refused: u64,
    /// Connections discarded because they broke or stopped replying.
    pub lost: u64,
    /// Scripts sent again to a server that did not have them.
    pub scripts_loaded: u64,
}

/// An open connection and its health.
struct LiveConnection {
    connection: MultiplexedConnection,
    made_at: Instant,
    /// The master that the sentinels named, if there are sentinels.
    master: Option<MasterAddress>,
    /// Another server has become the master: what this one counts from now on is lost.
    is_superseded: AtomicBool,
    /// The age in microseconds since which there was no reply, or 0.
    silent_since: AtomicU64,
}

impl LiveConnection {
    fn new(connection: MultiplexedConnection, master: Option<MasterAddress>) -> Arc<Self> {
        Arc::new(Self {
            connection,
            made_at: Instant::now(),
            master,
            is_superseded: AtomicBool::new(false),
            silent_since: AtomicU64::new(0),
        })
    }

    fn note_reply(&self) {
        // Nearly always 0, and then nothing is written that callers share.
        if self.silent_since.load(Ordering::Relaxed) != 0 && !self.is_unverified() {
            self.silent_since.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a call has had no reply for so long that the sentinels may have named another
    /// master since. Then the server is verified before it is used again, also if it replies by now.
    fn is_unverified(&self) -> bool {
        let since = self.silent_since.load(Ordering::Relaxed);
        if self.master.is_none() || since == 0 {
            return false;
        }
        let silent_us = self.age_at(Instant::now()).saturating_sub(since);
        u128::from(silent_us) >= SILENT_AT_LEAST.as_micros()
    }

    /// The age of this connection in microseconds.
    fn age_at(&self, moment: Instant) -> u64 {
        moment.duration_since(self.made_at).as_micros() as u64
    }

    /// Notes a call that was begun then and got no reply. Returns whether there was none for too long.
    fn note_unanswered(&self, begun: Instant, deadline: Duration) -> bool {
        let begun = self.age_at(begun).max(1);
        let noted =
            self.silent_since.compare_exchange(0, begun, Ordering::Relaxed, Ordering::Relaxed);
        let silent_since = noted.map_or_else(|since| since.min(begun), |_| begun);
        let silence_max = SILENT_AT_LEAST.max(deadline.saturating_mul(SILENT_DEADLINES));
        let silent_us = self.age_at(Instant::now()).saturating_sub(silent_since);
        u128::from(silent_us) >= silence_max.as_micros()
    }

    /// Checks that the server is still the master if a reply took long.
    async fn verify(&self, sentinels: &Sentinels, begun: Instant) -> Result<(), RedisError> {
        let Some(master) = &self.master else { return Ok(()) };
        let mut is_superseded = self.is_superseded.load(Ordering::Relaxed);
        if !is_superseded && begun.elapsed() >= SILENT_AT_LEAST {
            is_superseded = sentinels.master().await? != *master;
        }
        match is_superseded {
            false => Ok(()),
            true => Err(std::io::Error::other(format!("{master} is no longer the master")).into()),
        }
    }

    /// Sends a command. The returned future completes with the reply, however late that is.
    fn send(self: &Arc<Self>, cmd: &Arc<Cmd>, is_asking: bool) -> LateCall {
        let (live, cmd) = (self.clone(), cmd.clone());
        Box::pin(async move {
            let mut connection = live.connection.clone();
            let reply = match is_asking {
                true => send_asking(&mut connection, &cmd).await,
                false => connection.req_packed_command(&cmd).await,
            };
            reply.and_then(Value::extract_error)
        })
    }
}

/// Sends a command to the node that a slot is moving to, which takes it only after `ASKING`.
async fn send_asking(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
) -> Result<Value, RedisError> {
    let mut pipeline = redis::Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").ignore().add_command(cmd.clone());
    let mut replies = connection.req_packed_commands(&pipeline, 0, 2).await?;
    replies.pop().ok_or_else(|| (ErrorKind::Parse, "no reply after ASKING").into())
}

/// A command that has been sent, until its reply.
pub(super) type LateCall = Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send>>;

/// A command that has no reply within its deadline, or could not be sent.
pub(super) struct CallFailure {
    pub(super) error: StoreError,
    /// The reply, if it may still come.
    pub(super) late: Option<LateCall>,
}

impl From<StoreError> for CallFailure {
    fn from(error: StoreError) -> Self {
        Self { error, late: None }
    }
}

#[derive(Clone)]
enum Phase {
    Idle,
    /// With the error of the last attempt.
    Connecting(Option<StoreError>),
    Ready(Arc<LiveConnection>),
    Failed(StoreError),
}

/// Counts what happens to connections.
#[derive(Default)]
pub(super) struct ConnectionCounters {
    connected: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    pub(super) scripts_loaded: AtomicU64,
}

impl ConnectionCounters {
    pub(super) fn stats(&self) -> ConnectionStats {
        ConnectionStats {
            connected: self.connected.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            scripts_loaded: self.scripts_loaded.load(Ordering::Relaxed),
        }
    }
}

/// The connection to one server, or to the current master.
pub(super) struct Connection {
    target: Target,
    phase: watch::Sender<Phase>,
    counters: Arc<ConnectionCounters>,
}

impl Connection {
    pub(super) fn new(target: Target, counters: Arc<ConnectionCounters>) -> Arc<Self> {
        Arc::new(Self { target, phase: watch::Sender::new(Phase::Idle), counters })
    }

    /// Returns whether the connection is open.
    pub(super) fn is_connected(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Ready(_))
    }

    /// Sends a command and waits for the reply, no longer than `deadline`.
    pub(super) async fn call(
        self: &Arc<Self>,
        cmd: &Arc<Cmd>,
        is_asking: bool,
        deadline: Duration,
    ) -> Result<Result<Value, RedisError>, CallFailure> {
        let begun = Instant::now();
        let live = tokio::time::timeout(deadline, self.ready_connection()).await;
        let live = live.unwrap_or_else(|_| Err(self.connect_error(deadline)))?;
        let mut reply = self.verified(live.send(cmd, is_asking), &live, begun);
        match tokio::time::timeout_at(begun + deadline, &mut reply).await {
            Ok(reply) => {
                match &reply {
                    Err(error) if is_broken(error) => self.discard(&live),
                    _ => live.note_reply(),
                }
                Ok(reply)
            }
            Err(_) => {
                if live.note_unanswered(begun, deadline) {
                    self.discard(&live);
                }
                Err(CallFailure { error: StoreError::Deadline(deadline), late: Some(reply) })
            }
        }
    }

    /// A reply that is accepted only if it is the master's. A late one may be from a server that was
    /// stopped, and replaced meanwhile.
    fn verified(
        self: &Arc<Self>,
        reply: LateCall,
        live: &Arc<LiveConnection>,
        begun: Instant,
    ) -> LateCall {
        let (Target::Sentinel(sentinels), Some(_)) = (&self.target, &live.master) else {
            return reply;
        };
        let (sentinels, live) = (sentinels.clone(), live.clone());
        Box::pin(async move {
            let reply = reply.await;
            live.verify(&sentinels, begun).await?;
            reply
        })
    }

    /// Why there was no connection in time: the last error, if there was one.
    fn connect_error(&self, deadline: Duration) -> StoreError {
        match &*self.phase.borrow() {
            Phase::Connecting(Some(error)) | Phase::Failed(error) => error.clone(),
            _ => StoreError::Deadline(deadline),
        }
    }

    /// The open connection, once there is one. If there is none, starts to connect.
    async fn ready_connection(self: &Arc<Self>) -> Result<Arc<LiveConnection>, StoreError> {
        let ready = match &*self.phase.borrow() {
            Phase::Ready(live) => Some(live.clone()),
            _ => None,
        };
        match ready {
            Some(live) if live.is_unverified() => self.discard(&live),
            Some(live) => return Ok(live),
            None => {}
        }
        let mut phases = self.phase.subscribe();
        let mut has_waited = false;
        loop {
            let phase = phases.borrow_and_update().clone();
            match phase {
                Phase::Ready(live) => return Ok(live),
                Phase::Failed(error) if has_waited => return Err(error),
                Phase::Idle | Phase::Failed(_) => self.start_connecting(),
                Phase::Connecting(_) => {
                    has_waited = true;
                    let _ = phases.changed().await;
                }
            }
        }
    }

    /// In a task of its own, so that it continues after the caller's deadline.
    fn start_connecting(self: &Arc<Self>) {
        let is_first = self.phase.send_if_modified(|phase| {
            let last = match phase {
                Phase::Idle => None,
                Phase::Failed(error) => Some(error.clone()),
                Phase::Connecting(_) | Phase::Ready(_) => return false,
            };
            *phase = Phase::Connecting(last);
            true
        });
        if !is_first {
            return;
        }
        let mut attempt = ConnectAttempt { connection: self.clone(), is_over: false };
        tokio::spawn(async move {
            let phase = attempt.connection.connect().await.map_or_else(Phase::Failed, Phase::Ready);
            attempt.is_over = true;
            attempt.connection.phase.send_replace(phase);
        });
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<LiveConnection>, StoreError> {
        let failure = match tokio::time::timeout(CONNECT_TIMEOUT, self.try_to_connect()).await {
            Ok(Ok(live)) => {
                self.counters.connected.fetch_add(1, Ordering::Relaxed);
                return Ok(live);
            }
            Ok(Err(error)) => error_of(&error),
            Err(_) => StoreError::Deadline(CONNECT_TIMEOUT),
        };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        Err(failure)
    }

    async fn try_to_connect(self: &Arc<Self>) -> Result<Arc<LiveConnection>, RedisError> {
        // Callers have deadlines of their own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNSENT_MAX);
        match &self.target {
            Target::Single(client) => {
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(LiveConnection::new(connection.await?, None))
            }
            Target::Sentinel(sentinels) => {
                let ConfirmedMaster { connection, watch_master } =
                    sentinels.connect(&config).await?;
                let live = LiveConnection::new(connection, Some(watch_master.master.clone()));
                self.drop_when_superseded(sentinels, &live, watch_master);
                Ok(live)
            }
        }
    }

    /// Discards a connection as soon as another server is the master. The task ends with the
    /// connection.
    fn drop_when_superseded(
        self: &Arc<Self>,
        sentinels: &Arc<Sentinels>,
        live: &Arc<LiveConnection>,
        watch_master: MasterWatch,
    ) {
        let (connection, live) = (Arc::downgrade(self), Arc::downgrade(live));
        let sentinels = sentinels.clone();
        tokio::spawn(async move {
            let mut watch_master = watch_master;
            while let Some(is_current) = sentinels.is_current(&mut watch_master).await {
                let Some(live) = live.upgrade() else { return };
                if !is_current {
                    live.is_superseded.store(true, Ordering::Relaxed);
                    if let Some(connection) = connection.upgrade() {
                        connection.discard(&live);
                    }
                    return;
                }
            }
        });
    }

    /// Discards the connection, unless there is a newer one already.
    fn discard(&self, live: &Arc<LiveConnection>) {
        let is_discarded = self.phase.send_if_modified(|phase| {
            let is_it = matches!(phase, Phase::Ready(other) if Arc::ptr_eq(other, live));
            if is_it {
                *phase = Phase::Idle;
            }
            is_it
        });
        if is_discarded {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A task that connects. If its runtime ends meanwhile, another caller has to start one.
struct ConnectAttempt {
    connection: Arc<Connection>,
    is_over: bool,
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.connection.phase.send_replace(Phase::Idle);
        }
    }
}

/// Returns whether the connection is broken, or leads to a server that is no longer the master.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Parse
        || says(error, &["READONLY", "MASTERDOWN"])
}

/// Returns whether the error has one of these codes. Older servers put it into the text of a script's
/// error.
fn says(error: &RedisError, codes: &[&str]) -> bool {
    let text = error.to_string();
    codes.iter().any(|code| error.code() == Some(code) || text.contains(code))
}

/// Converts an error of the client library.
pub(super) fn error_of(error: &RedisError) -> StoreError {
    let why = StoreErrorCause::from_error(error.clone());
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::EmptySentinelList
        | ErrorKind::Server(ServerErrorKind::NoPerm) => StoreError::Misconfigured(why),
        _ if says(error, &CONFIGURATION_ERRORS) => StoreError::Misconfigured(why),
        // Also for a correct name until there is a new master.
        ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::Io
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::Parse => StoreError::Unreachable(why),
        _ if says(error, &TEMPORARY_ERRORS) => StoreError::Refused(why),
        // The key holds something other than a state.
        _ if says(error, &["WRONGTYPE", "user_script"]) => StoreError::InvalidResponse(why),
        _ => StoreError::Refused(why),
    }
}

const CONFIGURATION_ERRORS: [&str; 8] = [
    "WRONGPASS",
    "NOAUTH",
    "NOPERM",
    "invalid username-password",
    "Password authentication failed",
    "The user executing the script can't",
    "certificate",
    "UnknownIssuer",
];

/// Codes of errors that pass. A script's error may have them too.
const TEMPORARY_ERRORS: [&str; 8] =
    ["OOM", "READONLY", "MISCONF", "NOREPLICAS", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN"];
