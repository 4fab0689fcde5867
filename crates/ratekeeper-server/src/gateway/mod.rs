//! `ratekeeper gateway`: a reverse proxy with limits.
//!
//! A request's way: `worker` accepts the connection, `connection` finds out what it speaks, hyper
//! reads the request through `client_io`, `front` checks it and gives it an id, the library's layer
//! keeps the policy, with `stale` before it for what it refuses, and `proxy` passes it on over a `link` from the `pool`.

mod access_log;
mod answer_body;
mod check;
mod client;
mod client_io;
mod connection;
mod error;
mod framing;
mod front;
mod headers;
mod health;
mod link;
mod options;
mod pool;
mod proxy;
mod request_body;
mod request_id;
mod shared;
mod stale;
mod stream;
mod supervisor;
mod ticks;
mod tunnel;
mod upstream;
mod watch;
mod worker;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::available_parallelism;

use http::HeaderValue;
use ratekeeper::RatekeeperLayer;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tower_layer::Stack;

use crate::accept::{Room, listen};
use crate::admin::Admin;
use crate::drain::{Drain, Stage};
use crate::failure::Failure;
use crate::log;
use crate::policy_file::PolicyFile;
use crate::process::{self, Descriptors};
use crate::tls::{self, Tls};
use crate::tokens::Tokens;
use access_log::AccessLogger;
pub(crate) use options::Gateway;
use shared::{Overloads, Shared, Upstream};
use stale::StaleLayer;
use upstream::{Address, EjectionRule, Fitness, UPSTREAMS_MAX};

impl Gateway {
    pub(crate) fn run(self) -> Result<(), Failure> {
        log::start(self.log);
        process::raise_file_limit();
        self.refuse_to_be_public()?;
        let policy = PolicyFile::open(self.policy.as_deref(), &self.trusted_proxies)?;
        let tls = self.tls.load()?;
        let shared = self.shared(tls.clone(), policy)?;
        let gate = shared.policy.gate();
        // What the limits refuse, `stale` may answer: so it is outside of them.
        let limits = RatekeeperLayer::new(gate.clone());
        let wrap = Stack::new(limits, StaleLayer::new(gate.clone(), shared.ticks));
        let (listener, workers) = (self.listen()?, self.workers());
        let side_door = self.side_door(&shared)?;
        let side_address = side_door.as_ref().and_then(|(listener, _)| listener.local_addr().ok());
        let supervisor =
            supervisor::Supervisor::new(Arc::clone(&shared), tls, side_door, self.is_admin_tls());
        let supervisor = supervisor.map_err(Failure::io)?;
        for index in 0..workers {
            worker::start(index, &listener, Arc::clone(&shared), &wrap).map_err(Failure::io)?;
        }
        self.announce(&listener, workers, side_address).map_err(Failure::io)?;
        drop(listener);
        supervisor.run();
        if let Some(log) = &shared.access_log {
            log.flush();
        }
        Ok(())
    }

    fn shared(&self, tls: Option<Arc<Tls>>, policy: PolicyFile) -> Result<Arc<Shared>, Failure> {
        Ok(Arc::new(Shared {
            upstreams: self.upstreams()?,
            ejection: EjectionRule {
                after: self.health.eject_after,
                lasting: self.health.eject_for,
            },
            health: self.health.clone(),
            timeouts: self.timeouts.clone(),
            bounds: self.bounds.clone(),
            policy: Arc::new(policy),
            request_id_header: self.request_id_header.clone(),
            access_log: AccessLogger::start(self.access_log).map_err(Failure::io)?,
            tls,
            drain: Drain::default(),
            ticks: ticks::Ticks::begin(),
            in_flight: Arc::new(Room::new(self.bounds.max_in_flight as usize)),
            descriptors: Descriptors::new(self.workers()),
            overloads: Overloads::default(),
        }))
    }

    fn upstreams(&self) -> Result<Vec<Upstream>, Failure> {
        if self.upstreams.len() > UPSTREAMS_MAX {
            return Err(Failure::input(format!("there may be {UPSTREAMS_MAX} upstreams")));
        }
        let is_tls = self.upstreams.iter().any(|address| address.is_tls);
        let connector = is_tls.then(|| tls::connector(self.upstream_ca.as_deref())).transpose()?;
        let max = self.bounds.max_upstream_connections as usize;
        self.upstreams.iter().map(|address| upstream(address, connector.as_ref(), max)).collect()
    }

    fn listen(&self) -> Result<TcpListener, Failure> {
        listen(self.listen)
            .map_err(|error| Failure::io(format!("cannot listen on {}: {error}", self.listen)))
    }

    fn side_door(
        &self,
        shared: &Arc<Shared>,
    ) -> Result<Option<(TcpListener, Arc<Admin>)>, Failure> {
        let Some(address) = self.admin.0 else { return Ok(None) };
        let listener = listen(address).map_err(|error| {
            let remedy = "choose another with --admin, or say --admin off";
            Failure::io(format!("cannot listen on {address} for the admin side: {error}; {remedy}"))
        })?;
        let (of_serving, of_metrics) = (Arc::clone(shared), Arc::clone(shared));
        let admin = Admin {
            policy: Arc::clone(&shared.policy),
            tokens: Tokens::read_if_named(self.admin_tokens.as_deref())?,
            is_serving: Box::new(move || of_serving.drain.stage() == Stage::Serve),
            more_metrics: Box::new(move |page| of_metrics.tell_metrics(page)),
            envoy: None,
        };
        Ok(Some((listener, Arc::new(admin))))
    }

    fn workers(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from);
        self.workers.map_or_else(cores, usize::from)
    }

    fn announce(
        &self,
        listener: &TcpListener,
        workers: usize,
        side_door: Option<SocketAddr>,
    ) -> io::Result<()> {
        let scheme = if self.tls.is_wanted() { "https" } else { "http" };
        let upstreams: Vec<String> = self.upstreams.iter().map(Address::to_string).collect();
        let (address, upstreams) = (listener.local_addr()?, upstreams.join(", "));
        let workers =
            if workers == 1 { "1 worker".to_string() } else { format!("{workers} workers") };
        let limits = match &self.policy {
            Some(policy) => policy.display().to_string(),
            None => "none; name a policy file to have some".to_string(),
        };
        let of_admin = if self.is_admin_tls() { "https" } else { "http" };
        let admin = side_door.map(|address| format!("admin: {of_admin}://{address}/\n"));
        let admin = admin.unwrap_or_default();
        // It serves also if nobody listens to what it says.
        let _ = write!(
            io::stderr(),
            "listening on {scheme}://{address} for {upstreams} ({workers})\nlimits: {limits}\n{admin}"
        );
        Ok(())
    }
}

fn upstream(
    address: &Address,
    connector: Option<&TlsConnector>,
    connections_max: usize,
) -> Result<Upstream, Failure> {
    let unusable = |error: &dyn std::fmt::Display| Failure::input(format!("{address}: {error}"));
    let name = || ServerName::try_from(address.host.clone()).map_err(|error| unusable(&error));
    let tls = match connector.filter(|_| address.is_tls) {
        Some(connector) => Some((connector.clone(), name()?)),
        None => None,
    };
    let host = HeaderValue::try_from(address.to_string()).map_err(|error| unusable(&error))?;
    let (name, fitness) = (address.to_string().into(), Fitness::default());
    let in_use = Arc::new(Room::new(connections_max));
    Ok(Upstream { address: address.clone(), tls, host, name, fitness, in_use })
}
