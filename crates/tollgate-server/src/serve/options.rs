//! What `tollgate serve` can be told.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tollgate::policy::Answers;

use crate::choices::duration;

const EXAMPLES: &str = "\
Examples:
  For Envoy, with files of envoyproxy/ratelimit:
    tollgate serve --grpc 127.0.0.1:8081 --envoy-config /etc/ratelimit

  As a replacement of envoyproxy/ratelimit, set up by its environment variables:
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit GRPC_PORT=8081 tollgate serve

Signals: SIGTERM and SIGINT finish what is under way and end, a second one ends at once.

Exit codes: 0 done, 1 it cannot listen, 2 what was given cannot be used.\n";

/// Decide for others: a server that proxies and programs ask
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The policy file, for where counts are kept [default: in memory]
    #[arg(value_name = "POLICY")]
    pub(super) policy: Option<PathBuf>,

    /// Where to listen for Envoy, which asks over gRPC; port 0 picks a free one, which is printed
    #[arg(long, value_name = "IP:PORT", help_heading = "Envoy")]
    pub(super) grpc: Option<SocketAddr>,

    /// The folder with files of envoyproxy/ratelimit; changes are taken up within seconds
    #[arg(long, value_name = "DIR", help_heading = "Envoy")]
    pub(super) envoy_config: Option<PathBuf>,

    /// Which headers Envoy is to add to what callers get
    #[arg(long, value_enum, value_name = "WHICH", default_value_t, help_heading = "Envoy")]
    pub(super) envoy_headers: EnvoyHeaders,

    /// Threads that answer [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<NonZeroUsize>,

    /// How long requests that are under way have when it ends
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(super) drain: Duration,
}

/// Families of headers.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum EnvoyHeaders {
    /// None
    Off,
    /// RateLimit and RateLimit-Policy; Retry-After on refusals
    #[default]
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
