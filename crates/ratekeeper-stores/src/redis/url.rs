//! URLs: where the servers are and how they are deployed.

use std::sync::Arc;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates};

use super::sentinel::Sentinels;

/// One server, and the client for it.
pub(super) enum Target {
    Single(Box<Client>),
    Sentinel(Arc<Sentinels>),
}

/// How the servers are deployed.
pub(super) enum Deployment {
    Single(Target),
    /// The addresses of some of its nodes, and how to connect to any of them.
    Cluster(Vec<String>, NodeClients),
}

/// Makes the client for each node of a cluster.
#[derive(Clone)]
pub(super) struct NodeClients {
    is_tls: bool,
    credentials: Option<String>,
    ca_pem: Option<Vec<u8>>,
}

impl NodeClients {
    /// The client for the node at `HOST:PORT`.
    pub(super) fn target(&self, address: &str) -> Result<Target, RedisError> {
        let parts = Parts {
            is_tls: self.is_tls,
            kind: "",
            credentials: self.credentials.as_deref(),
            hosts: vec![address],
            path: "",
        };
        single(&parts, self.ca_pem.as_deref()).map(|client| Target::Single(Box::new(client)))
    }
}

/// A URL that cannot be used, and why.
///
/// ```
/// # mod ratekeeper { pub use ratekeeper_core::*; pub use ratekeeper_stores::*; }
/// use ratekeeper::RedisConfig;
///
/// let error = RedisConfig::new("http://127.0.0.1").open().unwrap_err();
/// assert!(error.to_string().contains("redis://HOST:PORT"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store's address {url} cannot be used: {reason}; it is one of redis://HOST:PORT/DB, \
     rediss://… (TLS), redis+sentinel://HOST:PORT,HOST:PORT/SERVICE and \
     redis+cluster://HOST:PORT,HOST:PORT, each with an optional USER:PASSWORD@"
)]
pub struct RedisUrlError {
    url: String,
    reason: String,
}

impl RedisUrlError {
    pub(super) fn new(url: &str, reason: &str) -> Self {
        Self { url: without_password(url), reason: reason.to_string() }
    }
}

/// The parts of a URL.
struct Parts<'u> {
    is_tls: bool,
    kind: &'u str,
    credentials: Option<&'u str>,
    hosts: Vec<&'u str>,
    path: &'u str,
}

/// Parses a URL. Does not connect.
pub(super) fn read(url: &str, ca_pem: Option<&[u8]>) -> Result<Deployment, RedisUrlError> {
    let fail = |reason: String| RedisUrlError::new(url, &reason);
    let parts = split(url).map_err(&fail)?;
    let build = || match parts.kind {
        "" => single(&parts, ca_pem)
            .map(|client| Deployment::Single(Target::Single(Box::new(client)))),
        "sentinel" => sentinel(&parts, ca_pem)
            .map(|sentinels| Deployment::Single(Target::Sentinel(Arc::new(sentinels)))),
        _ => cluster(&parts, ca_pem),
    };
    if parts.is_tls {
        // It fails if another provider is installed already, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    build().map_err(|error| fail(error.to_string()))
}

fn split(url: &str) -> Result<Parts<'_>, String> {
    let (scheme, rest) = url.split_once("://").ok_or("it has no ://")?;
    let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let is_tls = match base {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(format!("{scheme}:// is not known")),
    };
    if !["", "sentinel", "cluster"].contains(&kind) {
        return Err(format!("{scheme}:// is not known"));
    }
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts: Vec<_> = hosts.split(',').filter(|host| !host.is_empty()).collect();
    match (kind, hosts.len(), path) {
        (_, 0, _) => Err("it names no host".to_string()),
        ("", 2.., _) => {
            Err("it names several hosts but neither +sentinel nor +cluster".to_string())
        }
        ("sentinel", _, "") => {
            Err("the name of the service is missing after the hosts".to_string())
        }
        ("cluster", _, path) if !path.is_empty() => {
            Err("a cluster has only one database and takes no /PATH".to_string())
        }
        _ => Ok(Parts { is_tls, kind, credentials, hosts, path }),
    }
}

