//! What `tollgate serve` can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::choices::duration;

const EXAMPLES: &str = "\
Examples:
  For clients of redis-cell:
    tollgate serve --resp 127.0.0.1:6380
    redis-cli -p 6380 CL.THROTTLE user:42 15 30 60

  With counts in Redis, which the policy file names:
    tollgate serve --resp 127.0.0.1:6380 policy.yaml

Signals: SIGTERM and SIGINT answer what has come and end, a second one ends at once; SIGHUP reads
the policy again.

Exit codes: 0 done, 1 it cannot listen, 2 what was given cannot be used.\n";

/// Decide for other programs, over the network
///
/// Speaks Redis' protocol: CL.THROTTLE as redis-cell has it, and TG.CHECK, TG.PEEK, TG.CHARGE,
/// TG.REFUND and TG.RESET for every algorithm.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The policy file; a changed file is taken up within seconds [default: no limits, and counts
    /// in memory]
    #[arg(value_name = "POLICY")]
    pub(super) policy: Option<PathBuf>,

    /// Where to listen for Redis' protocol; port 0 picks a free one, which is printed
    #[arg(long, value_name = "IP:PORT", required = true)]
    pub(super) resp: Option<SocketAddr>,

    /// Clients of Redis' protocol have to send one of the passwords in this file, which has one a line
    #[arg(long, value_name = "FILE")]
    pub(super) resp_passwords: Option<PathBuf>,

    /// Threads [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,

    /// The most connections; one more is told so and closed
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_connections: u32,

    /// Close a connection on which nothing has come for this long
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "1h")]
    pub(super) idle_timeout: Duration,

    /// Close a connection whose client takes none of its answers for this long
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) write_timeout: Duration,

    /// How long to wait for what is under way when asked to end
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "30s")]
    pub(super) drain: Duration,
}
