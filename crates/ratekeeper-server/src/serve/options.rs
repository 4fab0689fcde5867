//! The command line of `ratekeeper serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use ratekeeper::policy::ResponseSettings;

use super::grpc::rls::{BindAddress, Environment};
use crate::choices::{Address, LocalAddress, address, duration, local_address, network};
use crate::failure::Failure;
use crate::listener::tls::{TlsFiles, TlsOptions};
use crate::log::LogOptions;

const EXAMPLES: &str = "\
Examples:
  In memory, without configuration:
    ratekeeper serve
    curl -i http://127.0.0.1:8080/v1/check -d '{\"key\":\"user:42\",\"rate\":\"100/minute\"}'

  For clients of redis-cell:
    redis-cli -p 6380 CL.THROTTLE user:42 15 30 60

  With a policy, for requests described in JSON and for forward-auth of proxies:
    ratekeeper serve policy.yaml

  For Envoy, with files of envoyproxy/ratelimit:
    ratekeeper serve --grpc 127.0.0.1:8081 --envoy-config /etc/ratelimit

  For Envoy, with descriptors that bring their own limit, over a Unix domain socket:
    ratekeeper serve --grpc unix:/run/ratekeeper.sock

  Instead of envoyproxy/ratelimit, configured by its environment variables:
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_URL=redis:6379 ratekeeper serve

  For other machines, over TLS, with bearer tokens:
    ratekeeper serve --http 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --tokens tokens.txt

Signals: SIGTERM and SIGINT finish the requests in flight and exit, a second one exits at once; SIGHUP
reloads the policy, the files for Envoy, the certificate, the tokens and the passwords.

Exit codes: 0 success, 1 an address cannot be listened on, 2 invalid options or configuration.\n";

/// Serve rate limit decisions over HTTP, gRPC (Envoy) and the Redis protocol
///
/// Listens on loopback by default. Without a policy, requests name their own rates.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Policy file; reloaded within seconds when it changes
    #[arg(value_name = "POLICY")]
    pub(super) policy: Option<PathBuf>,

    /// Address of the HTTP API ("off" disables it) [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(super) http: Option<Address>,

    /// Address of the Redis protocol: CL.THROTTLE of redis-cell, and RK.* ("off" disables it)
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6380", value_parser = address, help_heading = "Redis protocol")]
    pub(super) resp: Address,

    /// Require one of the passwords in this file, one a line; reloaded within seconds when it changes
    #[arg(long, value_name = "FILE", help_heading = "Redis protocol")]
    pub(super) resp_passwords: Option<PathBuf>,

    /// Close a connection on which no command has come for this long (and up to a quarter longer)
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h", help_heading = "Redis protocol")]
    pub(super) resp_idle_timeout: Duration,

    /// Close a connection whose client reads none of its replies for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", help_heading = "Redis protocol")]
    pub(super) resp_write_timeout: Duration,

    /// Address of the admin listener: health, metrics, policy status ("off" disables it) [default:
    /// 127.0.0.1:9091]
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(super) admin: Option<Address>,

    /// Address of Envoy's rate limit service over gRPC ("off" disables it), or unix:PATH for a Unix domain
    /// socket [default: 127.0.0.1:8081, if there is --envoy-config]
    #[arg(long, value_name = "IP:PORT", value_parser = local_address, help_heading = "Envoy")]
    pub(super) grpc: Option<LocalAddress>,

    /// Folder with files of envoyproxy/ratelimit; reloaded within seconds when they change
    #[arg(long, value_name = "DIR", help_heading = "Envoy")]
    pub(super) envoy_config: Option<PathBuf>,

    /// Headers that Envoy adds to the responses of clients
    #[arg(long, value_enum, value_name = "WHICH", default_value_t, help_heading = "Envoy")]
    pub(super) envoy_headers: EnvoyHeaders,

    /// Add the metadata of limits that are not exceeded to responses, as dynamic metadata
    #[arg(long, help_heading = "Envoy")]
    pub(super) envoy_metadata: bool,

    #[command(flatten)]
    pub(super) tls: TlsOptions,

    /// TLS of the gRPC listener, in place of `tls`.
    #[arg(skip)]
    pub(super) grpc_tls: Option<TlsFiles>,

    /// Serve this listener without TLS although there is a certificate; repeatable
    #[arg(long, value_enum, value_name = "LISTENER", requires = "tls_cert", help_heading = "TLS")]
    pub(super) plaintext: Vec<ListenerName>,

    /// Require one of the bearer tokens in this file, one a line, over HTTP and gRPC; reloaded within
    /// seconds when it changes
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub(super) tokens: Option<PathBuf>,

    /// Require one of the bearer tokens in this file on the admin listener, except for health checks
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub(super) admin_tokens: Option<PathBuf>,

    /// Accept one of the bearer tokens in this file on the admin listener to read what names no keys
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub(super) admin_read_tokens: Option<PathBuf>,

    /// Let browsers use this name of the admin listener although it needs no token; localhost and addresses always
    /// may; repeatable
    #[arg(long = "admin-host", value_name = "NAME", help_heading = "Access")]
    pub(super) admin_hosts: Vec<String>,

    /// Allow listeners on other addresses than loopback without TLS or without authentication
    #[arg(long, help_heading = "Access")]
    pub(super) insecure_public: bool,

    /// Trust the forwarding headers from this network, in addition to loopback and those that the policy
    /// trusts; repeatable
    #[arg(long = "trusted-proxy", value_name = "CIDR", value_parser = network, help_heading = "Access")]
    pub(super) trusted_proxies: Vec<IpNet>,

    /// Number of worker threads of each listener [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,

    /// Reject more connections of each listener
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) max_connections: usize,

    /// Reject more requests in flight of each worker thread, over HTTP and gRPC
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) max_in_flight: usize,

    #[command(flatten)]
    pub(super) log: LogOptions,

    /// Send a span for each decision to the OpenTelemetry collector at this address (OTLP over HTTP)
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, if it is set]
    #[arg(long, value_name = "URL", hide = cfg!(not(feature = "otel")))]
    pub(super) otlp: Option<String>,

    /// Wait this long for requests in flight at shutdown
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(super) drain: Duration,
}

