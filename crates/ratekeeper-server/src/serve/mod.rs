//! `ratekeeper serve`: answers "may this pass?" for everything that is not Rust.
//!
//! Each door has threads of its own, with a runtime and a clone of one listener each (`doors`); all
//! share one gate, so one policy and one store. The first thread looks after files, signals and the end.

mod announce;
mod caller_limit;
mod doors;
mod envoy;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod http;
mod meters;
mod options;
mod resp;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ipnet::IpNet;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::interval;

use crate::accept::listen;
use crate::admin::{self, Admin, Told};
use crate::drain::{Drain, Stage};
use crate::failure::Failure;
use crate::policy_file::PolicyFile;
use crate::process::Descriptors;
use crate::reload::{self, reload, reload_if_changed};
use crate::tls::Tls;
use crate::tokens::Tokens;
use crate::{log, process};
use envoy::{DoorSettings, Environment, EnvoyDoor};
use http::HttpDoor;
use meters::Meters;
use options::DoorName;
pub(crate) use options::Serve;

const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// HTTP, gRPC and Redis' protocol, which have workers.
const DOORS: usize = 3;
/// Proxies on this machine may say whom they ask for.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// What the doors share, and what the first thread looks after.
struct Server {
    policy: Arc<PolicyFile>,
    envoy: Option<Arc<EnvoyDoor>>,
    http: Arc<HttpDoor>,
    tls: Option<Arc<Tls>>,
    tokens: Arc<Tokens>,
    admin_tokens: Arc<Tokens>,
    resp_passwords: Arc<Tokens>,
    descriptors: Descriptors,
    drain: Drain,
    meters: Arc<Meters>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        log::start(self.log);
        crate::trace::start(self.otlp.as_deref()).map_err(Failure::input)?;
        process::raise_file_limit();
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(Failure::input)?;
        self.or(&environment).serve(&environment)
    }

    /// Opens the doors, and stays until it is asked to end.
    fn serve(self, environment: &Environment) -> Result<(), Failure> {
        self.refuse_to_be_public(self.grpc(environment))?;
        let server = self.server(environment)?;
        let doors = self.open_doors(&server, self.grpc(environment))?;
        let admin = self.admin().map(|address| bind(DoorName::Admin, address)).transpose()?;
        self.announce(&server, &doors, admin.as_ref());
        let ended = self.supervise(&server, admin).map_err(Failure::io);
        #[cfg(feature = "otel")]
        crate::trace::end();
        ended
    }

    fn server(&self, environment: &Environment) -> Result<Server, Failure> {
        let policy = Arc::new(self.open_policy(environment)?);
        policy.gate().telemetry().set_near_limit(environment.near_limit);
        let meters = Meters::new(Arc::clone(policy.top()));
        let envoy = self.envoy_door(environment, &policy, &meters)?;
        let tokens = Tokens::read_if_named(self.tokens.as_deref())?;
        let (gate, of_http) = (policy.gate().clone(), Arc::clone(&meters));
        let http = HttpDoor::new(gate, Arc::clone(&tokens), envoy.clone(), of_http);
        Ok(Server {
            policy,
            envoy,
            http,
            tls: self.tls.load()?,
            tokens,
            admin_tokens: Tokens::read_if_named(self.admin_tokens.as_deref())?,
            resp_passwords: Tokens::read_if_named(self.resp_passwords.as_deref())?,
            descriptors: Descriptors::new(DOORS * self.workers()),
            drain: Drain::default(),
            meters,
        })
    }

    /// Where counts are kept is in the policy, or else where users of envoyproxy/ratelimit say it.
    fn open_policy(&self, environment: &Environment) -> Result<PolicyFile, Failure> {
        match &environment.store {
            Some(url) if self.policy.is_none() => PolicyFile::over_store(url, &self.trusted()),
            _ => PolicyFile::open(self.policy.as_deref(), &self.trusted()),
        }
    }

    /// The door for Envoy, if there are limits for it.
    fn envoy_door(
        &self,
        environment: &Environment,
        policy: &PolicyFile,
        meters: &Arc<Meters>,
    ) -> Result<Option<Arc<EnvoyDoor>>, Failure> {
        let Some(folder) = self.envoy_config.as_ref().or(environment.config.as_ref()) else {
            return match self.grpc.and_then(|grpc| grpc.0) {
                None => Ok(None),
                Some(_) => Err(Failure::input(
                    "--grpc is for Envoy and needs limits; name their folder with --envoy-config",
                )),
            };
        };
        let settings = DoorSettings {
            headers: self.envoy_headers.answers(),
            is_shadow: environment.is_shadow,
            near_limit: environment.near_limit,
        };
        let door = EnvoyDoor::open(folder, policy.gate().clone(), settings);
        door.map(|door| Some(Arc::new(door.watched_by(meters)))).map_err(Failure::input)
    }

    /// Where Envoy may ask, if there is something to answer.
    fn grpc(&self, environment: &Environment) -> Option<SocketAddr> {
        self.envoy_config.as_ref().or(environment.config.as_ref())?;
        self.grpc.map_or(Some(([127, 0, 0, 1], 8081).into()), |grpc| grpc.0)
    }

    fn trusted(&self) -> Vec<IpNet> {
        let loopback = LOOPBACK.iter().filter_map(|network| network.parse().ok());
        loopback.chain(self.trusted_proxies.iter().copied()).collect()
    }

    /// What the first thread does while the doors are open.
    fn supervise(&self, server: &Server, admin: Option<TcpListener>) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut end = Ends::new()?;
            server.policy.gate().engine().start();
            if let Some(listener) = admin {
                let tls = server.tls.clone().filter(|_| self.is_tls(DoorName::Admin));
                let max = server.descriptors.admin_max;
                tokio::spawn(admin::serve(listener, Arc::new(server.admin()), tls, max));
            }
            server.until_asked(&mut end).await?;
            server.drain.end(self.drain, end.come()).await;
            server.policy.leave().await;
            Ok(())
        })
    }
}

