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
mod recorded;
mod request_metrics;
mod resp;

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::interval;

use crate::admin::{Admin, AdminAccess, StatusReport};
use crate::choices::LocalAddress;
use crate::console::Console;
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
use grpc::rls::{ConfigFolder, Environment, IgnoredVariable, RateLimitService, RateLimitSettings};
use http::HttpApi;
pub(crate) use http::{DescribedRequest, RequestError};
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
    /// Of the gRPC listener, in place of `tls`.
    grpc_tls: Option<Arc<Tls>>,
    tokens: Arc<Tokens>,
    admin_tokens: Arc<Tokens>,
    admin_read_tokens: Arc<Tokens>,
    admin_hosts: Vec<String>,
    resp_passwords: Arc<Tokens>,
    descriptors: FileDescriptors,
    drain: Drain,
    metrics: Arc<RequestMetrics>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(Failure::input)?;
        log::start(self.log.or(environment.log_level, environment.log_format))
            .map_err(Failure::input)?;
        crate::trace::start(self.otlp.as_deref()).map_err(Failure::input)?;
        raise_file_limit();
        for IgnoredVariable { name, about } in &environment.warnings {
            tracing::warn!("the environment variable {name} has no effect: {about}");
        }
        self.or(&environment).serve(&environment)
    }

    /// Opens the listeners, and serves until a signal ends the process.
    fn serve(self, environment: &Environment) -> Result<(), Failure> {
        let grpc = self.grpc(environment);
        self.check_public_addresses(&grpc)?;
        let server = self.server(environment)?;
        let supervisor = Supervisor::new().map_err(Failure::io)?;
        let listening = self.open_listeners(&server, &grpc)?;
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
        let (tokens_of_http, metrics_of_http) = (Arc::clone(&tokens), Arc::clone(&metrics));
        let http = HttpApi::new(policy.limiter(), tokens_of_http, envoy.clone(), metrics_of_http);
        Ok(Server {
            policy,
            envoy,
            http,
            tls: self.tls.load()?,
            grpc_tls: self.grpc_tls.clone().map(Tls::load).transpose()?,
            tokens,
            admin_tokens: Tokens::read_if_named(
                SecretKind::AdminToken,
                self.admin_tokens.as_deref(),
            )?,
            admin_read_tokens: Tokens::read_if_named(
                SecretKind::AdminReadToken,
                self.admin_read_tokens.as_deref(),
            )?,
            admin_hosts: self.admin_hosts.clone(),
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
        let Environment { store, key_prefix, .. } = environment;
        match (store, &self.policy) {
            (Some(url), None) => {
                PolicyFile::over_store(url, key_prefix.as_deref(), &self.trusted())
            }
            (store, policy) => {
                if store.is_some() {
                    tracing::warn!("REDIS_URL has no effect: the store is that of the policy");
                }
                PolicyFile::open(policy.as_deref(), &self.trusted(), Program::Serve)
            }
        }
    }

    /// Returns the rate limit service, if Envoy is to be served.
    fn rate_limit_service(
        &self,
        environment: &Environment,
        policy: &PolicyFile,
        metrics: &Arc<RequestMetrics>,
    ) -> Result<Option<Arc<RateLimitService>>, Failure> {
        let limiter = policy.limiter().clone();
        let settings = RateLimitSettings {
            headers: self.envoy_headers.settings(),
            limit_headers: environment.limit_headers.clone(),
            has_dynamic_metadata: self.envoy_metadata || environment.has_dynamic_metadata,
            modes: environment.modes,
            near_limit: environment.near_limit,
        };
        let service = match self.config_folder(environment) {
            Some(folder) => {
                RateLimitService::open(folder, limiter, settings).map_err(Failure::input)?
            }
            None if self.grpc(environment) == LocalAddress::Off => return Ok(None),
            None => RateLimitService::without_files(limiter, settings),
        };
        Ok(Some(Arc::new(service.with_metrics(metrics))))
    }

    /// Returns the folder of the limits for Envoy.
    fn config_folder(&self, environment: &Environment) -> Option<ConfigFolder> {
        let of_environment = environment.config.clone();
        match &self.envoy_config {
            None => of_environment,
            Some(path) => {
                let folder = of_environment.unwrap_or_else(|| ConfigFolder::new(path));
                Some(ConfigFolder { path: path.clone(), ..folder })
            }
        }
    }

    /// Returns the address of the gRPC listener. It is off unless there are limits for Envoy, or an address.
    fn grpc(&self, environment: &Environment) -> LocalAddress {
        match (&self.grpc, self.config_folder(environment)) {
            (Some(address), _) => address.clone(),
            (None, Some(_)) => LocalAddress::Tcp(([127, 0, 0, 1], 8081).into()),
            (None, None) => LocalAddress::Off,
        }
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
        let (of_ready, of_status) = (self.envoy.clone(), self.envoy.clone());
        let (metrics, of_history) = (Arc::clone(&self.metrics), Arc::clone(&self.metrics));
        Admin {
            policy: Arc::clone(&self.policy),
            access: AdminAccess {
                tokens: Arc::clone(&self.admin_tokens),
                read_tokens: Arc::clone(&self.admin_read_tokens),
                hosts: self.admin_hosts.clone(),
            },
            not_ready: Box::new(move || match &of_ready {
                _ if drain.is_draining() => Some("the server is shutting down"),
                Some(envoy) if !envoy.is_ready() => {
                    Some("there is no limit in the files for Envoy")
                }
                _ => None,
            }),
            more_metrics: Box::new(move |page| {
                metrics.collect(page);
                envoy.iter().for_each(|service| service.write_metrics(page));
            }),
            more_readings: Box::new(move |readings| of_history.read(readings)),
            console: Console::default(),
            upstreams: None,
            envoy: of_status.map(|service| -> StatusReport { Box::new(move || service.status()) }),
        }
    }

    fn reloads(&self) -> ReloadSet {
        let mut reloads = ReloadSet::default();
        reloads.add(&self.policy);
        self.envoy.iter().for_each(|envoy| reloads.add(envoy));
        self.tls.iter().chain(&self.grpc_tls).for_each(|tls| reloads.add(tls));
        let secrets = [&self.tokens, &self.admin_tokens, &self.admin_read_tokens];
        let secrets = secrets.into_iter().chain([&self.resp_passwords]);
        secrets.for_each(|tokens| reloads.add(tokens));
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