/// The listeners, by their names on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ListenerName {
    /// The HTTP API
    Http,
    /// Envoy's rate limit service
    Grpc,
    /// The Redis protocol
    Resp,
    /// The admin listener
    Admin,
}

impl ListenerName {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Admin => "admin",
        }
    }

    /// The option that names the secrets of its clients.
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
        self.http.map_or(Some(([127, 0, 0, 1], 8080).into()), |address| address.0)
    }

    pub(super) fn admin(&self) -> Option<SocketAddr> {
        self.admin.map_or(Some(([127, 0, 0, 1], 9091).into()), |address| address.0)
    }

    /// Takes addresses that the command line does not name from envoyproxy/ratelimit's environment.
    pub(super) fn or(self, environment: &Environment) -> Self {
        let address =
            |address: BindAddress| Address(Some(address.socket_addr(self.insecure_public)));
        Self {
            http: self.http.or(environment.http.map(address)),
            admin: self.admin.or(environment.admin.map(address)),
            grpc: self.grpc.or_else(|| environment.grpc_address(self.insecure_public)),
            grpc_tls: environment.grpc_tls.clone(),
            ..self
        }
    }

    /// Whether this listener serves TLS.
    pub(super) fn is_tls(&self, listener: ListenerName) -> bool {
        let is_wanted = self.tls.is_wanted() || self.own_tls(listener).is_some();
        is_wanted && !self.plaintext.contains(&listener)
    }

    /// Returns the TLS of a listener that does not use that of the others.
    fn own_tls(&self, listener: ListenerName) -> Option<&TlsFiles> {
        self.grpc_tls.as_ref().filter(|_| listener == ListenerName::Grpc)
    }

    fn wants_client_certificates(&self, listener: ListenerName) -> bool {
        let own = self.own_tls(listener).map(|files| files.client_ca.is_some());
        self.is_tls(listener) && own.unwrap_or_else(|| self.tls.wants_client_certificates())
    }

    /// Fails if a listener is reachable from other machines without TLS or authentication, unless that is
    /// allowed explicitly.
    pub(super) fn check_public_addresses(&self, grpc: &LocalAddress) -> Result<(), Failure> {
        let grpc = match grpc {
            LocalAddress::Tcp(address) => Some(*address),
            LocalAddress::Off | LocalAddress::Unix(_) => None,
        };
        let listeners = [
            (ListenerName::Http, self.http()),
            (ListenerName::Grpc, grpc),
            (ListenerName::Resp, self.resp.0),
            (ListenerName::Admin, self.admin()),
        ];
        for (listener, address) in listeners {
            let Some(address) = address.filter(|address| !address.ip().is_loopback()) else {
                continue;
            };
            let missing = self.missing_in_public(listener);
            if !missing.is_empty() && !self.insecure_public {
                let (name, missing) = (listener.name(), missing.join(" and "));
                return Err(Failure::input(format!(
                    "--{name} {address} is reachable from other machines; use {missing}, listen on \
                     loopback, or use --insecure-public if the network is trusted"
                )));
            }
        }
        Ok(())
    }

    fn missing_in_public(&self, listener: ListenerName) -> Vec<String> {
        let secrets = match listener {
            ListenerName::Http | ListenerName::Grpc => &self.tokens,
            ListenerName::Resp => &self.resp_passwords,
            ListenerName::Admin => &self.admin_tokens,
        };
        let mut missing = Vec::new();
        if !self.is_tls(listener) {
            missing.push("TLS (--tls-cert, --tls-key)".to_string());
        }
        if secrets.is_none() && !self.wants_client_certificates(listener) {
            missing.push(format!("{} or --tls-client-ca", listener.secrets()));
        }
        missing
    }
}

/// Which headers responses get.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum EnvoyHeaders {
    /// None
    #[default]
    Off,
    /// RateLimit and RateLimit-Policy; Retry-After on denials
    Ratelimit,
    /// X-RateLimit-Limit, -Remaining and -Reset; Retry-After on denials
    XRatelimit,
    /// All of them
    All,
}

impl EnvoyHeaders {
    pub(super) fn settings(self) -> Option<ResponseSettings> {
        let (ratelimit, x_ratelimit) = match self {
            Self::Off => return None,
            Self::Ratelimit => (true, false),
            Self::XRatelimit => (false, true),
            Self::All => (true, true),
        };
        Some(ResponseSettings { ratelimit, x_ratelimit, ..ResponseSettings::default() })
    }
}
