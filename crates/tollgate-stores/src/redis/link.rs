//! The connection: one for all callers, made in the background, made anew when it breaks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{Arg, AsyncConnectionConfig, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::url::Target;
use crate::store::StoreError;

/// How long a connection may take to be made. Nobody waits that long: callers have a deadline.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How many commands may wait to be sent. Those for which there is no room wait for some, and then
/// commands of the same caller overtake each other; so there is more room than a busy server needs. The
/// client of a cluster has room for 100, and that cannot be changed.
const UNSENT_MAX: usize = 4_096;
/// A connection is given up when nothing was answered for so many deadlines,
const SILENT_DEADLINES: u32 = 4;
/// and not sooner than this: a server that halts for a moment needs no crowd at its door.
const SILENT_AT_LEAST: Duration = Duration::from_millis(200);
/// The slots of a cluster are watched in so many parts: one node may be silent while others answer.
const LANES: usize = 64;
const SLOTS: usize = 16_384;

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

/// A connection and how it fares.
struct Line {
    connection: Connection,
    made_at: Instant,
    is_given_up: AtomicBool,
    /// Is anything else than 0 in any lane?
    has_silence: AtomicBool,
    /// For each lane, the microsecond of this connection's life since which nothing was answered,
    /// or 0.
    silent_since: Box<[AtomicU64]>,
}

impl Line {
    fn new(connection: Connection) -> Arc<Self> {
        let lanes = match connection {
            Connection::One(_) => 1,
            Connection::Cluster(_) => LANES,
        };
        let silent_since = (0..lanes).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            connection,
            made_at: Instant::now(),
            is_given_up: AtomicBool::new(false),
            has_silence: AtomicBool::new(false),
            silent_since,
        })
    }

    fn lane(&self, cmd: &Cmd) -> &AtomicU64 {
        match &self.silent_since[..] {
            [only] => only,
            lanes => &lanes[slot_of(cmd) * LANES / SLOTS],
        }
    }

    fn answered(&self, cmd: &Cmd) {
        // Nearly always false, and then nothing is written that callers share.
        if !self.has_silence.load(Ordering::Relaxed) {
            return;
        }
        self.lane(cmd).store(0, Ordering::Relaxed);
        if self.silent_since.iter().all(|lane| lane.load(Ordering::Relaxed) == 0) {
            self.has_silence.store(false, Ordering::Relaxed);
        }
    }

    /// Notes a call that was begun then and got no answer. Has it been like that for too long?
    fn is_silent(&self, cmd: &Cmd, begun: Instant, deadline: Duration) -> bool {
        let age_at = |moment: Instant| moment.duration_since(self.made_at).as_micros() as u64;
        let begun = age_at(begun).max(1);
        self.has_silence.store(true, Ordering::Relaxed);
        let noted = self.lane(cmd).compare_exchange(0, begun, Ordering::Relaxed, Ordering::Relaxed);
        let silent_since = noted.map_or_else(|since| since.min(begun), |_| begun);
        let patience = SILENT_AT_LEAST.max(deadline.saturating_mul(SILENT_DEADLINES));
        u128::from(age_at(Instant::now()).saturating_sub(silent_since)) >= patience.as_micros()
    }
}

/// The slot of a command's first key.
fn slot_of(cmd: &Cmd) -> usize {
    let args = || {
        cmd.args_iter().map(|arg| match arg {
            Arg::Simple(bytes) => bytes,
            _ => &[],
        })
    };
    let is_script = args().next().is_some_and(|name| name.starts_with(b"EVAL"));
    let key = args().nth(if is_script { 3 } else { 1 });
    key.map_or(0, |key| usize::from(crc16(hash_tag(key))) % SLOTS)
}

/// The part of a key that decides on its slot.
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').map(|open| &key[open + 1..]);
    let end = tag.and_then(|tag| tag.iter().position(|byte| *byte == b'}'));
    match (tag, end) {
        (Some(tag), Some(end @ 1..)) => &tag[..end],
        _ => key,
    }
}

/// The sum that clusters go by (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[derive(Clone)]
enum Phase {
    Idle,
    /// With what went wrong the last time.
    Connecting(Option<StoreError>),
    Ready(Arc<Line>),
    Failed(StoreError),
}

