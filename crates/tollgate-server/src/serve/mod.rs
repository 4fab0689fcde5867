//! `tollgate serve`: answers "may this pass?" for everything that is not Rust.
//!
//! Each door has threads of its own, with a runtime and a clone of one listener each; all share one
//! gate, so one policy and one store.

mod ending;
mod envoy;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod http;
mod options;
mod resp;
mod tokens;

use std::future::Future;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, available_parallelism};
use std::time::Duration;

use ipnet::IpNet;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

use crate::admin::{self, Admin};
use crate::failure::Failure;
use crate::policy_file::PolicyFile;
use crate::{log, process};
use ending::Ending;
use envoy::{DoorSettings, Environment, EnvoyDoor};
use http::{HttpDoor, Limits};
pub(crate) use options::Serve;
use resp::{Bounds, Passwords, RespDoor};
use tokens::Tokens;

const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Proxies on this machine may say whom they ask for.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        log::start(self.log);
        process::raise_file_limit();
        let tokens = self.tokens.as_deref().map(Tokens::read).transpose()?.unwrap_or_default();
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(Failure::input)?;
        self.or(&environment).open(tokens, &environment)
    }

    /// Opens the doors, and stays until it is asked to end.
    fn open(self, tokens: Tokens, environment: &Environment) -> Result<(), Failure> {
        self.refuse_to_be_public(&tokens, environment)?;
        let policy = Arc::new(self.open_policy(environment)?);
        let ending = Ending::default();
        let envoy = self.envoy_door(environment, &policy)?;
        let http = HttpDoor::new(policy.gate().clone(), tokens, envoy.clone());
        let http_address = self.open_http(&http, &ending)?;
        let resp_address = self.open_resp(&policy, &ending)?;
        let grpc_address = self.open_grpc(envoy.as_ref(), environment, &ending)?;
        let limits = envoy.as_ref().map_or(0, |door| door.config().limits().len());
        let admin = self.admin().map(|address| bind("--admin", address)).transpose()?;
        let grpc = grpc_address.map(|address| (address, limits));
        self.announce(http_address, grpc, resp_address, admin.as_ref());
        self.supervise(&policy, envoy.as_ref(), admin, &ending).map_err(Failure::io)
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
            near_limit: environment.near_limit.unwrap_or_default(),
        };
        let door = EnvoyDoor::open(folder, policy.gate().clone(), settings);
        door.map(|door| Some(Arc::new(door))).map_err(Failure::input)
    }

    /// Where Envoy may ask, if there is something to answer.
    fn grpc(&self, environment: &Environment) -> Option<SocketAddr> {
        self.envoy_config.as_ref().or(environment.config.as_ref())?;
        self.grpc.map_or(Some(([127, 0, 0, 1], 8081).into()), |grpc| grpc.0)
    }

    /// Without TLS and a token, only this machine may ask, unless somebody has said so in words.
    fn refuse_to_be_public(
        &self,
        tokens: &Tokens,
        environment: &Environment,
    ) -> Result<(), Failure> {
        let Some((option, address)) = self.public(self.grpc(environment)).next() else {
            return Ok(());
        };
        if self.insecure_public {
            return Ok(());
        }
        let token = if tokens.is_empty() { " and without a token" } else { "" };
        Err(Failure::input(format!(
            "{option} {address} can be reached by others, in plain text{token}; listen on loopback \
             behind something that speaks TLS, or say --insecure-public if the network is yours"
        )))
    }

    fn trusted(&self) -> Vec<IpNet> {
        let loopback = LOOPBACK.iter().filter_map(|network| network.parse().ok());
        loopback.chain(self.trusted_proxies.iter().copied()).collect()
    }

    fn open_http(
        &self,
        door: &Arc<HttpDoor>,
        ending: &Ending,
    ) -> Result<Option<SocketAddr>, Failure> {
        let Some(address) = self.http() else { return Ok(None) };
        let listener = bind("--http", address)?;
        let limits =
            Limits { connections_max: self.max_connections, headers_within: HEADERS_WITHIN };
        for index in 0..self.workers() {
            let listener = listener.try_clone().map_err(Failure::io)?;
            let (door, ending) = (Arc::clone(door), ending.clone());
            let serve = async move { http::serve(listener, door, limits, ending).await };
            work(format!("http-{index}"), serve).map_err(Failure::io)?;
        }
        listener.local_addr().map(Some).map_err(Failure::io)
    }

    fn open_grpc(
        &self,
        door: Option<&Arc<EnvoyDoor>>,
        environment: &Environment,
        ending: &Ending,
    ) -> Result<Option<SocketAddr>, Failure> {
        let Some((door, address)) = door.zip(self.grpc(environment)) else { return Ok(None) };
        let listener = bind("--grpc", address)?;
        for index in 0..self.workers() {
            let listener = listener.try_clone().map_err(Failure::io)?;
            let serve = envoy::serve(listener, Arc::clone(door), ending.clone());
            work(format!("grpc-{index}"), serve).map_err(Failure::io)?;
        }
        listener.local_addr().map(Some).map_err(Failure::io)
    }

    fn open_resp(
        &self,
        policy: &PolicyFile,
        ending: &Ending,
    ) -> Result<Option<SocketAddr>, Failure> {
        let Some(address) = self.resp.0 else { return Ok(None) };
        let listener = bind("--resp", address)?;
        let bounds = Bounds {
            connections_max: self.max_connections,
            idle: self.resp_idle_timeout,
            stuck: self.resp_write_timeout,
        };
        let passwords = self.resp_passwords.as_deref().map(Tokens::read).transpose()?;
        let passwords = passwords.map(Passwords::new).unwrap_or_default();
        let door = Arc::new(RespDoor::new(policy.gate().clone(), passwords, bounds));
        for index in 0..self.workers() {
            let listener = listener.try_clone().map_err(Failure::io)?;
            let serve = resp::serve(listener, Arc::clone(&door), ending.clone());
            work(format!("resp-{index}"), serve).map_err(Failure::io)?;
        }
        listener.local_addr().map(Some).map_err(Failure::io)
    }

    fn workers(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from);
        self.workers.map_or_else(cores, usize::from)
    }

    fn announce(
        &self,
        http: Option<SocketAddr>,
        grpc: Option<(SocketAddr, usize)>,
        resp: Option<SocketAddr>,
        admin: Option<&TcpListener>,
    ) {
        let mut told = String::new();
        if let Some(address) = http {
            told += &format!("http: http://{address}/\n");
        }
        if let Some((address, limits)) = grpc {
            told += &format!("envoy: grpc://{address} ({limits} limits)\n");
        }
        if let Some(address) = resp {
            told += &format!(
                "redis: redis://{address} (redis-cli -p {} CL.THROTTLE user:42 15 30 60)\n",
                address.port()
            );
        }
        if let Some(address) = admin.and_then(|listener| listener.local_addr().ok()) {
            told += &format!("admin: http://{address}/\n");
        }
        match &self.policy {
            Some(policy) => told += &format!("policy: {}\n", policy.display()),
            None => told += "policy: none; callers bring their own rates\n",
        }
        if let Some(address) = http {
            let ask = r#"{"key":"user:42","rate":"100/minute"}"#;
            told += &format!("try: curl -i http://{address}/v1/check -d '{ask}'\n");
        }
        // It serves also if nobody listens to what it says.
        let _ = io::stderr().write_all(told.as_bytes());
    }

    /// What the first thread does while the doors are open: the admin side, signals, files, and the end.
    fn supervise(
        &self,
        policy: &Arc<PolicyFile>,
        envoy: Option<&Arc<EnvoyDoor>>,
        admin: Option<TcpListener>,
        ending: &Ending,
    ) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut end = Ends::new()?;
            policy.gate().start();
            if let Some(listener) = admin {
                let (of_serving, of_metrics) = (ending.clone(), envoy.cloned());
                let admin = Admin {
                    policy: Arc::clone(policy),
                    is_serving: Box::new(move || !of_serving.has_begun()),
                    more_metrics: Box::new(move |page| {
                        of_metrics.iter().for_each(|door| door.tell_metrics(page));
                    }),
                };
                tokio::spawn(admin::serve(listener, Arc::new(admin)));
            }
            until_asked(&mut end, policy, envoy.map(Arc::as_ref)).await?;
            tracing::info!(connections = ending.live(), patience = ?self.drain, "ending");
            ending.begin();
            tokio::select! {
                () = ending.emptied() => {}
                () = tokio::time::sleep(self.drain) => tracing::warn!("ended with connections open"),
                () = end.come() => {}
            }
            Ok(())
        })
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

async fn until_asked(
    end: &mut Ends,
    policy: &PolicyFile,
    envoy: Option<&EnvoyDoor>,
) -> io::Result<()> {
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut look = interval(LOOK_AT_FILES_EVERY);
    loop {
        tokio::select! {
            () = end.come() => return Ok(()),
            _ = hang_up.recv() => {
                let _ = policy.reload();
                envoy.iter().for_each(|door| door.reload());
            }
            _ = look.tick() => {
                policy.reload_if_changed();
                envoy.iter().for_each(|door| door.reload_if_changed());
            }
        }
    }
}

fn bind(option: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    admin::listen(address).map_err(|error| {
        let remedy = format!("choose another with {option}, or say {option} off");
        Failure::io(format!("cannot listen on {address}: {error}; {remedy}"))
    })
}

/// Runs a door's worker on a thread of its own. Its connections go on when it has returned.
fn work(
    name: String,
    serve: impl Future<Output = io::Result<()>> + Send + 'static,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let run = async move {
        if let Err(error) = serve.await {
            tracing::error!(%error, "a worker cannot listen");
        }
        std::future::pending::<()>().await;
    };
    thread::Builder::new().name(name).spawn(move || runtime.block_on(run)).map(drop)
}
