//! What `ratekeeper gateway` can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::HeaderName;
use ipnet::IpNet;

use super::upstream;
use crate::choices::{Address, address, duration, network};
use crate::failure::Failure;
use crate::log::LogFormat;
use crate::tls::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  In front of one service:
    ratekeeper gateway --upstream http://127.0.0.1:9000 --listen 0.0.0.0:8080 policy.yaml

  Two of them, checked every few seconds, behind TLS:
    ratekeeper gateway --upstream http://10.0.0.1:9000 --upstream http://10.0.0.2:9000 \\
      --health-path /healthz --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem

  Behind a load balancer whose X-Forwarded-For is to be believed:
    ratekeeper gateway --upstream http://127.0.0.1:9000 --trusted-proxy 10.0.0.0/8

Signals: SIGTERM and SIGINT finish what is under way and end, a second one ends at once;
SIGHUP reads the policy and the certificate again.

Exit codes: 0 done, 1 it cannot listen, 2 what was given cannot be used.\n";

/// Limit traffic in front of a service, as a reverse proxy
///
/// Takes HTTP/1.1 and HTTP/2, with or without TLS, and passes it on to the upstreams over HTTP/1.1
/// in turn. Bodies stream both ways, WebSockets are tunnelled, and everything has a bound.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gateway {
    /// The policy file; a changed file is taken up within seconds [default: no limits]
    #[arg(value_name = "POLICY")]
    pub(super) policy: Option<PathBuf>,

    /// Where requests go: http://HOST:PORT or https://HOST:PORT; several take turns
    #[arg(long = "upstream", value_name = "URL", required = true)]
    pub(super) upstreams: Vec<upstream::Address>,

    /// Where to listen; port 0 picks a free one, which is printed
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub(super) listen: SocketAddr,

    /// Where to listen for those who run it: health, metrics, the policy's state; or "off"
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9091", value_parser = address)]
    pub(super) admin: Address,

    /// On the admin side, only answer those who have one of these bearer tokens, but for health (a file
    /// with one on each line; a changed file is taken up within seconds)
    #[arg(long, value_name = "FILE")]
    pub(super) admin_tokens: Option<PathBuf>,

    /// Let others than this machine reach the admin side although anybody could read along, or ask
    #[arg(long)]
    pub(super) insecure_public: bool,

    #[command(flatten)]
    pub(super) tls: TlsOptions,

    /// Speak plain text on the admin side although there is a certificate
    #[arg(long, requires = "tls_cert", help_heading = "TLS")]
    pub(super) plain_admin: bool,

    /// Trust this authority too (PEM) when an upstream is https://
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(super) upstream_ca: Option<PathBuf>,

    /// Believe X-Forwarded-*, Forwarded and the request id of these peers, beside those that the
    /// policy trusts; repeatable
    #[arg(long = "trusted-proxy", value_name = "CIDR", value_parser = network)]
    pub(super) trusted_proxies: Vec<IpNet>,

    /// Threads, each with its own connections to the upstreams [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,

    #[command(flatten)]
    pub(super) health: HealthOptions,

    #[command(flatten)]
    pub(super) timeouts: Timeouts,

    #[command(flatten)]
    pub(super) bounds: Bounds,

    /// Print a line for each request to standard output
    #[arg(long, value_enum, default_value_t = AccessLog::Off, help_heading = "Logs")]
    pub(super) access_log: AccessLog,

    /// How the gateway's own log looks, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text, help_heading = "Logs")]
    pub(super) log: LogFormat,

    /// The header with a request's id: believed from trusted proxies, made up for others
    #[arg(long, value_name = "NAME", default_value = "x-request-id", help_heading = "Logs")]
    pub(super) request_id_header: HeaderName,
}

/// When an upstream gets no requests.
#[derive(Args, Clone)]
#[command(next_help_heading = "Health of upstreams")]
pub(super) struct HealthOptions {
    /// Ask each upstream for this path, and leave out those that do not answer with 2xx or 3xx
    /// [default: only watch how requests fare]
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub(super) health_path: Option<String>,

    /// How often to ask
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "5s")]
    pub(super) health_interval: Duration,

    /// Leave out an upstream after this many failures in a row: no connection, no answer, or 502,
    /// 503, 504. If none would be left, all of them are used
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) eject_after: u32,

    /// For how long; twice as long each time it fails again, up to five minutes
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "5s")]
    pub(super) eject_for: Duration,
}

