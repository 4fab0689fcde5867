//! `ratekeeper serve`: the decision server, over HTTP, gRPC and the Redis protocol.
//!
//! Each listener has worker threads of its own (`listeners`); all share one limiter, so one policy and one
//! store. The main thread supervises them.

mod announce;
mod caller_limit;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod grpc;
mod hold_time;
mod http;
mod listeners;
mod options;
mod request_metrics;
mod resp;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::interval;

use crate::admin::{Admin, StatusReport};
use crate::failure::Failure;
use crate::listener::tls::Tls;
use crate::listener::{
    AdminListener, Drain, FileDescriptors, Supervised, Supervisor, available_workers,
    raise_file_limit,
};
use crate::log;
use crate::reload::{PolicyFile, Program, ReloadSet};
use crate::tokens::{SecretKind, Tokens};
pub(crate) use grpc::rls::read_config;
use grpc::rls::{Environment, RateLimitService, RateLimitSettings};
use http::HttpApi;
use listeners::bind;
use options::ListenerName;
pub(crate) use options::Serve;
use request_metrics::RequestMetrics;

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The listeners that have workers: HTTP, gRPC and the Redis protocol.
const LISTENERS: usize = 3;
/// Proxies on this machine are trusted.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// What the listeners share.
struct Server {
    policy: Arc<PolicyFile>,
    envoy: Option<Arc<RateLimitService>>,
    http: Arc<HttpApi>,
    tls: Option<Arc<Tls>>,
    tokens: Arc<Tokens>,
    admin_tokens: Arc<Tokens>,
    resp_passwords: Arc<Tokens>,
    descriptors: FileDescriptors,
    drain: Drain,
    metrics: Arc<RequestMetrics>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        log::start(self.log).map_err(Failure::input)?;
        crate::trace::start(self.otlp.as_deref()).map_err(Failure::input)?;
        raise_file_limit();
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(Failure::input)?;
        self.or(&environment).serve(&environment)
    }

    /// Opens the listeners, and serves until a signal ends the process.
    fn serve(self, environment: &Environment) -> Result<(), Failure> {
        self.check_public_addresses(self.grpc(environment))?;
        let server = self.server(environment)?;
        let supervisor = Supervisor::new().map_err(Failure::io)?;
        let listening = self.open_listeners(&server, self.grpc(environment))?;
        let admin = self.admin_listener(&server)?;
        self.announce(&server, &listening, admin.as_ref());
        let supervised = Supervised {
            policy: Arc::clone(&server.policy),
            reloads: server.reloads(),
            admin,
            drain: server.drain.clone(),
            drain_timeout: self.drain,
        };
        supervisor.run(supervised, server.sweep());
        #[cfg(feature = "otel")]
        crate::trace::shut_down();
        Ok(())
    }

    fn server(&self, environment: &Environment) -> Result<Server, Failure> {
        let policy = Arc::new(self.open_policy(environment)?);
        policy.limiter().telemetry().set_near_limit(environment.near_limit);
        let metrics = RequestMetrics::new(Arc::clone(policy.top()));
        let envoy = self.rate_limit_service(environment, &policy, &metrics)?;
        let tokens = Tokens::read_if_named(SecretKind::Token, self.tokens.as_deref())?;
        let (limiter, of_http) = (policy.limiter().clone(), Arc::clone(&metrics));
        let http = HttpApi::new(limiter, Arc::clone(&tokens), envoy.clone(), of_http);
        Ok(Server {
            policy,
            envoy,
            http,
            tls: self.tls.load()?,
            tokens,
            admin_tokens: Tokens::read_if_named(
                SecretKind::AdminToken,
                self.admin_tokens.as_deref(),
            )?,
            resp_passwords: Tokens::read_if_named(
                SecretKind::Password,
                self.resp_passwords.as_deref(),
            )?,
            descriptors: FileDescriptors::new(LISTENERS * available_workers(self.workers)),
            drain: Drain::default(),
            metrics,
        })
    }

    /// The store is the policy's or, without a policy, that of envoyproxy/ratelimit's environment.
    fn open_policy(&self, environment: &Environment) -> Result<PolicyFile, Failure> {
        match &environment.store {
            Some(url) if self.policy.is_none() => PolicyFile::over_store(url, &self.trusted()),
            _ => PolicyFile::open(self.policy.as_deref(), &self.trusted(), Program::Serve),
        }
    }

    /// Returns the rate limit service, if there are limits for Envoy.
    fn rate_limit_service(
        &self,
        environment: &Environment,
        policy: &PolicyFile,
        metrics: &Arc<RequestMetrics>,
    ) -> Result<Option<Arc<RateLimitService>>, Failure> {
        let Some(folder) = self.envoy_config.as_ref().or(environment.config.as_ref()) else {
            return match self.grpc.and_then(|grpc| grpc.0) {
                None => Ok(None),
                Some(_) => Err(Failure::input(
                    "--grpc serves Envoy and needs limits; name their folder with --envoy-config",
                )),
            };
        };
        let settings = RateLimitSettings {
            headers: self.envoy_headers.settings(),
            is_shadow: environment.is_shadow,
            near_limit: environment.near_limit,
        };
        let service = RateLimitService::open(folder, policy.limiter().clone(), settings);
        let service = service.map_err(Failure::input)?;
        Ok(Some(Arc::new(service.with_metrics(metrics))))
    }

    /// Returns the address of the gRPC listener, if there are limits for Envoy.
    fn grpc(&self, environment: &Environment) -> Option<SocketAddr> {
        self.envoy_config.as_ref().or(environment.config.as_ref())?;
        self.grpc.map_or(Some(([127, 0, 0, 1], 8081).into()), |grpc| grpc.0)
    }

    fn trusted(&self) -> Vec<IpNet> {
        let loopback = LOOPBACK.iter().filter_map(|network| network.parse().ok());
        loopback.chain(self.trusted_proxies.iter().copied()).collect()
    }

    fn admin_listener(&self, server: &Server) -> Result<Option<AdminListener>, Failure> {
        let Some(address) = self.admin() else { return Ok(None) };
        Ok(Some(AdminListener {
            listener: bind(ListenerName::Admin, address)?,
            admin: Arc::new(server.admin()),
            tls: server.tls.clone().filter(|_| self.is_tls(ListenerName::Admin)),
            connections_max: server.descriptors.admin_max,
        }))
    }
}