impl Server {
    fn admin(&self) -> Admin {
        let (drain, envoy) = (self.drain.clone(), self.envoy.clone());
        let (meters, of_envoy) = (Arc::clone(&self.meters), self.envoy.clone());
        Admin {
            policy: Arc::clone(&self.policy),
            tokens: Arc::clone(&self.admin_tokens),
            is_serving: Box::new(move || drain.stage() == Stage::Serve),
            more_metrics: Box::new(move |page| {
                meters.tell_metrics(page);
                envoy.iter().for_each(|door| door.tell_metrics(page));
            }),
            envoy: of_envoy.map(|door| -> Told { Box::new(move || door.tell()) }),
        }
    }

    /// Files and what callers hold are looked after until somebody asks for an end.
    async fn until_asked(&self, end: &mut Ends) -> io::Result<()> {
        let hang_up = signal(SignalKind::hangup())?;
        tokio::select! {
            () = end.come() => {}
            () = self.keep_loaded(hang_up) => {}
            () = self.keep_swept() => {}
        }
        Ok(())
    }

    async fn keep_swept(&self) {
        let mut sweeps = interval(SWEEP_EVERY);
        loop {
            sweeps.tick().await;
            self.http.sweep();
        }
    }

    async fn keep_loaded(&self, mut hang_up: Signal) {
        let mut looks = reload::looks();
        loop {
            tokio::select! {
                _ = hang_up.recv() => self.reload().await,
                _ = looks.tick() => self.look().await,
            }
        }
    }

    /// All at once, so that none waits for another that hangs. What comes of it is in the log.
    async fn reload(&self) {
        let envoy = join_all(self.envoy.iter().map(reload));
        let tls = join_all(self.tls.iter().map(reload));
        tokio::join!(reload(&self.policy), envoy, tls, join_all(self.secrets().map(reload)));
    }

    async fn look(&self) {
        let envoy = join_all(self.envoy.iter().map(reload_if_changed));
        let tls = join_all(self.tls.iter().map(reload_if_changed));
        let secrets = join_all(self.secrets().map(reload_if_changed));
        tokio::join!(reload_if_changed(&self.policy), envoy, tls, secrets);
    }

    fn secrets(&self) -> [&Arc<Tokens>; 3] {
        [&self.tokens, &self.admin_tokens, &self.resp_passwords]
    }
}

/// The signals that ask for an end.
struct Ends {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    async fn come(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn bind(door: DoorName, address: SocketAddr) -> Result<TcpListener, Failure> {
    listen(address).map_err(|error| {
        let option = door.name();
        let remedy = format!("choose another with --{option}, or say --{option} off");
        Failure::io(format!("cannot listen on {address}: {error}; {remedy}"))
    })
}
