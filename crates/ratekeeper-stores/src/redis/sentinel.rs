//! Sentinel: which server is the master, and when that changes.
//!
//! A master that was stopped or partitioned while the sentinels promoted a replica still believes that
//! it is the master when it comes back, until a sentinel reconfigures it; what it counts until then is
//! lost. So the sentinels decide, not the server: they are queried before and after connecting, and a
//! connection is dropped as soon as one of them announces another master.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    PushInfo, PushKind, RedisError, RedisResult, TlsCertificates, Value,
};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a sentinel may take to reply, the connection included.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the others have once more than half of the sentinels have replied.
const STRAGGLER_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a master may take to accept a connection and return its role. After that the sentinels are
/// queried again: they may have promoted another one meanwhile.
const MASTER_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the sentinels are queried while a connection is in use: an announcement may be lost when a
/// sentinel fails. Also reconnects to lost sentinels.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
const SWITCH: &str = "+switch-master";

/// Where the master is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MasterAddress {
    host: String,
    port: u16,
}

impl fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The sentinels of one service.
pub(super) struct Sentinels {
    service: Arc<str>,
    sentinels: Vec<Arc<Sentinel>>,
    /// How to log in to the master, wherever it is.
    node: ConnectionInfo,
    /// With TLS.
    certificates: Option<TlsCertificates>,
    /// The master that was announced last.
    announced: watch::Sender<Option<MasterAddress>>,
}

struct Sentinel {
    client: Client,
    /// Also subscribed to announcements.
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// The address of the master by one sentinel, and the version of the configuration that it is from.
struct MasterReport {
    epoch: u64,
    master: MasterAddress,
}

/// A connection to a master that the sentinels confirmed after it was made.
pub(super) struct ConfirmedMaster {
    pub(super) connection: MultiplexedConnection,
    pub(super) watch_master: MasterWatch,
}

/// The time for which a server is the master.
pub(super) struct MasterWatch {
    pub(super) master: MasterAddress,
    announced: watch::Receiver<Option<MasterAddress>>,
}

impl Sentinels {
    pub(super) fn new(
        service: &str,
        sentinels: Vec<ConnectionInfo>,
        node: ConnectionInfo,
        certificates: Option<TlsCertificates>,
    ) -> RedisResult<Self> {
        let open = |info: ConnectionInfo| {
            // Replies and announcements come over one connection.
            let settings = redis::RedisConnectionInfo::default();
            let settings = settings.set_protocol(ProtocolVersion::RESP3);
            let client = open(info.set_redis_settings(settings), certificates.as_ref())?;
            Ok(Arc::new(Sentinel { client, connection: Mutex::default() }))
        };
        let sentinels = sentinels.into_iter().map(open).collect::<RedisResult<_>>()?;
        let announced = watch::Sender::new(None);
        Ok(Self { service: service.into(), sentinels, node, certificates, announced })
    }

    /// Connects to the master. The sentinels are queried again afterwards: a connection that was started
    /// before a failover may be completed after it, by a server that does not know of it yet.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<ConfirmedMaster> {
        loop {
            let announced = self.announced.subscribe();
            let master = self.master().await?;
            let connecting = timeout(MASTER_TIMEOUT, self.connect_to(&master, config));
            let connection = connecting.await.map_err(|_| timed_out("the master"))??;
            if self.master().await? == master {
                return Ok(ConfirmedMaster {
                    connection,
                    watch_master: MasterWatch { master, announced },
                });
            }
        }
    }

    async fn connect_to(
        &self,
        master: &MasterAddress,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let MasterAddress { host, port } = master.clone();
        let address = match self.certificates {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let client = open(self.node.clone().set_addr(address), self.certificates.as_ref())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(config).await?;
        let role: redis::Role = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role {
            redis::Role::Primary { .. } => Ok(connection),
            _ => Err(RedisError::from((
                ErrorKind::MasterNameNotFoundBySentinel,
                "the sentinels name a server that is not a master yet",
                master.to_string(),
            ))),
        }
    }

    /// The master by the latest configuration of any sentinel: those that do not know of a failover yet
    /// return the old one.
    pub(super) async fn master(&self) -> RedisResult<MasterAddress> {
        let mut replies = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, service) = (sentinel.clone(), self.service.clone());
            let announced = self.announced.clone();
            replies.spawn(async move { sentinel.query(&service, &announced).await });
        }
        let (mut latest, mut failure) = (None::<MasterReport>, timed_out("the sentinels"));
        let (mut replies_seen, mut ends) = (0, Instant::now() + REPLY_TIMEOUT);
        while let Ok(Some(reply)) = timeout_at(ends, replies.join_next()).await {
            match reply {
                Ok(Ok(reply)) => {
                    replies_seen += 1;
                    if latest.as_ref().is_none_or(|known| known.epoch < reply.epoch) {
                        latest = Some(reply);
                    }
                }
                Ok(Err(error)) => failure = error,
                Err(_) => {}
            }
            if replies_seen * 2 > self.sentinels.len() {
                ends = ends.min(Instant::now() + STRAGGLER_TIMEOUT);
            }
        }
        latest.map(|replies_seen| replies_seen.master).ok_or(failure)
    }

    /// Waits for an announcement, or for a second, and returns whether the server is still the master;
    /// `None` when there will be no more announcements.
    pub(super) async fn is_current(&self, watch_master: &mut MasterWatch) -> Option<bool> {
        let MasterWatch { master, announced } = watch_master;
        match timeout(QUERY_INTERVAL, announced.changed()).await {
            Ok(Ok(())) => {
                Some(announced.borrow_and_update().as_ref().is_none_or(|new| new == master))
            }
            Ok(Err(_)) => None,
            // If no sentinel replies, assume that none has promoted another server.
            Err(_) => Some(self.master().await.map_or(true, |named| named == *master)),
        }
    }
}

