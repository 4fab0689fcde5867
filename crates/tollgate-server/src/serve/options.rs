//! What `tollgate serve` can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use tollgate::policy::Answers;

use super::envoy::{Environment, Place};
use crate::choices::{Address, address, duration, network};
use crate::log::LogFormat;

const EXAMPLES: &str = "\
Examples:
  At once, in memory:
    tollgate serve
    curl -i http://127.0.0.1:8080/v1/check -d '{\"key\":\"user:42\",\"rate\":\"100/minute\"}'

  For clients of redis-cell:
    redis-cli -p 6380 CL.THROTTLE user:42 15 30 60

  With a policy, for requests described in JSON and for proxies that ask before they pass one on:
    tollgate serve policy.yaml

  For Envoy, with files of envoyproxy/ratelimit:
    tollgate serve --grpc 127.0.0.1:8081 --envoy-config /etc/ratelimit

  In the place of envoyproxy/ratelimit, set up by its environment variables:
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_URL=redis:6379 tollgate serve

Signals: SIGTERM and SIGINT answer what is under way and end; SIGHUP reads the policy and
the files for Envoy again.

Exit codes: 0 done, 1 it cannot listen, 2 what was given cannot be used.\n";

/// Answer "may this pass?" for programs that are not Rust
///
/// Listens on loopback unless told otherwise. Without a policy, callers bring their own rates.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The policy file; a changed file is taken up within seconds
    #[arg(value_name = "POLICY")]
    pub(super) policy: Option<PathBuf>,

    /// Where to answer questions over HTTP; or "off" [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(super) http: Option<Address>,

    /// Where to listen for Redis' protocol: CL.THROTTLE as redis-cell has it, and TG.*; or "off"
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6380", value_parser = address, help_heading = "Redis' protocol")]
    pub(super) resp: Address,

    /// Clients have to send one of the passwords in this file, which has one on each line
    #[arg(long, value_name = "FILE", help_heading = "Redis' protocol")]
    pub(super) resp_passwords: Option<PathBuf>,

    /// Close a connection on which nothing has come for this long
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "1h", help_heading = "Redis' protocol")]
    pub(super) resp_idle_timeout: Duration,

    /// Close a connection whose client takes none of its answers for this long
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "30s", help_heading = "Redis' protocol")]
    pub(super) resp_write_timeout: Duration,

    /// Where to listen for those who run it: health, metrics, the policy's state; or "off" [default:
    /// 127.0.0.1:9090]
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(super) admin: Option<Address>,

    /// Where Envoy may ask over gRPC; or "off" [default: 127.0.0.1:8081, if there are limits for it]
    #[arg(long, value_name = "IP:PORT", value_parser = address, help_heading = "Envoy")]
    pub(super) grpc: Option<Address>,

    /// The folder with files of envoyproxy/ratelimit; changes are taken up within seconds
    #[arg(long, value_name = "DIR", help_heading = "Envoy")]
    pub(super) envoy_config: Option<PathBuf>,

    /// Which headers Envoy is to add to what callers get
    #[arg(long, value_enum, value_name = "WHICH", default_value_t, help_heading = "Envoy")]
    pub(super) envoy_headers: EnvoyHeaders,

    /// Only answer those who have one of these bearer tokens (a file with one on each line)
    #[arg(long, value_name = "FILE")]
    pub(super) tokens: Option<PathBuf>,

    /// Listen on addresses other than loopback although there is no TLS and no token
    #[arg(long)]
    pub(super) insecure_public: bool,

    /// Believe what these proxies say about clients, beside loopback and those that the policy trusts
    #[arg(long = "trusted-proxy", value_name = "CIDR", value_parser = network)]
    pub(super) trusted_proxies: Vec<IpNet>,

    /// Threads of each door [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,

    /// The most connections of a worker of a door
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) max_connections: usize,

    /// How the log looks, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) log: LogFormat,

    /// How long to wait for what is under way when asked to end
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) drain: Duration,
}

impl Serve {
    pub(super) fn http(&self) -> Option<SocketAddr> {
        self.http.map_or(Some(([127, 0, 0, 1], 8080).into()), |told| told.0)
    }

    pub(super) fn admin(&self) -> Option<SocketAddr> {
        self.admin.map_or(Some(([127, 0, 0, 1], 9090).into()), |told| told.0)
    }

    /// What was not said here is taken from what users of envoyproxy/ratelimit say.
    pub(super) fn or(self, environment: &Environment) -> Self {
        let address = |place: Place| Address(Some(place.address(self.insecure_public)));
        Self {
            http: self.http.or(environment.http.map(address)),
            admin: self.admin.or(environment.admin.map(address)),
            grpc: self.grpc.or(environment.grpc.map(address)),
            ..self
        }
    }

    /// The addresses that others can reach.
    pub(super) fn public(
        &self,
        grpc: Option<SocketAddr>,
    ) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let doors = [
            ("--http", self.http()),
            ("--grpc", grpc),
            ("--resp", self.resp.0),
            ("--admin", self.admin()),
        ];
        let told = doors.into_iter().filter_map(|(name, address)| Some((name, address?)));
        told.filter(|(_, address)| !address.ip().is_loopback())
    }
}

/// Families of headers.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum EnvoyHeaders {
    /// None
    #[default]
    Off,
    /// RateLimit and RateLimit-Policy; Retry-After on refusals
    Ratelimit,
    /// X-RateLimit-Limit, -Remaining and -Reset; Retry-After on refusals
    XRatelimit,
    /// All of them
    All,
}

impl EnvoyHeaders {
    pub(super) fn answers(self) -> Option<Answers> {
        let (ratelimit, x_ratelimit) = match self {
            Self::Off => return None,
            Self::Ratelimit => (true, false),
            Self::XRatelimit => (false, true),
            Self::All => (true, true),
        };
        Some(Answers { ratelimit, x_ratelimit, ..Answers::default() })
    }
}
