//! `ratekeeper gateway`: a reverse proxy with limits.
//!
//! `connection` detects the protocol of a client and runs hyper, which reads requests through `client_io`.
//! `request` checks a request (`check`) and gives it an id, the library's layer enforces the policy, with
//! `stale` before it for what it denies, and `proxy` forwards it over an `upstream_connection` from the
//! `pool`.

mod access_log;
mod check;
mod client;
mod client_io;
mod connection;
mod error;
mod framing;
mod headers;
mod health;
mod options;
mod pool;
mod proxy;
mod request;
mod request_body;
mod request_id;
mod response_body;
mod stale;
mod state;
mod stream;
mod tunnel;
mod upstream;
mod upstream_connection;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use http::HeaderValue;
use ratekeeper::RatekeeperLayer;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tower_layer::{Layer, Stack};

use crate::admin::{Admin, AdminAccess};
use crate::console::Console;
use crate::failure::Failure;
use crate::listener::tls::{self, Tls};
use crate::listener::{
    AdminListener, ConnectionLimit, Drain, FileDescriptors, InFlightLimit, ListenerConfig,
    Supervised, Supervisor, Ticks, available_workers, bind, listen_failure, raise_file_limit,
    start_workers,
};
use crate::log;
use crate::reload::{PolicyFile, Program, ReloadSet};
use crate::tokens::{SecretKind, Tokens};
use access_log::AccessLogger;
use connection::GatewayHandler;
pub(crate) use options::Gateway;
use proxy::Proxy;
use stale::StaleLayer;
use state::{GatewayState, Overloads, Upstream, WorkerState};
pub(crate) use upstream::UpstreamAddress;
use upstream::{EjectionRule, UPSTREAMS_MAX, UpstreamHealth};

impl Gateway {
    pub(crate) fn run(self) -> Result<(), Failure> {
        log::start(self.log).map_err(Failure::input)?;
        raise_file_limit();
        self.check_public_addresses()?;
        let (policy, trusted) = (self.policy.as_deref(), &self.trusted_proxies);
        let policy = PolicyFile::open(policy, trusted, Program::Gateway)?;
        let tls = self.tls.load()?;
        let admin_tokens =
            Tokens::read_if_named(SecretKind::AdminToken, self.admin_tokens.as_deref())?;
        let read_tokens =
            Tokens::read_if_named(SecretKind::AdminReadToken, self.admin_read_tokens.as_deref())?;
        let gateway = self.gateway(policy)?;
        let names = gateway.upstreams.iter().map(|upstream| Arc::clone(&upstream.name));
        gateway.policy.limiter().policy().declare_upstreams(names);
        let listener = self.bind()?;
        let tokens = [&admin_tokens, &read_tokens];
        let admin = self.admin_listener(&gateway, tokens, tls.as_ref())?;
        let supervisor = Supervisor::new().map_err(Failure::io)?;
        self.start_workers(&listener, &gateway, tls.as_ref()).map_err(Failure::io)?;
        self.announce(&listener, admin.as_ref()).map_err(Failure::io)?;
        drop(listener);
        let mut reloads = ReloadSet::default();
        reloads.add(&gateway.policy);
        tls.iter().for_each(|tls| reloads.add(tls));
        tokens.into_iter().for_each(|tokens| reloads.add(tokens));
        let (policy, drain) = (Arc::clone(&gateway.policy), gateway.drain.clone());
        let drain_timeout = self.timeouts.drain;
        let supervised = Supervised { policy, reloads, admin, drain, drain_timeout };
        supervisor.run(supervised, async { health::start(&gateway) });
        if let Some(log) = &gateway.access_log {
            log.flush();
        }
        Ok(())
    }

    fn gateway(&self, policy: PolicyFile) -> Result<Arc<GatewayState>, Failure> {
        Ok(Arc::new(GatewayState {
            upstreams: self.upstreams()?,
            ejection: EjectionRule {
                after: self.health.eject_after,
                lasting: self.health.eject_for,
                is_off: false,
            },
            health: self.health.clone(),
            timeouts: self.timeouts.clone(),
            bounds: self.bounds.clone(),
            policy: Arc::new(policy),
            request_id_header: self.request_id_header.clone(),
            access_log: AccessLogger::start(self.access_log).map_err(Failure::io)?,
            drain: Drain::default(),
            ticks: Ticks::start(),
            connections: ConnectionLimit::new(self.bounds.max_connections as usize),
            in_flight: Arc::new(InFlightLimit::new(self.bounds.max_in_flight as usize)),
            descriptors: FileDescriptors::new(available_workers(self.workers)),
            overloads: Overloads::default(),
        }))
    }

