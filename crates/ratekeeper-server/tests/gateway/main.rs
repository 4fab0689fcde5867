//! `ratekeeper gateway` as a process, between real sockets.

use ratekeeper_testkit::{http1 as client, upstream as backend};

mod bounds;
mod cascade;
mod clients;
mod dependencies;
mod drain;
mod evasion;
mod flash_sale;
mod headers;
mod hostile;
mod http2;
mod limits;
mod process;
mod protection;
mod streaming;
mod tls;
mod upstreams;
mod usage;
