//! The connection: one for all callers, made in the background, made anew when it breaks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::sentinel::{Address, Confirmed, Sentinels, Tenure};
use super::url::Target;
use crate::store::StoreError;

/// How long a connection may take to be made. Nobody waits that long: callers have a deadline.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How many commands may wait to be sent. Those for which there is no room wait for some, and then
/// commands of the same caller overtake each other; so there is more room than a busy server needs.
const UNSENT_MAX: usize = 4_096;
/// A connection is given up when nothing was answered for so many deadlines,
const SILENT_DEADLINES: u32 = 4;
/// and not sooner than this: a server that halts for a moment needs no crowd at its door.
const SILENT_AT_LEAST: Duration = Duration::from_millis(200);

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

/// A connection and how it fares.
struct Line {
    connection: MultiplexedConnection,
    made_at: Instant,
    /// The master that the sentinels named, if there are sentinels.
    master: Option<Address>,
    /// Another server has become the master: what this one counts is lost.
    is_superseded: AtomicBool,
    /// The microsecond of this connection's life since which nothing was answered, or 0.
    silent_since: AtomicU64,
}

impl Line {
    fn new(connection: MultiplexedConnection, master: Option<Address>) -> Arc<Self> {
        Arc::new(Self {
            connection,
            made_at: Instant::now(),
            master,
            is_superseded: AtomicBool::new(false),
            silent_since: AtomicU64::new(0),
        })
    }

    fn answered(&self) {
        // Nearly always 0, and then nothing is written that callers share.
        if self.silent_since.load(Ordering::Relaxed) != 0 && !self.is_unverified() {
            self.silent_since.store(0, Ordering::Relaxed);
        }
    }

    /// Was a call left unanswered so long ago that the sentinels may have named another master since? Then
    /// the server has to be verified before it is used again, also if it replies by now.
    fn is_unverified(&self) -> bool {
        let since = self.silent_since.load(Ordering::Relaxed);
        if self.master.is_none() || since == 0 {
            return false;
        }
        let silent_us = self.age_at(Instant::now()).saturating_sub(since);
        u128::from(silent_us) >= SILENT_AT_LEAST.as_micros()
    }

    /// The microsecond of this connection's life.
    fn age_at(&self, moment: Instant) -> u64 {
        moment.duration_since(self.made_at).as_micros() as u64
    }

    /// Notes a call that was begun then and got no answer. Has it been like that for too long?
    fn is_silent(&self, begun: Instant, deadline: Duration) -> bool {
        let begun = self.age_at(begun).max(1);
        let noted =
            self.silent_since.compare_exchange(0, begun, Ordering::Relaxed, Ordering::Relaxed);
        let silent_since = noted.map_or_else(|since| since.min(begun), |_| begun);
        let silence_max = SILENT_AT_LEAST.max(deadline.saturating_mul(SILENT_DEADLINES));
        let silent_us = self.age_at(Instant::now()).saturating_sub(silent_since);
        u128::from(silent_us) >= silence_max.as_micros()
    }

    /// Checks that the server is still the master, where a reply has been long in coming.
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

    /// Sends a command. What is returned ends with the reply, however late that comes.
    fn send(self: &Arc<Self>, cmd: &Arc<Cmd>, is_asking: bool) -> LateCall {
        let (line, cmd) = (self.clone(), cmd.clone());
        Box::pin(async move {
            let mut connection = line.connection.clone();
            let reply = match is_asking {
                true => ask(&mut connection, &cmd).await,
                false => connection.req_packed_command(&cmd).await,
            };
            reply.and_then(Value::extract_error)
        })
    }
}

/// Sends a command to the node that a slot is moving to, which takes it only after `ASKING`.
async fn ask(connection: &mut MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
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
    /// With what went wrong the last time.
    Connecting(Option<StoreError>),
    Ready(Arc<Line>),
    Failed(StoreError),
}

/// Counts what happens to connections.
#[derive(Default)]
pub(super) struct Counters {
    connected: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    pub(super) scripts_loaded: AtomicU64,
}

impl Counters {
    pub(super) fn stats(&self) -> LinkStats {
        LinkStats {
            connected: self.connected.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            scripts_loaded: self.scripts_loaded.load(Ordering::Relaxed),
        }
    }
}

