//! `tollgate gateway`: a reverse proxy with limits.
//!
//! A request's way: `worker` accepts the connection, `connection` finds out what it speaks, hyper
//! reads the request through `client_io`, `front` checks it and gives it an id, `policy` may deny
//! it, and `proxy` passes it on over a `link` from the `pool`.

mod access_log;
mod answer_body;
mod check;
mod client;
mod client_io;
mod connection;
mod drain;
mod error;
mod framing;
mod front;
mod headers;
mod health;
mod link;
mod options;
mod policy;
mod pool;
mod proxy;
mod request_body;
mod request_id;
mod shared;
mod stream;
mod supervisor;
mod ticks;
mod tls;
mod tunnel;
mod upstream;
mod watch;
mod worker;

use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::available_parallelism;

use http::HeaderValue;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use socket2::{Domain, Protocol, Socket, Type};
use tokio_rustls::TlsConnector;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;
use access_log::AccessLogger;
pub(crate) use options::Gateway;
use options::LogFormat;
use shared::{Shared, Upstream};
use tls::Certificate;
use upstream::{Address, EjectionRule, Fitness, UPSTREAMS_MAX};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

impl Gateway {
    pub(crate) fn run(self) -> Result<(), Failure> {
        start_log(self.log);
        raise_file_limit();
        let wrap = policy::layer(self.policy.as_deref())?;
        let certificate = self.certificate()?;
        let shared = self.shared(certificate.as_ref())?;
        let (listener, workers) = (self.listen()?, self.workers());
        let supervisor =
            supervisor::Supervisor::new(Arc::clone(&shared), certificate).map_err(Failure::io)?;
        for index in 0..workers {
            worker::start(index, &listener, Arc::clone(&shared), &wrap).map_err(Failure::io)?;
        }
        self.announce(&listener, workers).map_err(Failure::io)?;
        drop(listener);
        supervisor.run();
        if let Some(log) = &shared.access_log {
            log.flush();
        }
        Ok(())
    }

    fn shared(&self, certificate: Option<&Arc<Certificate>>) -> Result<Arc<Shared>, Failure> {
        Ok(Arc::new(Shared {
            upstreams: self.upstreams()?,
            ejection: EjectionRule {
                after: self.health.eject_after,
                lasting: self.health.eject_for,
            },
            health: self.health.clone(),
            timeouts: self.timeouts.clone(),
            bounds: self.bounds.clone(),
            trusted_proxies: self.trusted_proxies.clone(),
            request_id_header: self.request_id_header.clone(),
            access_log: AccessLogger::start(self.access_log).map_err(Failure::io)?,
            tls: certificate.map(Certificate::acceptor).transpose()?,
            drain: drain::Drain::default(),
            ticks: ticks::Ticks::begin(),
        }))
    }

    fn certificate(&self) -> Result<Option<Arc<Certificate>>, Failure> {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        files.map(|(cert, key)| Certificate::load(cert, key)).transpose()
    }

    fn upstreams(&self) -> Result<Vec<Upstream>, Failure> {
        if self.upstreams.len() > UPSTREAMS_MAX {
            return Err(Failure::input(format!("there may be {UPSTREAMS_MAX} upstreams")));
        }
        let is_tls = self.upstreams.iter().any(|address| address.is_tls);
        let connector = is_tls.then(|| tls::connector(self.upstream_ca.as_deref())).transpose()?;
        self.upstreams.iter().map(|address| upstream(address, connector.as_ref())).collect()
    }

    fn listen(&self) -> Result<TcpListener, Failure> {
        let bind = || -> io::Result<TcpListener> {
            let domain = Domain::for_address(self.listen);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&self.listen.into())?;
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        };
        bind().map_err(|error| Failure::io(format!("cannot listen on {}: {error}", self.listen)))
    }

    fn workers(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from);
        self.workers.map_or_else(cores, usize::from)
    }

    fn announce(&self, listener: &TcpListener, workers: usize) -> io::Result<()> {
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        let upstreams: Vec<String> = self.upstreams.iter().map(Address::to_string).collect();
        let (address, upstreams) = (listener.local_addr()?, upstreams.join(", "));
        let workers =
            if workers == 1 { "1 worker".to_string() } else { format!("{workers} workers") };
        writeln!(io::stderr(), "listening on {scheme}://{address} for {upstreams} ({workers})")
    }
}

fn upstream(address: &Address, connector: Option<&TlsConnector>) -> Result<Upstream, Failure> {
    let unusable = |error: &dyn std::fmt::Display| Failure::input(format!("{address}: {error}"));
    let name = || ServerName::try_from(address.host.clone()).map_err(|error| unusable(&error));
    let tls = match connector.filter(|_| address.is_tls) {
        Some(connector) => Some((connector.clone(), name()?)),
        None => None,
    };
    let host = HeaderValue::try_from(address.to_string()).map_err(|error| unusable(&error))?;
    let (name, fitness) = (address.to_string().into(), Fitness::default());
    Ok(Upstream { address: address.clone(), tls, host, name, fitness })
}

/// Each connection is a file, and the usual limit of 1024 is for programs with a few.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

fn start_log(format: LogFormat) {
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
    let log = log.with_target(false).with_max_level(LevelFilter::INFO);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