    fn start_workers(
        &self,
        listener: &TcpListener,
        gateway: &Arc<GatewayState>,
        tls: Option<&Arc<Tls>>,
    ) -> io::Result<()> {
        let limiter = gateway.policy.limiter();
        // Outside of the limits, because it responds to what they deny.
        let stale = StaleLayer::new(gateway.ticks);
        let limiter = limiter.for_requests("gateway", gateway.request_id_header.as_str());
        let limits = RatekeeperLayer::new(limiter);
        let bodies = limits.request_json().with_max_bytes(self.bounds.max_request_json as usize);
        // What the limits refuse is no call of a dependency.
        let limits = Stack::new(limits.dependencies(), limits);
        let layers = Stack::new(Stack::new(limits, bodies), stale);
        let (connections, descriptors) = (&gateway.connections, &gateway.descriptors.connections);
        let config = ListenerConfig::new(Arc::clone(connections), descriptors, &gateway.drain);
        let config = config.with_tls(tls.cloned()).with_handshake_timeout(self.timeouts.header);
        let workers = available_workers(self.workers);
        start_workers("gateway", workers, listener, &config, |index| {
            let worker = Arc::new(WorkerState::new(Arc::clone(gateway), index));
            let service = layers.layer(Proxy::new(Arc::clone(&worker)));
            async { Ok(GatewayHandler::new(worker, service)) }
        })
    }

    fn upstreams(&self) -> Result<Vec<Upstream>, Failure> {
        if self.upstreams.len() > UPSTREAMS_MAX {
            return Err(Failure::input(format!(
                "too many upstreams; the maximum is {UPSTREAMS_MAX}"
            )));
        }
        let is_tls = self.upstreams.iter().any(|address| address.is_tls);
        let connector = is_tls.then(|| tls::connector(self.upstream_ca.as_deref())).transpose()?;
        let max = self.bounds.max_upstream_connections as usize;
        self.upstreams.iter().map(|address| upstream(address, connector.as_ref(), max)).collect()
    }

    fn bind(&self) -> Result<TcpListener, Failure> {
        let remedy = "choose another with --listen";
        bind(self.listen).map_err(|error| listen_failure(self.listen, &error, remedy))
    }

    fn admin_listener(
        &self,
        gateway: &Arc<GatewayState>,
        [tokens, read_tokens]: [&Arc<Tokens>; 2],
        tls: Option<&Arc<Tls>>,
    ) -> Result<Option<AdminListener>, Failure> {
        let Some(address) = self.admin.0 else { return Ok(None) };
        let listener = bind(address).map_err(|error| {
            let remedy = "choose another with --admin, or disable it with --admin off";
            listen_failure(address, &error, remedy)
        })?;
        let (of_serving, of_metrics) = (Arc::clone(gateway), Arc::clone(gateway));
        let of_upstreams = Arc::clone(gateway);
        let admin = Admin {
            policy: Arc::clone(&gateway.policy),
            access: AdminAccess {
                tokens: Arc::clone(tokens),
                read_tokens: Arc::clone(read_tokens),
                hosts: self.admin_hosts.clone(),
            },
            not_ready: Box::new(move || {
                of_serving.drain.is_draining().then_some("the server is shutting down")
            }),
            more_metrics: Box::new(move |page| of_metrics.write_metrics(page)),
            more_readings: Box::new(|_| {}),
            console: Console::default(),
            envoy: None,
            upstreams: Some(Box::new(move || of_upstreams.upstream_status())),
        };
        Ok(Some(AdminListener {
            listener,
            admin: Arc::new(admin),
            tls: tls.filter(|_| self.is_admin_tls()).cloned(),
            connections_max: gateway.descriptors.admin_max,
        }))
    }

    fn announce(&self, listener: &TcpListener, admin: Option<&AdminListener>) -> io::Result<()> {
        let scheme = |is_tls| if is_tls { "https" } else { "http" };
        let upstreams: Vec<String> =
            self.upstreams.iter().map(UpstreamAddress::to_string).collect();
        let (address, upstreams) = (listener.local_addr()?, upstreams.join(", "));
        let workers = match available_workers(self.workers) {
            1 => "1 worker".to_string(),
            workers => format!("{workers} workers"),
        };
        let policy = match &self.policy {
            Some(policy) => policy.display().to_string(),
            None => "none, so nothing is limited; start with a policy file".to_string(),
        };
        let admin: Option<SocketAddr> = admin.and_then(|admin| admin.listener.local_addr().ok());
        let admin = admin.map(|at| format!("admin: {}://{at}/\n", scheme(self.is_admin_tls())));
        let (scheme, admin) = (scheme(self.tls.is_wanted()), admin.unwrap_or_default());
        // The gateway serves even if this cannot be written.
        let _ = write!(
            io::stderr(),
            "listening on {scheme}://{address} for {upstreams} ({workers})\npolicy: {policy}\n{admin}"
        );
        Ok(())
    }
}

fn upstream(
    address: &UpstreamAddress,
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
    let (name, health) = (address.to_string().into(), UpstreamHealth::default());
    let in_use = Arc::new(InFlightLimit::new(connections_max));
    Ok(Upstream { address: address.clone(), tls, host, name, health, in_use })
}
