//! The command line of `ratekeeper gateway`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::HeaderName;
use ipnet::IpNet;

use super::upstream::UpstreamAddress;
use crate::choices::{Address, address, duration, network};
use crate::failure::Failure;
use crate::listener::Timeouts;
use crate::listener::tls::TlsOptions;
use crate::log::LogOptions;

const EXAMPLES: &str = "\
Examples:
  In front of one service:
    ratekeeper gateway --upstream http://127.0.0.1:9000 --listen 0.0.0.0:8080 policy.yaml

  Two services, with health checks, behind TLS:
    ratekeeper gateway --upstream http://10.0.0.1:9000 --upstream http://10.0.0.2:9000 \\
      --health-path /healthz --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem

  Behind a load balancer whose X-Forwarded-For is trusted:
    ratekeeper gateway --upstream http://127.0.0.1:9000 --trusted-proxy 10.0.0.0/8

Signals: SIGTERM and SIGINT finish the requests in flight and exit, a second one exits at once;
SIGHUP reloads the policy, the certificate and the tokens.

Exit codes: 0 success, 1 an address cannot be listened on, 2 invalid options or configuration.\n";

/// Limit traffic in front of a service, as a reverse proxy
///
/// Accepts HTTP/1.1 and HTTP/2, with or without TLS, and forwards it to the upstreams over HTTP/1.1,
/// round robin. Bodies are streamed both ways, WebSockets are tunnelled, and everything is bounded.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gateway {
    /// Policy file; reloaded within seconds when it changes [default: no limits]
    #[arg(value_name = "POLICY")]
    pub(super) policy: Option<PathBuf>,

    /// Upstream to forward requests to: http://HOST:PORT or https://HOST:PORT; repeatable, round robin
    #[arg(long = "upstream", value_name = "URL", required = true)]
    pub(super) upstreams: Vec<UpstreamAddress>,

    /// Address to listen on; port 0 picks a free port, which is printed
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub(super) listen: SocketAddr,

    /// Address of the admin listener: health, metrics, policy status ("off" disables it)
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9091", value_parser = address)]
    pub(super) admin: Address,

    /// Require one of the bearer tokens in this file, one a line, on the admin listener, except for
    /// health checks; reloaded within seconds when it changes
    #[arg(long, value_name = "FILE")]
    pub(super) admin_tokens: Option<PathBuf>,

    /// Accept one of the bearer tokens in this file on the admin listener to read what names no keys
    #[arg(long, value_name = "FILE")]
    pub(super) admin_read_tokens: Option<PathBuf>,

    /// Let browsers use this name of the admin listener although it needs no token; localhost and addresses always
    /// may; repeatable
    #[arg(long = "admin-host", value_name = "NAME")]
    pub(super) admin_hosts: Vec<String>,

    /// Allow an admin listener on other addresses than loopback without TLS or without tokens
    #[arg(long)]
    pub(super) insecure_public: bool,

    #[command(flatten)]
    pub(super) tls: TlsOptions,

    /// Serve the admin listener without TLS although there is a certificate
    #[arg(long, requires = "tls_cert", help_heading = "TLS")]
    pub(super) plaintext_admin: bool,

    /// Trust this certificate authority (PEM) for https:// upstreams, in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(super) upstream_ca: Option<PathBuf>,

    /// Trust X-Forwarded-*, Forwarded and the request id from this network, in addition to those that the
    /// policy trusts; repeatable
    #[arg(long = "trusted-proxy", value_name = "CIDR", value_parser = network)]
    pub(super) trusted_proxies: Vec<IpNet>,

    /// Number of worker threads, each with its own connections to the upstreams [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,

    #[command(flatten)]
    pub(super) health: HealthOptions,

    #[command(flatten)]
    pub(super) timeouts: TimeoutOptions,

    #[command(flatten)]
    pub(super) bounds: BoundOptions,

    /// Print a line for each request to standard output
    #[arg(long, value_enum, default_value_t = AccessLog::Off, help_heading = "Logs")]
    pub(super) access_log: AccessLog,

    #[command(flatten)]
    pub(super) log: LogOptions,

    /// Header with the id of a request: kept from trusted proxies, generated for others
    #[arg(long, value_name = "NAME", default_value = "x-request-id", help_heading = "Logs")]
    pub(super) request_id_header: HeaderName,
}

/// Which upstreams get requests.
#[derive(Args, Clone)]
#[command(next_help_heading = "Health of upstreams")]
pub(super) struct HealthOptions {
    /// Check the health of each upstream at this path, and send no requests to those that do not respond
    /// with 2xx or 3xx [default: no health checks]
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub(super) health_path: Option<String>,

    /// Interval of the health checks
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(super) health_interval: Duration,

    /// Eject an upstream after this many failures in a row: no connection, no response, or 502, 503, 504.
    /// If none would be left, all of them are used
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) eject_after: u32,

    /// Eject it for this long; doubled each time it fails again, up to five minutes
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(super) eject_for: Duration,
}

/// Timeouts of clients and upstreams.
#[derive(Args, Clone)]
#[command(next_help_heading = "Timeouts")]
pub(super) struct TimeoutOptions {
    /// Limit the time to connect to an upstream; then try the next one, or respond 502
    #[arg(long = "connect-timeout", value_name = "DURATION", value_parser = duration, default_value = "2s")]
    pub(super) connect: Duration,

