//! What `ratekeeper serve` can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use ratekeeper::policy::ResponseSettings;

use super::envoy::{Environment, Place};
use crate::choices::{Address, address, duration, network};
use crate::failure::Failure;
use crate::log::LogFormat;
use crate::tls::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  At once, in memory:
    ratekeeper serve
    curl -i http://127.0.0.1:8080/v1/check -d '{\"key\":\"user:42\",\"rate\":\"100/minute\"}'

  For clients of redis-cell:
    redis-cli -p 6380 CL.THROTTLE user:42 15 30 60

  With a policy, for requests described in JSON and for proxies that ask before they pass one on:
    ratekeeper serve policy.yaml

  For Envoy, with files of envoyproxy/ratelimit:
    ratekeeper serve --grpc 127.0.0.1:8081 --envoy-config /etc/ratelimit

  In the place of envoyproxy/ratelimit, set up by its environment variables:
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_URL=redis:6379 ratekeeper serve

  For others than this machine, over TLS, to those who have a token:
    ratekeeper serve --http 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --tokens tokens.txt

Signals: SIGTERM and SIGINT answer what is under way and end; SIGHUP reads the policy, the files for
Envoy and the certificate again.

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

    /// Where to listen for Redis' protocol: CL.THROTTLE as redis-cell has it, and RK.*; or "off"
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
    /// 127.0.0.1:9091]
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

    #[command(flatten)]
    pub(super) tls: TlsOptions,

    /// Speak plain text at this door although there is a certificate
    #[arg(long, value_enum, value_name = "DOOR", requires = "tls_cert", help_heading = "TLS")]
    pub(super) plain: Vec<DoorName>,

    /// Only answer those who have one of these bearer tokens, over HTTP and gRPC (a file with one on
    /// each line; a changed file is taken up within seconds)
    #[arg(long, value_name = "FILE", help_heading = "Who may ask")]
    pub(super) tokens: Option<PathBuf>,

    /// The same for the admin side, where health can be asked without one
    #[arg(long, value_name = "FILE", help_heading = "Who may ask")]
    pub(super) admin_tokens: Option<PathBuf>,

    /// Listen on addresses other than loopback although anybody could read along, or ask
    #[arg(long, help_heading = "Who may ask")]
    pub(super) insecure_public: bool,

    /// Believe what these proxies say about clients, beside loopback and those that the policy trusts
    #[arg(long = "trusted-proxy", value_name = "CIDR", value_parser = network, help_heading = "Who may ask")]
    pub(super) trusted_proxies: Vec<IpNet>,

    /// Threads of each door [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,

    /// The most connections of a door
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) max_connections: usize,

    /// The most questions that a thread of a door has under way; more are told to come later
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) max_in_flight: usize,

    /// How the log looks, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) log: LogFormat,

    /// Send a span for each question to the OpenTelemetry collector at this address (OTLP over HTTP)
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, if it is set]
    #[arg(long, value_name = "URL", hide = cfg!(not(feature = "otel")))]
    pub(super) otlp: Option<String>,

    /// How long to wait for what is under way when asked to end
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) drain: Duration,
}

/// The doors, as they are called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DoorName {
    /// Questions over HTTP
    Http,
    /// Envoy's
    Grpc,
    /// Redis' protocol
    Resp,
    /// For those who run it
    Admin,
}

impl DoorName {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Admin => "admin",
        }
    }

    /// The option that says who may ask there.
    fn secrets(self) -> &'static str {
        match self {
            Self::Http | Self::Grpc => "--tokens",
            Self::Resp => "--resp-passwords",
            Self::Admin => "--admin-tokens",
        }
    }
}

impl Serve {
    pub(super) fn http(&self) -> Option<SocketAddr> {
        self.http.map_or(Some(([127, 0, 0, 1], 8080).into()), |told| told.0)
    }

    pub(super) fn admin(&self) -> Option<SocketAddr> {
        self.admin.map_or(Some(([127, 0, 0, 1], 9091).into()), |told| told.0)
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

    /// Does this door speak TLS?
    pub(super) fn is_tls(&self, door: DoorName) -> bool {
        self.tls.is_wanted() && !self.plain.contains(&door)
    }

    /// Without TLS and something to know callers by, only this machine may ask, unless somebody has said
    /// so in words.
    pub(super) fn refuse_to_be_public(&self, grpc: Option<SocketAddr>) -> Result<(), Failure> {
        let doors = [
            (DoorName::Http, self.http()),
            (DoorName::Grpc, grpc),
            (DoorName::Resp, self.resp.0),
            (DoorName::Admin, self.admin()),
        ];
        for (door, address) in doors {
            let Some(address) = address.filter(|address| !address.ip().is_loopback()) else {
                continue;
            };
            let missing = self.missing_in_public(door);
            if !missing.is_empty() && !self.insecure_public {
                let (name, missing) = (door.name(), missing.join(" and "));
                return Err(Failure::input(format!(
                    "--{name} {address} can be reached by others; give it {missing}, listen on \
                     loopback, or say --insecure-public if the network is yours"
                )));
            }
        }
        Ok(())
    }

    fn missing_in_public(&self, door: DoorName) -> Vec<String> {
        let secrets = match door {
            DoorName::Http | DoorName::Grpc => &self.tokens,
            DoorName::Resp => &self.resp_passwords,
            DoorName::Admin => &self.admin_tokens,
        };
        let mut missing = Vec::new();
        if !self.is_tls(door) {
            missing.push("TLS (--tls-cert, --tls-key)".to_string());
        }
        if secrets.is_none() && !(self.is_tls(door) && self.tls.wants_client_certificates()) {
            missing.push(format!("{} or --tls-client-ca", door.secrets()));
        }
        missing
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
    pub(super) fn answers(self) -> Option<ResponseSettings> {
        let (ratelimit, x_ratelimit) = match self {
            Self::Off => return None,
            Self::Ratelimit => (true, false),
            Self::XRatelimit => (false, true),
            Self::All => (true, true),
        };
        Some(ResponseSettings { ratelimit, x_ratelimit, ..ResponseSettings::default() })
    }
}