impl Parts<'_> {
    /// The connection settings of one of the hosts.
    fn info(&self, host: &str, db: &str) -> Result<ConnectionInfo, RedisError> {
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        let credentials = self.credentials.map(|text| format!("{text}@")).unwrap_or_default();
        format!("{scheme}://{credentials}{host}/{db}").into_connection_info()
    }

    fn infos(&self) -> Result<Vec<ConnectionInfo>, RedisError> {
        self.hosts.iter().map(|host| self.info(host, "")).collect()
    }
}

fn certificates(ca_pem: Option<&[u8]>) -> TlsCertificates {
    TlsCertificates { client_tls: None, root_cert: ca_pem.map(<[u8]>::to_vec) }
}

fn single(parts: &Parts<'_>, ca_pem: Option<&[u8]>) -> Result<Client, RedisError> {
    let info = parts.info(parts.hosts[0], parts.path)?;
    match parts.is_tls {
        true => Client::build_with_tls(info, certificates(ca_pem)),
        false => Client::open(info),
    }
}

fn sentinel(parts: &Parts<'_>, ca_pem: Option<&[u8]>) -> Result<Sentinels, RedisError> {
    let (service, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let node = parts.info(parts.hosts[0], db)?;
    let certificates = parts.is_tls.then(|| certificates(ca_pem));
    Sentinels::new(service, parts.infos()?, node, certificates)
}

fn cluster(parts: &Parts<'_>, ca_pem: Option<&[u8]>) -> Result<Deployment, RedisError> {
    let clients = NodeClients {
        is_tls: parts.is_tls,
        credentials: parts.credentials.map(str::to_string),
        ca_pem: ca_pem.map(<[u8]>::to_vec),
    };
    let seeds: Vec<_> = parts.hosts.iter().map(|host| with_port(host)).collect();
    // An invalid host is an error now, not at the first call.
    for seed in &seeds {
        clients.target(seed)?;
    }
    Ok(Deployment::Cluster(seeds, clients))
}

fn with_port(host: &str) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(before, port)| {
        (!before.contains(':') || before.ends_with(']')) && port.parse::<u16>().is_ok()
    });
    if has_port { host.to_string() } else { format!("{host}:6379") }
}

/// The URL for messages.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_string() };
    match rest.rsplit_once('@') {
        Some((_, hosts)) => format!("{scheme}://…@{hosts}"),
        None => url.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: &str) -> String {
        read(url, None).err().map_or_else(|| panic!("{url} was accepted"), |e| e.to_string())
    }

    #[test]
    fn every_kind_of_url_is_parsed() {
        for url in [
            "redis://localhost",
            "redis://127.0.0.1:6379/3",
            "valkey://user:pass@127.0.0.1:6379",
            "rediss://:secret@127.0.0.1:6379",
            "redis+sentinel://a:26379,b:26379,c/service/2",
            "rediss+sentinel://u:p@a:26379/service",
            "redis+cluster://a:7000,b:7001",
        ] {
            assert!(read(url, None).is_ok(), "{url}");
        }
    }

    #[test]
    fn an_invalid_url_says_what_is_wrong_and_what_would_work() {
        assert!(error("localhost:6379").contains("it has no ://"));
        assert!(error("http://localhost").contains("http:// is not known"));
        assert!(error("redis+ring://a").contains("redis+ring:// is not known"));
        assert!(error("redis://").contains("names no host"));
        assert!(error("redis://a,b").contains("neither +sentinel nor +cluster"));
        assert!(error("redis+sentinel://a:1").contains("name of the service is missing"));
        assert!(error("redis://a:port").contains("redis://HOST:PORT/DB"));
    }

    #[test]
    fn an_error_does_not_show_the_password() {
        assert!(!error("redis://me:secret@a,b").contains("secret"));
    }
}