    /// Limit the time until an upstream starts to respond to a request that it has received; then respond
    /// 504
    #[arg(long = "response-timeout", value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(super) response: Duration,

    /// Close a client's connection that has had no request for this long (and up to a quarter longer)
    #[arg(long = "idle-timeout", value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub(super) idle: Duration,

    /// Close an unused connection to an upstream after this long
    #[arg(long = "upstream-idle-timeout", value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(super) upstream_idle: Duration,

    /// Limit the time from the first byte of a request to the end of its headers, and of a TLS handshake
    #[arg(long = "header-timeout", value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub(super) header: Duration,

    /// Limit how long a client may pause while it sends a body or reads a response, and how long it may take
    /// for a body beyond what --min-body-rate allows
    #[arg(long = "body-timeout", value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(super) body: Duration,

    /// Require this many bytes a second of a body on average, such as 240 or 1k; a slower client gets 408. 0
    /// allows any rate
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "240")]
    pub(super) min_body_rate: u64,

    /// Close a tunnel, such as a WebSocket, on which no byte has come for this long
    #[arg(long = "tunnel-timeout", value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub(super) tunnel: Duration,

    /// Wait this long for requests in flight at shutdown
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(super) drain: Duration,
}

/// Limits on sizes and numbers.
#[derive(Args, Clone)]
#[command(next_help_heading = "Limits")]
pub(super) struct BoundOptions {
    /// Reject larger request bodies with 413, such as 512k, 10m or 1g
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "100m")]
    pub(super) max_body: u64,

    /// Read request bodies up to this size where the policy has request_json; its fields of larger bodies are missing
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1m")]
    pub(super) max_request_json: u64,

    /// Reject requests with more headers with 431
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) max_headers: u16,

    /// Reject requests whose request line and headers are larger with 431
    #[arg(long, value_name = "SIZE", value_parser = header_size, default_value = "64k")]
    pub(super) max_header_size: u32,

    /// Reject more client connections, including tunnels, with 503
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_connections: u32,

    /// Reject more requests in flight with 503 and Retry-After
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_in_flight: u32,

    /// Limit the concurrent HTTP/2 streams of a connection
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) max_streams: u32,

    /// Limit the connections to one upstream in use, including tunnels; a request that no upstream has one
    /// for gets 503 and Retry-After
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_upstream_connections: u32,

    /// Limit the idle connections that a worker keeps to one upstream
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) upstream_pool: u16,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum AccessLog {
    /// None
    Off,
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Why the value of an option is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum OptionError {
    #[error("expected a path such as /healthz")]
    Path,
    #[error("expected a size such as 512k, 10m or 1g")]
    Size,
    #[error("expected a size between 8k and 1m")]
    HeaderSize,
}

fn path(text: &str) -> Result<String, OptionError> {
    let is_path = text.starts_with('/') && text.parse::<http::uri::PathAndQuery>().is_ok();
    is_path.then(|| text.to_string()).ok_or(OptionError::Path)
}

fn size(text: &str) -> Result<u64, OptionError> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => Some(0),
        "k" | "kb" => Some(10),
        "m" | "mb" => Some(20),
        "g" | "gb" => Some(30),
        _ => None,
    };
    let bytes = unit.zip(digits.parse::<u64>().ok());
    bytes.and_then(|(shift, number)| number.checked_mul(1 << shift)).ok_or(OptionError::Size)
}

fn header_size(text: &str) -> Result<u32, OptionError> {
    // The minimum is hyper's buffer.
    const RANGE: std::ops::RangeInclusive<u64> = 8 << 10..=1 << 20;
    let bytes = size(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if RANGE.contains(&u64::from(bytes)) => Ok(bytes),
        _ => Err(OptionError::HeaderSize),
    }
}

impl TimeoutOptions {
    /// Timeouts of clients' connections.
    pub(super) fn of_clients(&self) -> Timeouts {
        Timeouts {
            idle: Some(self.idle),
            header: self.header,
            first_request: Duration::MAX,
            write: self.body,
            unread_response: Some(self.body),
        }
    }
}

impl Gateway {
    pub(super) fn is_admin_tls(&self) -> bool {
        self.tls.is_wanted() && !self.plaintext_admin
    }

    /// Fails if the admin listener is reachable from other machines without TLS or authentication, unless
    /// that is allowed explicitly.
    pub(super) fn check_public_addresses(&self) -> Result<(), Failure> {
        let Some(address) = self.admin.0.filter(|address| !address.ip().is_loopback()) else {
            return Ok(());
        };
        let has_authentication =
            self.admin_tokens.is_some() || self.tls.wants_client_certificates();
        if self.insecure_public || self.is_admin_tls() && has_authentication {
            return Ok(());
        }
        Err(Failure::input(format!(
            "--admin {address} is reachable from other machines; use TLS (--tls-cert, --tls-key) and \
             --admin-tokens or --tls-client-ca, listen on loopback, or use --insecure-public if the \
             network is trusted"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit() {
        let read = |text| size(text).ok();
        assert_eq!(read("17"), Some(17));
        assert_eq!(read("512k"), Some(512 << 10));
        assert_eq!(read("10MiB"), Some(10 << 20));
        assert_eq!(read("1gb"), Some(1 << 30));
        for wrong in ["", "m", "1.5m", "1t", "-1", "99999999999g"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