pub(super) struct Link {
    target: Target,
    phase: watch::Sender<Phase>,
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
        let begun = Instant::now();
        let mut used = None;
        let answer = async {
            let line = used.insert(self.line().await?);
            Ok(line.connection.clone().call(cmd).await.and_then(Value::extract_error))
        };
        let answer = tokio::time::timeout(deadline, answer).await;
        let Some(line) = used else {
            return answer.unwrap_or_else(|_| Err(self.why_not(deadline)));
        };
        match &answer {
            Ok(Ok(Err(error))) if is_broken(error) => match self.is_cluster() {
                // One node of many: the client sees to it, unless it fails to.
                true if line.is_silent(cmd, begun, deadline) => self.renew(&line),
                true => {}
                false => self.give_up(&line),
            },
            Ok(_) => line.answered(cmd),
            Err(_) if line.is_silent(cmd, begun, deadline) => match self.is_cluster() {
                true => self.renew(&line),
                false => self.give_up(&line),
            },
            Err(_) => {}
        }
        answer.unwrap_or(Err(StoreError::Deadline(deadline)))
    }

    /// Why there was no connection in time: what went wrong before, if something did.
    fn why_not(&self, deadline: Duration) -> StoreError {
        match &*self.phase.borrow() {
            Phase::Connecting(Some(error)) | Phase::Failed(error) => error.clone(),
            _ => StoreError::Deadline(deadline),
        }
    }

    /// The connection, once there is one. If there is none, somebody is sent to make it.
    async fn line(self: &Arc<Self>) -> Result<Arc<Line>, StoreError> {
        if let Phase::Ready(line) = &*self.phase.borrow() {
            return Ok(line.clone());
        }
        let mut phases = self.phase.subscribe();
        let mut have_waited = false;
        loop {
            let phase = phases.borrow_and_update().clone();
            match phase {
                Phase::Ready(line) => return Ok(line),
                Phase::Failed(error) if have_waited => return Err(error),
                Phase::Idle | Phase::Failed(_) => self.begin_to_connect(),
                Phase::Connecting(_) => {
                    have_waited = true;
                    let _ = phases.changed().await;
                }
            }
        }
    }

    /// In a task of its own, so that it goes on when the caller has run out of time.
    fn begin_to_connect(self: &Arc<Self>) {
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
        let mut attempt = Attempt { link: self.clone(), is_over: false };
        tokio::spawn(async move {
            let phase = attempt.link.connect().await.map_or_else(Phase::Failed, Phase::Ready);
            attempt.is_over = true;
            attempt.link.phase.send_replace(phase);
        });
    }

    async fn connect(&self) -> Result<Arc<Line>, StoreError> {
        let failure = match tokio::time::timeout(CONNECT_WITHIN, self.try_to_connect()).await {
            Ok(Ok(connection)) => {
                self.connected.fetch_add(1, Ordering::Relaxed);
                return Ok(Line::new(connection));
            }
            Ok(Err(error)) => error_of(&error),
            Err(_) => StoreError::Deadline(CONNECT_WITHIN),
        };
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(failure)
    }

    async fn try_to_connect(&self) -> Result<Connection, RedisError> {
        // Callers have deadlines of their own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNSENT_MAX);
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
    fn give_up(&self, line: &Arc<Line>) {
        let was_given_up = self.replace(line, || Phase::Idle);
        if was_given_up {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes another connection and goes on with this one until then: most of it may be well.
    fn renew(self: &Arc<Self>, line: &Arc<Line>) {
        if line.is_given_up.swap(true, Ordering::Relaxed) {
            return;
        }
        let (link, line) = (self.clone(), line.clone());
        tokio::spawn(async move {
            let newer = link.connect().await;
            let is_renewed = newer.is_ok_and(|newer| link.replace(&line, || Phase::Ready(newer)));
            match is_renewed {
                true => drop(link.lost.fetch_add(1, Ordering::Relaxed)),
                false => line.is_given_up.store(false, Ordering::Relaxed),
            }
        });
    }

    /// Puts something else in the place of this connection, if it is still there.
    fn replace(&self, line: &Arc<Line>, by: impl FnOnce() -> Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let is_it = matches!(phase, Phase::Ready(other) if Arc::ptr_eq(other, line));
            if is_it {
                *phase = by();
            }
            is_it
        })
    }
}

/// Whoever is making a connection. When its runtime ends meanwhile, somebody else has to.
struct Attempt {
    link: Arc<Link>,
    is_over: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.link.phase.send_replace(Phase::Idle);
        }
    }
}

/// Does the connection lead to nowhere, or to a server that is no longer the master?
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Parse
        || says(error, &["READONLY", "MASTERDOWN"])
}

/// Does the server say one of these? Older ones put their code into the text of a script's error.
fn says(error: &RedisError, codes: &[&str]) -> bool {
    let text = error.to_string();
    codes.iter().any(|code| error.code() == Some(code) || text.contains(code))
}

/// What an error of the client library means to a caller.
pub(super) fn error_of(error: &RedisError) -> StoreError {
    let why = error.to_string();
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::EmptySentinelList
        | ErrorKind::Server(ServerErrorKind::NoPerm) => StoreError::Misconfigured(why),
        _ if says(error, &FOR_SOMEBODY_TO_REPAIR) => StoreError::Misconfigured(why),
        // The sentinels say so of a wrong name, and of a right one until there is a new master.
        ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::Io
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::Parse => StoreError::Unreachable(why),
        _ if says(error, &NOT_NOW) => StoreError::Refused(why),
        // Something else is where the state should be.
        _ if says(error, &["WRONGTYPE", "user_script"]) => StoreError::Nonsense(why),
        _ => StoreError::Refused(why),
    }
}

const FOR_SOMEBODY_TO_REPAIR: [&str; 8] = [
    "WRONGPASS",
    "NOAUTH",
    "NOPERM",
    "invalid username-password",
    "Password authentication failed",
    "The user executing the script can't",
    "certificate",
    "UnknownIssuer",
];

/// Codes that a script's error may carry, too.
const NOT_NOW: [&str; 8] =
    ["OOM", "READONLY", "MISCONF", "NOREPLICAS", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        let slot = |key: &str| slot_of(redis::cmd("DEL").arg(key));
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("a{foo}b"), 12182);
        assert_eq!(slot("{}foo"), usize::from(crc16(b"{}foo")) % SLOTS);
        let mut script = redis::cmd("EVALSHA");
        script.arg("abc").arg(1).arg("x{foo}").arg("bar");
        assert_eq!(slot_of(&script), 12182);
        assert_eq!(slot_of(&redis::cmd("PING")), 0);
    }
}