/// The way to one server, or to the one that is master at present.
pub(super) struct Link {
    target: Target,
    phase: watch::Sender<Phase>,
    counters: Arc<Counters>,
}

impl Link {
    pub(super) fn new(target: Target, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { target, phase: watch::Sender::new(Phase::Idle), counters })
    }

    /// Is there a connection?
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
        let line = tokio::time::timeout(deadline, self.line()).await;
        let line = line.unwrap_or_else(|_| Err(self.why_not(deadline)))?;
        let mut reply = self.verified(line.send(cmd, is_asking), &line, begun);
        match tokio::time::timeout_at(begun + deadline, &mut reply).await {
            Ok(reply) => {
                match &reply {
                    Err(error) if is_broken(error) => self.give_up(&line),
                    _ => line.answered(),
                }
                Ok(reply)
            }
            Err(_) => {
                if line.is_silent(begun, deadline) {
                    self.give_up(&line);
                }
                Err(CallFailure { error: StoreError::Deadline(deadline), late: Some(reply) })
            }
        }
    }

    /// A reply that is believed only if it is the master's. One that came late may be from a server that
    /// was stopped, and replaced meanwhile.
    fn verified(self: &Arc<Self>, reply: LateCall, line: &Arc<Line>, begun: Instant) -> LateCall {
        let (Target::Sentinel(sentinels), Some(_)) = (&self.target, &line.master) else {
            return reply;
        };
        let (sentinels, line) = (sentinels.clone(), line.clone());
        Box::pin(async move {
            let reply = reply.await;
            line.verify(&sentinels, begun).await?;
            reply
        })
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
        let ready = match &*self.phase.borrow() {
            Phase::Ready(line) => Some(line.clone()),
            _ => None,
        };
        match ready {
            Some(line) if line.is_unverified() => self.give_up(&line),
            Some(line) => return Ok(line),
            None => {}
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

    async fn connect(self: &Arc<Self>) -> Result<Arc<Line>, StoreError> {
        let failure = match tokio::time::timeout(CONNECT_WITHIN, self.try_to_connect()).await {
            Ok(Ok(line)) => {
                self.counters.connected.fetch_add(1, Ordering::Relaxed);
                return Ok(line);
            }
            Ok(Err(error)) => error_of(&error),
            Err(_) => StoreError::Deadline(CONNECT_WITHIN),
        };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        Err(failure)
    }

    async fn try_to_connect(self: &Arc<Self>) -> Result<Arc<Line>, RedisError> {
        // Callers have deadlines of their own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNSENT_MAX);
        match &self.target {
            Target::Single(client) => {
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(Line::new(connection.await?, None))
            }
            Target::Sentinel(sentinels) => {
                let Confirmed { connection, tenure } = sentinels.connect(&config).await?;
                let line = Line::new(connection, Some(tenure.master.clone()));
                self.drop_when_superseded(sentinels, &line, tenure);
                Ok(line)
            }
        }
    }

    /// Gives a connection up as soon as another server is the master. The task ends with the connection,
    /// and runs where it does.
    fn drop_when_superseded(
        self: &Arc<Self>,
        sentinels: &Arc<Sentinels>,
        line: &Arc<Line>,
        tenure: Tenure,
    ) {
        let (link, line) = (Arc::downgrade(self), Arc::downgrade(line));
        let sentinels = sentinels.clone();
        tokio::spawn(async move {
            let mut tenure = tenure;
            while let Some(is_current) = sentinels.is_current(&mut tenure).await {
                let Some(line) = line.upgrade() else { return };
                if !is_current {
                    line.is_superseded.store(true, Ordering::Relaxed);
                    if let Some(link) = link.upgrade() {
                        link.give_up(&line);
                    }
                    return;
                }
            }
        });
    }

    /// Drops the connection, unless there is a newer one already.
    fn give_up(&self, line: &Arc<Line>) {
        let was_given_up = self.phase.send_if_modified(|phase| {
            let is_it = matches!(phase, Phase::Ready(other) if Arc::ptr_eq(other, line));
            if is_it {
                *phase = Phase::Idle;
            }
            is_it
        });
        if was_given_up {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
        }
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
        _ if says(error, &["WRONGTYPE", "user_script"]) => StoreError::InvalidResponse(why),
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