impl Server {
    fn admin(&self) -> Admin {
        let (drain, envoy) = (self.drain.clone(), self.envoy.clone());
        let (metrics, of_envoy) = (Arc::clone(&self.metrics), self.envoy.clone());
        Admin {
            policy: Arc::clone(&self.policy),
            tokens: Arc::clone(&self.admin_tokens),
            is_serving: Box::new(move || !drain.is_draining()),
            more_metrics: Box::new(move |page| {
                metrics.collect(page);
                envoy.iter().for_each(|service| service.write_metrics(page));
            }),
            envoy: of_envoy.map(|service| -> StatusReport { Box::new(move || service.status()) }),
        }
    }

    fn reloads(&self) -> ReloadSet {
        let mut reloads = ReloadSet::default();
        reloads.add(&self.policy);
        self.envoy.iter().for_each(|envoy| reloads.add(envoy));
        self.tls.iter().for_each(|tls| reloads.add(tls));
        let secrets = [&self.tokens, &self.admin_tokens, &self.resp_passwords];
        secrets.into_iter().for_each(|tokens| reloads.add(tokens));
        reloads
    }

    /// Releases what clients have held for too long.
    async fn sweep(&self) {
        let mut sweeps = interval(SWEEP_INTERVAL);
        loop {
            sweeps.tick().await;
            self.policy.limiter().engine().sweep();
        }
    }
}
