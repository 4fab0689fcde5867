//! `tollgate serve`: decisions for others.

mod envoy;
mod options;

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollgate::policy::NoSources;
use tollgate::{Gate, Policy};
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;
use crate::policy_file::PolicyFile;
use envoy::{DoorSettings, Environment, EnvoyDoor, EnvoyFiles};
pub(crate) use options::Serve;

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
        log.with_target(false).with_max_level(LevelFilter::INFO).init();
        let mut runtime = Builder::new_multi_thread();
        if let Some(workers) = self.workers {
            runtime.worker_threads(workers.get());
        }
        let runtime = runtime.enable_all().build().map_err(Failure::io)?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> Result<(), Failure> {
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(Failure::input)?;
        let (address, folder) = self.places(&environment)?;
        let gate = self.gate(&environment)?;
        gate.start();
        let (files, config) = EnvoyFiles::open(&folder).map_err(Failure::input)?;
        let settings = DoorSettings {
            headers: self.envoy_headers.answers(),
            is_shadow: environment.is_shadow,
        };
        let door = Arc::new(EnvoyDoor::new(gate, config, settings));
        let unable = |error| Failure::io(format!("cannot listen on {address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(unable)?;
        let mut signals = Signals::new().map_err(Failure::io)?;
        tokio::spawn(envoy::watch(Arc::new(files), Arc::clone(&door)));
        let address = listener.local_addr().map_err(Failure::io)?;
        let limits = door.config().limits().len();
        // It serves also if nobody listens to what it says.
        let _ = writeln!(
            io::stderr(),
            "listening on grpc://{address} for Envoy ({limits} limits in {})",
            folder.display()
        );
        let (end, mut ended) = watch::channel(false);
        let until_end = async move {
            let _ = ended.wait_for(|has_ended| *has_ended).await;
        };
        let served = envoy::serve(Arc::clone(&door), listener, until_end);
        self.until_drained(served, &mut signals, &end).await?;
        tracing::info!(answered = ?door.stats(), "ended");
        Ok(())
    }

    /// Where to listen, and where the files are: as told, or as the environment has it.
    fn places(&self, environment: &Environment) -> Result<(SocketAddr, PathBuf), Failure> {
        let folder = self.envoy_config.clone().or_else(|| environment.config.clone());
        let default = folder.as_ref().map(|_| SocketAddr::from(([127, 0, 0, 1], 8081)));
        match (self.grpc.or(environment.grpc).or(default), folder) {
            (Some(address), Some(folder)) => Ok((address, folder)),
            (None, _) => Err(Failure::input(
                "nothing to serve; name a door: --grpc 127.0.0.1:8081 --envoy-config DIR",
            )),
            (Some(_), None) => Err(Failure::input(
                "--grpc needs limits; name the folder with their files: --envoy-config DIR",
            )),
        }
    }

    fn gate(&self, environment: &Environment) -> Result<Gate, Failure> {
        match &environment.store {
            Some(url) if self.policy.is_none() => {
                let url = serde_json::Value::from(url.as_str());
                let text = format!("version: 1\nstore: {{ url: {url} }}\nlimits: []\n");
                let policy = Policy::parse("REDIS_URL", &text, &NoSources);
                Gate::new(policy.map_err(Failure::input)?).map_err(Failure::input)
            }
            _ => Ok(PolicyFile::open(self.policy.as_deref(), &[])?.gate().clone()),
        }
    }

    /// Serves until a signal comes, then for as long as requests are under way, within bounds.
    async fn until_drained(
        &self,
        served: impl Future<Output = Result<(), Failure>>,
        signals: &mut Signals,
        end: &watch::Sender<bool>,
    ) -> Result<(), Failure> {
        tokio::pin!(served);
        tokio::select! {
            done = &mut served => return done,
            () = signals.end() => {}
        }
        tracing::info!(patience = ?self.drain, "ending: no new connections");
        end.send_replace(true);
        tokio::select! {
            done = &mut served => return done,
            () = tokio::time::sleep(self.drain) => {}
            () = signals.end() => {}
        }
        tracing::warn!("ended with requests under way");
        Ok(())
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