/// How long things may take.
#[derive(Args, Clone)]
#[command(next_help_heading = "Timeouts")]
pub(super) struct Timeouts {
    /// For a connection to an upstream; then the next upstream is tried, or the answer is 502
    #[arg(long = "connect-timeout", value_name = "SPAN", value_parser = duration, default_value = "2s")]
    pub(super) connect: Duration,

    /// Until an upstream begins to answer a request that it has received; then the answer is 504
    #[arg(long = "response-timeout", value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) response: Duration,

    /// Close a client's connection that has had no request for this long
    #[arg(long = "idle-timeout", value_name = "SPAN", value_parser = duration, default_value = "60s")]
    pub(super) idle: Duration,

    /// Close an unused connection to an upstream after this long
    #[arg(long = "upstream-idle-timeout", value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) upstream_idle: Duration,

    /// From the first byte of a request to the end of its headers, and for a TLS handshake
    #[arg(long = "header-timeout", value_name = "SPAN", value_parser = duration, default_value = "10s")]
    pub(super) header: Duration,

    /// How long a client may pause in sending a body, or in taking an answer, and how long it may take
    /// to send a body beyond what --min-body-rate asks for
    #[arg(long = "body-timeout", value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) body: Duration,

    /// How many bytes a second a client has to send of a body on average, such as 240 or 1k; a slower one
    /// gets 408. 0 allows any rate
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "240")]
    pub(super) min_body_rate: u64,

    /// Close a tunnel, such as a WebSocket, that has been silent for this long
    #[arg(long = "tunnel-timeout", value_name = "SPAN", value_parser = duration, default_value = "1h")]
    pub(super) tunnel: Duration,

    /// How long to wait for what is under way when asked to end
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) drain: Duration,
}

/// How much of anything there may be.
#[derive(Args, Clone)]
#[command(next_help_heading = "Bounds")]
pub(super) struct Bounds {
    /// The largest body of a request, such as 512k, 10m or 1g; a larger one gets 413
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "100m")]
    pub(super) max_body: u64,

    /// The most headers in a request; more get 431
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) max_headers: u16,

    /// The largest head of a request: its line and its headers; a larger one gets 431
    #[arg(long, value_name = "SIZE", value_parser = head_size, default_value = "64k")]
    pub(super) max_header_size: u32,

    /// The most clients' connections, tunnels among them; one more gets 503
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_connections: u32,

    /// The most requests in flight; one more gets 503 with Retry-After
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_in_flight: u32,

    /// The most HTTP/2 streams of one connection at a time
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) max_streams: u32,

    /// The most connections to one upstream in use at a time, tunnels among them; a request that no
    /// upstream has one for gets 503 with Retry-After
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_upstream_connections: u32,

    /// The most unused connections that a worker keeps to one upstream
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) upstream_pool: u16,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum AccessLog {
    /// None
    Off,
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.parse::<http::uri::PathAndQuery>().is_ok();
    is_path.then(|| text.to_string()).ok_or_else(|| "not a path such as /healthz".to_string())
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => Some(0),
        "k" | "kb" => Some(10),
        "m" | "mb" => Some(20),
        "g" | "gb" => Some(30),
        _ => None,
    };
    let bytes = unit.zip(digits.parse::<u64>().ok());
    bytes
        .and_then(|(shift, number)| number.checked_mul(1 << shift))
        .ok_or_else(|| "not a size such as 512k, 10m or 1g".to_string())
}

fn head_size(text: &str) -> Result<u32, String> {
    // Less than that is less than hyper's buffer.
    const RANGE: std::ops::RangeInclusive<u64> = 8 << 10..=1 << 20;
    let bytes = size(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if RANGE.contains(&u64::from(bytes)) => Ok(bytes),
        _ => Err("the size of a head is between 8k and 1m".to_string()),
    }
}

impl Gateway {
    pub(super) fn is_admin_tls(&self) -> bool {
        self.tls.is_wanted() && !self.plain_admin
    }

    /// The admin side is for those who run the gateway: without TLS and something to know them by, only
    /// this machine may ask, unless somebody has said so in words.
    pub(super) fn refuse_to_be_public(&self) -> Result<(), Failure> {
        let Some(address) = self.admin.0.filter(|address| !address.ip().is_loopback()) else {
            return Ok(());
        };
        let is_known = self.admin_tokens.is_some() || self.tls.wants_client_certificates();
        if self.insecure_public || self.is_admin_tls() && is_known {
            return Ok(());
        }
        Err(Failure::input(format!(
            "--admin {address} can be reached by others; give it TLS (--tls-cert, --tls-key) and \
             --admin-tokens or --tls-client-ca, listen on loopback, or say --insecure-public if the \
             network is yours"
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