impl Sentinel {
    async fn query(
        &self,
        service: &Arc<str>,
        announced: &watch::Sender<Option<MasterAddress>>,
    ) -> RedisResult<MasterReport> {
        let mut connection = self.connection(service, announced).await?;
        match query_master(&mut connection, service).await {
            Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                *self.connection.lock().await = None;
                query_master(&mut self.connection(service, announced).await?, service).await
            }
            replies_seen => replies_seen,
        }
    }

    async fn connection(
        &self,
        service: &Arc<str>,
        announced: &watch::Sender<Option<MasterAddress>>,
    ) -> RedisResult<MultiplexedConnection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let (service, announced) = (service.clone(), announced.clone());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REPLY_TIMEOUT))
            .set_response_timeout(Some(REPLY_TIMEOUT))
            .set_push_sender(move |push: PushInfo| {
                if let Some(master) = master_in(&push, &service) {
                    announced.send_replace(Some(master));
                }
                Ok::<(), ()>(())
            });
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        connection.subscribe(SWITCH).await?;
        Ok(kept.insert(connection).clone())
    }
}

fn open(info: ConnectionInfo, certificates: Option<&TlsCertificates>) -> RedisResult<Client> {
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
}

/// Queries one sentinel. The version first: an address that is newer than its version only seems older.
async fn query_master(
    connection: &mut MultiplexedConnection,
    service: &str,
) -> RedisResult<MasterReport> {
    let mut command = redis::cmd("SENTINEL");
    let state = command.arg("MASTER").arg(service).query_async(connection).await;
    let state: HashMap<String, String> =
        state.map_err(|error: RedisError| explain(error, service))?;
    let mut command = redis::cmd("SENTINEL");
    let command = command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let master: Option<(String, u16)> = command.query_async(connection).await?;
    let (host, port) = master.ok_or_else(|| unknown_service(service))?;
    let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Ok(MasterReport { epoch, master: MasterAddress { host, port } })
}

fn explain(error: RedisError, service: &str) -> RedisError {
    let text = error.to_string();
    match () {
        () if text.contains("No such master") => unknown_service(service),
        () if text.contains("unknown command") => {
            let what = "the server is not a sentinel; use redis:// for a single server";
            RedisError::from((ErrorKind::InvalidClientConfig, what))
        }
        () => error,
    }
}

fn unknown_service(service: &str) -> RedisError {
    let what = "the sentinels know no master of this name";
    RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, what, service.to_string()))
}

fn timed_out(who: &str) -> RedisError {
    RedisError::from(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("{who} did not reply in time"),
    ))
}

/// The new master of the service, if that is what was pushed: `NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT`.
fn master_in(push: &PushInfo, service: &str) -> Option<MasterAddress> {
    let (PushKind::Message, [_, Value::BulkString(text)]) = (&push.kind, &push.data[..]) else {
        return None;
    };
    let words: Vec<_> = std::str::from_utf8(text).ok()?.split(' ').collect();
    match words[..] {
        [name, _, _, host, port] if name == service => {
            Some(MasterAddress { host: host.to_string(), port: port.parse().ok()? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_names_the_new_master_of_its_service() {
        let pushed = |text: &str| PushInfo {
            kind: PushKind::Message,
            data: vec![
                Value::BulkString(SWITCH.into()),
                Value::BulkString(text.as_bytes().to_vec()),
            ],
        };
        let push = pushed("orders 10.0.0.1 6379 10.0.0.2 6380");
        let master = master_in(&push, "orders").unwrap();
        assert_eq!(master.to_string(), "10.0.0.2:6380");
        assert_eq!(master_in(&push, "payments"), None);
        assert_eq!(master_in(&pushed("orders 10.0.0.1 6379 10.0.0.2"), "orders"), None);
        assert_eq!(master_in(&pushed("orders a 1 b port"), "orders"), None);
        assert_eq!(master_in(&PushInfo { kind: PushKind::Subscribe, ..push }, "orders"), None);
    }
}
